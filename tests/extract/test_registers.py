"""Test-time registers take what register neurons write into outliers, and change nothing where there are none."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from extract.datasets import open_images
from extract.encoders import Encoder, load_encoder
from extract.encoders.wrapped import wrap
from extract.register_neurons import find_register_neurons
from extract.registers import read_neurons
from extract.requests import Request
from pipelines.live.online import load_as_recorded
from store import BeyondClsError
from tests.extract.pictures import write_pictures
from tests.extract.tiny import TINY, tiny_encoder

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PATCH, NEURON = 6, 5
NEURONS = {0: [NEURON, 17], 1: [3]}
WITHOUT_NORM: Any = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def with_outlier() -> Encoder:
    """Its neuron 5 of block 0 writes a token of norm 5,000 into patch 6 of any image, which it knows by its position."""
    encoder = tiny_encoder()
    model: Any = encoder.model
    position = torch.linspace(-1.7, 1.7, 32)  # of standard deviation 1
    with torch.no_grad():
        model.pos_embed[0, 1 + PATCH] = 3 * position
        mlp = model.blocks[0].mlp
        mlp.fc1.weight[NEURON], mlp.fc1.bias[NEURON] = position, -24  # times the norm of tokens: about 30 there
        mlp.fc2.weight[:, NEURON] = torch.eye(32)[0] * 1000
        mlp.fc1.bias[7], mlp.fc2.weight[:, 7] = 99, 0  # large everywhere, so none of them
    return encoder


def by_hand(model: Any, images: Tensor, neurons: dict[int, list[int]], n: int) -> Tensor:
    """Tokens of the last block, by the definition: one image, neuron and token after the other."""
    tokens = model._pos_embed(model.patch_embed(images))
    x = torch.cat([tokens[:, :1], torch.zeros(len(images), n, 32, dtype=tokens.dtype), tokens[:, 1:]], 1)
    for index, block in enumerate(model.blocks):
        x = x + block.attn(block.norm1(x))
        hidden = nn.functional.gelu(block.mlp.fc1(block.norm2(x)))
        for of_image in hidden:
            for unit in neurons.get(index, ()):
                largest = max((of_image[token, unit].item() for token in range(1 + n, len(of_image))), key=abs)
                for token in range(1, len(of_image)):
                    of_image[token, unit] = largest if token <= n else 0
        x = x + block.mlp.fc2(hidden)
    return x


def test_in_float64_they_are_what_the_definition_says():
    encoder, plain = tiny_encoder(), tiny_encoder()
    encoder.add_registers(NEURONS, 3)
    encoder.model.double()
    encoded = encoder(IMAGES.double(), [1])
    ours = torch.cat([encoded.cls[1][:, None], encoded.registers[1], encoded.patch[1]], 1)
    with torch.inference_mode():
        expected = by_hand(plain.model.double(), IMAGES.double(), NEURONS, 3)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "of_registers"), [("vit_tiny_patch16_224", "reg_tokens"), ("vit_small_patch16_dinov3", "num_reg_tokens")]
)
def test_where_neurons_are_dead_they_are_trained_registers_of_zeros(model, of_registers):
    ours = tiny_encoder(model=model)
    trained = tiny_encoder(model=model, **{of_registers: ours.layout.n_registers + 2})
    state = ours.model.state_dict()
    state["reg_token"] = torch.cat([state.get("reg_token", torch.zeros(1, 0, 32)), torch.zeros(1, 2, 32)], 1)
    if "pos_embed" in state:
        state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], torch.zeros(1, 2, 32), state["pos_embed"][:, 1:]], 1)
    trained.model.load_state_dict(state)
    for encoder in (ours, trained):
        encoder.model.blocks[0].mlp.fc2.weight.data[:, NEURON] = 0
    ours.add_registers({0: [NEURON]}, 2)
    assert ours.layout == trained.layout
    one, other = (vars(encoder(IMAGES, [0, 1], encoder.statistics, [1], [0])) for encoder in (ours, trained))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_an_outlier_moves_and_its_neuron_is_found(tmp_path):
    images = open_images(write_pictures(tmp_path, *(f"a/{i}.jpeg" for i in range(9))))
    plain, encoder = with_outlier(), with_outlier()
    assert plain(IMAGES, [0]).patch[0].norm(dim=-1).argmax(1).tolist() == [PATCH] * 3
    advanced: list[int] = []
    options: Any = {"n_neurons": 1, "block": 0, "bars": lambda *described: nullcontext(advanced.append)}
    assert find_register_neurons(plain, images, highest_block=0, **options) == {0: (NEURON,)}
    assert sum(advanced) == len(images)
    assert find_register_neurons(plain, images, highest_block=1, **options, norm=900, n_images=2) == {0: (NEURON,)}
    encoder.add_registers({0: [NEURON]})
    encoded = encoder(IMAGES, [0], encoder.statistics)
    assert encoded.patch[0].norm(dim=-1).amax() < 100
    assert encoded.registers[0].norm(dim=-1).amin() > 1000
    assert all(values.isfinite().all() for values in encoded.statistics.values())
    with pytest.raises(BeyondClsError, match=r"no patch token of block 0 of tiny has a norm above 3 times .* in 5 images"):
        find_register_neurons(tiny_encoder(), images, highest_block=0, n_images=5, block=0)
    with pytest.raises(BeyondClsError, match="tiny has test-time registers, which empty its outliers"):
        find_register_neurons(encoder, images, highest_block=0)


def load(**options: Any) -> Encoder:
    return load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, **options)


def test_they_are_in_the_key_and_none_is_the_plain_pass(tmp_path):
    file, images = tmp_path / "n.json", open_images(write_pictures(tmp_path / "images", "a/0.jpeg"))
    file.write_text(json.dumps({"register_neurons": {"1": [3], "0": [17, NEURON]}, "norm": 30}))
    plain, none, one, *_ = encoders = (
        load(),
        load(register_neurons=file, test_time_registers=0),
        load(register_neurons=str(file)),
        load(register_neurons=NEURONS, test_time_registers=1),
        load(register_neurons=file, test_time_registers=2),
    )
    keys = [Request.resolve(encoder, images).spec.key for encoder in encoders]
    assert keys[0] == keys[1] != keys[2] == keys[3] != keys[4] != keys[0]
    assert torch.equal(plain(IMAGES, [1]).patch[1], none(IMAGES, [1]).patch[1])
    added = {"register_neurons": {"0": [NEURON, 17], "1": [3]}, "test_time_registers": 1}
    assert json.loads(one.architecture) == json.loads(plain.architecture) | added
    assert one.weights == plain.weights
    recorded = {"architecture": one.architecture}
    again = load_as_recorded("tiny", recorded, {"model": "vit_tiny_patch16_224", "arguments": TINY, "random_seed": 0})
    assert again.architecture == one.architecture


def test_its_own_pooling_does_not_see_them():
    def known(_module: nn.Module, _inputs: Any, x: Tensor) -> Tensor:
        patches = torch.arange(16 * 32.0).sin().view(1, 16, 32).expand(len(x), -1, -1)
        return torch.cat([patches[:, : x.shape[1] - 16].flip(2), patches], 1)

    encoder = tiny_encoder(model="vit_base_patch16_siglip_224")
    encoder.model.blocks[1].register_forward_hook(known)
    before = encoder(IMAGES, [1], pooled=True).pooled
    encoder.add_registers(NEURONS, 2)
    assert torch.equal(before, encoder(IMAGES, [1], pooled=True).pooled)


def test_a_wrapped_model_has_them_too(tmp_path):
    plain, encoder = tiny_encoder(), wrap(tiny_encoder().model, **WITHOUT_NORM)
    plain.add_registers(NEURONS)
    encoder.add_registers(NEURONS)
    assert torch.equal(plain(IMAGES, [1]).registers[1], encoder(IMAGES, [1]).registers[1])
    with pytest.raises(BeyondClsError, match="has 1 test-time registers; load it again"):
        encoder.add_registers(NEURONS)
    (tmp_path / "mine.py").write_text(
        "from tests.extract.test_registers import WITHOUT_NORM, tiny_encoder, wrap\n\n\ndef make():\n"
        "    encoder = wrap(tiny_encoder().model, **WITHOUT_NORM)\n    encoder.add_registers({0: [1]})\n    return encoder\n"
    )
    with pytest.raises(BeyondClsError, match="has added test-time registers; leave them to --register-neurons"):
        load_encoder("mine", model=f"{tmp_path}/mine.py:make")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"register_neurons": {2: [0]}}, "there is no block 2: tiny has blocks 0 to 1"),
        ({"register_neurons": {0: [128]}}, "block 0 of tiny has no neuron 128: its MLP has 128"),
        *(
            ({"register_neurons": {0: [1]}, "test_time_registers": n}, f"_registers is {n}, expected 1 to 16")
            for n in (17, True)
        ),
        ({"test_time_registers": 2}, "without register neurons"),
        ({"register_neurons": {}}, "names no neurons"),
        *(({"register_neurons": {0: units}}, "for block 0, expected .* each once") for units in ([1, 1], [], [-1], [True])),
        *(({"register_neurons": {"0": [1], block: [2]}}, f"for block '{block[:9]}") for block in ("x", "00", "9" * 5000)),
        ({"register_neurons": "no.json"}, "no.json holds no register neurons"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(BeyondClsError, match=message):
        load(**options)


LONG = '{"register_neurons": {"0": [1]}' + " " * 2_000_000 + "}"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"register_neurons": [1]}', "[" * 10_000, LONG], ids=len)
def test_files_that_hold_none(content, tmp_path):
    (tmp_path / "n.json").write_text(content)
    with pytest.raises(BeyondClsError, match=r"n\.json (holds no register neurons|names no neurons)"):
        read_neurons(tmp_path / "n.json")


class Unseen(nn.Linear):
    """A layer whose weight its module multiplies with by itself."""

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("beit_base_patch16_224", TINY, "does not run with 1 more tokens"),
        ("convnext_atto", {}, r"\(ConvNeXtStage\) has \d linear layers from hidden units to tokens, expected the one"),
        ("vit_tiny_patch16_224", {**TINY, "mlp_ratio": 1.0}, "has 0 linear layers from hidden units to tokens"),
        ("vit_tiny_patch16_224", TINY, "in a way that hooks don't see"),
    ],
)
def test_models_that_cannot(model, arguments, message):
    encoder = load_encoder("tiny", model=model, arguments=arguments, random_seed=0)
    if "hooks" in message:
        encoder.model.blocks[0].mlp.fc2.__class__ = Unseen
    with pytest.raises(BeyondClsError, match=message):
        encoder.add_registers({0: [1]})
