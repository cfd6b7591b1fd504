"""A file of one's own: where the encoder is in it, what is beside it, and what is refused."""

import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.encoders import Encoder, load_encoder
from extract.encoders.pretrained import timm_model
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.encoders.official import values_of
from tests.extract.encoders.published import PUBLISHED
from tests.extract.tiny import TINY, tiny_encoder

MODEL = "vit_tiny_patch16_224"
SMALL: dict[str, Any] = {**TINY, "depth": 1}
ANY_SIZE = {name: value for name, value in SMALL.items() if name != "img_size"}
State = dict[str, Tensor]
NETWORKS = [tiny_encoder(seed, depth=1).model.state_dict() for seed in range(3)]
A, B, C = NETWORKS


def load(folder: Path, content: Any, **options: Any) -> tuple[Encoder, list[str]]:
    torch.save(content, folder / "w.pth")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BeyondClsWarning)
        encoder = load_encoder("mine", checkpoint=folder / "w.pth", **{"model": MODEL, "arguments": SMALL, **options})
    notes = [str(warning.message) for warning in caught]
    return encoder, [note for note in notes if note.startswith("mine: ")]


def refusal(folder: Path, content: Any, **options: Any) -> str:
    with pytest.raises(BeyondClsError) as caught:
        load(folder, content, **options)
    return str(caught.value)


def which(folder: Path, content: Any, **options: Any) -> int:
    """The network whose every value is loaded."""
    state = load(folder, content, **options)[0].model.state_dict()
    (index,) = [i for i, one in enumerate(NETWORKS) if all(torch.equal(state[name], value) for name, value in one.items())]
    return index


def options_in(text: str) -> list[dict[str, str]]:
    """Keys and prefixes that a message names."""
    pairs = re.findall(r"--checkpoint-key (\S+?) --checkpoint-prefix ([^\s,;]+)", text)
    return [{"checkpoint_key": shlex.split(key)[0], "checkpoint_prefix": shlex.split(prefix)[0]} for key, prefix in pairs]


def behind(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def one(*names: str) -> State:
    return {name: torch.zeros(1) for name in names}


def wrapped(state: Mapping[str, Tensor]) -> State:
    """Names of a model whose blocks FSDP shards, and whose MLPs are computed again on the way back."""
    inner = ("blocks.0.", "blocks.0._fsdp_wrapped_module."), ("mlp.", "mlp._checkpoint_wrapped_module.")
    return {name.replace(*inner[0]).replace(*inner[1]): value for name, value in state.items()}


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        ("state_dict", "module."),
        ("model", "teacher.backbone."),
        ("", "net.0."),
        ("model_ema", ""),
        ("classy_state_dict/base_model/trunk", ""),
    ],
)
def test_a_key_and_a_prefix_are_found_and_noted(key, prefix, tmp_path):
    content: Any = behind(prefix, A)
    for part in reversed(key.split("/") if key else ()):
        content = {part: content, "epoch": 3}
    assert which(tmp_path, content) == 0
    encoder, (note,) = load(tmp_path, content)
    assert encoder.weights == tiny_encoder(0, depth=1).weights
    assert options_in(note) == [{"checkpoint_key": key, "checkpoint_prefix": prefix}]


@pytest.mark.parametrize(
    ("prefix", "beside", "model"),
    [("_fsdp_wrapped_module.", {}, MODEL), ("_orig_mod.", one("decoder_embed.weight"), "mae-s16")],
)
def test_names_of_how_a_training_ran(prefix, beside, model, tmp_path):
    content = behind(prefix, wrapped(A) | beside)
    assert which(tmp_path, content, model=model) == 0
    (note,) = load(tmp_path, content, model=model)[1]
    parts = dict.fromkeys([prefix[:-1], "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
    assert note == f"mine: names are taken without {', '.join(parts)}"


HEAD = one("head.weight", "head.bias")
DECODER = one("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pred.bias")
DINO_HEAD = one("head.mlp.0.weight", "head.last_layer.weight_g")
HEADS = one("dino_head.mlp.0.weight", "ibot_head.last_layer.weight_v")
# What it is: its content, and how many other networks are in it. The first is taken.
FILES: dict[str, tuple[dict[str, Any], int]] = {
    "as they are": (A, 0),
    "with an optimizer": ({"state_dict": A, "optimizer": {"state": {0: one("exp_avg")}}}, 0),
    "MAE": ({"model": A | DECODER, "epoch": 799}, 0),
    "MAE, compiled, in parallel": ({"model": behind("module._orig_mod.", A | DECODER)}, 0),
    "DINO": ({"teacher": behind("backbone.", A | DINO_HEAD), "student": behind("module.backbone.", B | DINO_HEAD)}, 1),
    "iBOT": ({"student": behind("module.backbone.", B | one("masked_embed")), "teacher": behind("module.backbone.", A)}, 1),
    "DINOv2 of Lightning": ({"state_dict": behind("student.backbone.", B) | behind("teacher.backbone.", A) | HEADS}, 1),
    "teacher beside bare names": ({"state_dict": B | behind("teacher.", A)}, 1),
    "I-JEPA": ({"encoder": behind("module.", B), "target_encoder": behind("module.", A), "predictor": one("module.w")}, 1),
    "MoCo": ({"state_dict": behind("module.encoder_q.", A) | behind("module.encoder_k.", B) | one("module.queue")}, 1),
    "solo-learn": ({"state_dict": behind("momentum_backbone.", B) | behind("backbone.", A) | one("projector.0.weight")}, 1),
    "average of weights, with heads": ({"model": A | HEAD, "model_ema": B | HEAD}, 1),
    "BYOL": ({"state_dict": behind("target_network.", B) | behind("online_network.", A)}, 1),
    "averages of two": ({"ema": behind("teacher.", B), "net": behind("teacher.", A) | behind("student.", C)}, 2),
    "average alone": ({"model_ema": {"module": A}, "n": one("x")}, 0),
    "CLIP": ({"state_dict": behind("module.visual.trunk.", A) | one("module.text.w.weight", "module.logit_scale")}, 0),
    "one under two names": ({"state_dict": behind("net.", A) | behind("compiled._orig_mod.", A)}, 0),
    "bare beside a teacher, as it was": ({"model": A | HEAD, "teacher": B}, 1),
}


@pytest.mark.parametrize("file", FILES)
def test_files_of_trainings(file, tmp_path):
    """One network is taken; each other is noted with the options that choose it."""
    content, n_others = FILES[file]
    assert which(tmp_path, content) == 0
    notes = load(tmp_path, content)[1]
    assert notes == [] or content is not A
    others = options_in(" ".join(note for note in notes if "not taken" in note))
    assert sorted(which(tmp_path, content, **options) for options in others) == list(range(1, n_others + 1))


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (behind("teacher.backbone.", A) | behind("teacher.", HEADS), "teacher.dino_head.* (1), teacher.ibot_head.* (1)"),
        (behind("backbone.", A | one("mask_token")) | one("neck.fc0.weight", "neck.fc0.bias"), "mask_token, neck.* (2)"),
    ],
)
def test_what_is_left_out_is_counted_and_named(content, left, tmp_path):
    (note,) = [note for note in load(tmp_path, content)[1] if "left out: " in note]
    assert sorted(note.partition("left out: ")[2].split(", ")) == sorted(left.split(", "))


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ("blocks.0.attn.qkv.lora_A.default.weight", None),
        ("reg_token", "reg_token"),
        ("norm_pre.weight", "norm_pre.*"),
    ],
)
def test_what_may_concern_tokens_is_refused(extra, pattern, tmp_path):
    """Unless it is to be left out: the message proposes patterns, but for parts of blocks."""
    content = {"model": behind("teacher.backbone.", A | one(extra))}
    message = refusal(tmp_path, content)
    assert "18 of the model's 18 tensors" in message
    assert f"unexpected (1): {extra}." in message
    assert re.findall("--ignore '(.*)'", message) == ([pattern] if pattern else [])
    assert which(tmp_path, content, ignore=pattern or extra) == 0
    assert sum("left out by --ignore" in note for note in load(tmp_path, content, ignore=pattern or extra)[1]) == 1


MORE, QKV = A | one("a.x", "b.y"), "blocks.0.attn.qkv.weight"
STUDENT = {"teacher": behind("backbone.", A), "student": behind("backbone.", B), "epoch": 3}
VIT_OF_OTHERS = one("vit.embeddings.cls_token", "vit.encoder.layer.0.attention.query.weight", "vit.layernorm.norm.weight")
CHOSEN = {"model": "dino-s16", "checkpoint_key": "teacher", "checkpoint_prefix": "backbone."}
# Files for names of the registry are read as their authors write them.
REGISTERED: dict[str, Any] = {"model": "mae-s16"}


def without(name: str, prefix: str = "module.", **others: Tensor) -> State:
    return behind(prefix, {n: value for n, value in A.items() if n != name} | others)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (A | {"blocks.0._orig_mod.norm1.weight": torch.ones(32)}, {}, r"unexpected (1): blocks.0._orig_mod.norm1.weight"),
        (MORE, {"ignore": "a.*,c"}, "unexpected (1): b.y"),
        ({"scaler": one("scale"), "model": VIT_OF_OTHERS}, {}, "0 of the model's 18 tensors. missing (18): blocks.0"),
        *((A | {QKV: A[QKV].to(dtype)}, {}, f"whole numbers in {QKV}, ") for dtype in (torch.int8, torch.bool)),
        (
            STUDENT,
            {"checkpoint_key": "techer"},
            "--checkpoint-key is 'techer', expected one that holds tensors: teacher, student",
        ),
        (STUDENT, {"checkpoint_prefix": "module."}, "no name begins with it; there are backbone.* (36)"),
        (STUDENT, {"checkpoint_key": "student", "checkpoint_prefix": "x"}, "--checkpoint-prefix is 'x.', but no name"),
        *(
            (A | {"pos_embed": torch.zeros(1, n, 32)}, {"arguments": ANY_SIZE}, f"pos_embed [1, {n}, 32] for")
            for n in (1, 19)  # of no square
        ),
        ({"model": A | DECODER | one("probe.weight")}, REGISTERED, "unexpected (1): probe.weight"),
        # A choice hides nothing of the rest: that a file is of iBOT is seen though the tensors of its teacher are chosen.
        ({"teacher": behind("backbone.", A), "ibot_loss": one("center")}, CHOSEN, "which iBOT writes and DINO does not"),
        *(  # behind a prefix, and though an average has it: networks are not put together
            (
                {"model": without(name), "ema": {name: B[name], "norm.bias": B["norm.bias"]}},
                {},
                f"17 of the model's 18 tensors. missing (1): {name}",
            )
            for name in ("cls_token", "blocks.0.mlp.fc1.weight")
        ),
        *(
            ({"model": without(name, **{name: torch.zeros(3, 5)})}, {}, f"other shape (1): {name} [3, 5] for")
            for name in ("cls_token", "norm.bias")
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_is_refused(content, options, message, tmp_path):
    assert message in refusal(tmp_path, content, **options)


def test_several_of_which_no_name_says_which(tmp_path):
    content = {"state_dict": behind("left.", A) | behind("right.", B), "ema": C}
    choices = options_in(refusal(tmp_path, content))
    assert [which(tmp_path, content, **choice) for choice in choices] == [0, 1]


def test_dictionaries_within_themselves(tmp_path):
    content = {"model": behind("module.", A)}
    content["model"]["again"] = content
    assert which(tmp_path, content) == 0


def test_options_choose(tmp_path):
    assert {which(tmp_path, MORE, ignore=patterns) for patterns in (["a.*", "b.y"], "*")} == {0}
    assert which(tmp_path, {"model": behind("module.", A | DECODER)}, **REGISTERED, checkpoint_prefix="module") == 0
    assert which(tmp_path, {"model": A | DECODER | one("probe.weight")}, **REGISTERED, ignore="probe.*") == 0
    averaged = {"model": A | DECODER, "model_ema": B | DECODER}
    (choice,) = options_in(load(tmp_path, averaged, **REGISTERED)[1][0])
    assert [which(tmp_path, averaged, **REGISTERED, **options) for options in ({}, choice)] == [0, 1]


class TestSize:
    @pytest.mark.parametrize(
        ("side", "fields"), [(24, {}), (32, {"reg_tokens": 4}), (64, {"class_token": False, "global_pool": "avg"})]
    )
    def test_follows_from_positions(self, side, fields, tmp_path):
        """It is part of what the encoder is, as if it had been given."""
        state = tiny_encoder(1, depth=1, img_size=side, **fields).model.state_dict()
        encoder, (_, note) = load(tmp_path, behind("module.", state), arguments=ANY_SIZE | fields)
        given, (_,) = load(tmp_path, behind("module.", state), arguments=ANY_SIZE | fields | {"img_size": side})
        assert (encoder.architecture, encoder.weights, encoder.config) == (given.architecture, given.weights, given.config)
        assert encoder.config["input_size"] == (3, side, side)
        assert f"{side} x {side} pixels" in note

    def test_of_relative_positions(self, tmp_path):
        state = timm_model("beit_base_patch16_224", **ANY_SIZE, img_size=40).state_dict()
        encoder, (note,) = load(tmp_path, state, model="beit_base_patch16_224", arguments=ANY_SIZE)
        assert encoder.config["input_size"] == (3, 40, 40)
        assert "40 x 40 pixels" in note

    def test_what_a_user_gives_wins(self, tmp_path):
        state = tiny_encoder(1, depth=1, img_size=64).model.state_dict()
        assert "give arguments: { img_size: 64 }" in refusal(tmp_path, state)
        resized, notes = load(tmp_path, state, arguments=ANY_SIZE, input_size=32)
        same, _ = load(tmp_path, state, arguments=SMALL | {"img_size": 64}, input_size=32)
        assert (notes, resized.config["input_size"], resized.weights) == ([], (3, 32, 32), same.weights)


@pytest.mark.parametrize("network", ["base_encoder", "momentum_encoder"])
def test_another_number_of_attention_heads(network, tmp_path):
    """MoCo v3's ViT-S has twice those of any other, and tensors of the same shapes."""
    file, arguments = PUBLISHED["mocov3-s16"][0].smaller()
    content = {"state_dict": behind(f"module.{network}.", values_of(file.tensors()))}
    model = {"model": "vit_small_patch16_224"}
    message = refusal(tmp_path, content, **model, arguments=arguments)
    assert re.search(r"those of mocov3-s16\. .* 12 attention heads, vit_small_patch16_224 6, and no", message)
    for n_heads in (6, 12):
        encoder, _ = load(tmp_path, content, **model, arguments={**arguments, "num_heads": n_heads})
        assert encoder.model.blocks[0].attn.num_heads == n_heads
