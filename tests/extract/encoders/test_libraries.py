"""Models of other libraries, small and with random weights: tokens and attention are those that the library itself puts out."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

from extract.attention import PER_BLOCK, STATISTICS
from extract.encoders import load_encoder
from extract.encoders.libraries import _arguments_of_processor, of_transformers
from store import BeyondClsError
from tests.extract.encoders.test_wrapped import CLOSE, wrapped

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")
torchvision = pytest.importorskip("torchvision")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
SMALL |= {"image_size": 32, "patch_size": 8, "attn_implementation": "eager"}
# model class -> what its configuration has beside SMALL, [cls], registers, whether a norm is stored
TRANSFORMERS = {
    "ViTModel": ({}, True, 0, True),
    "DeiTModel": ({}, True, 1, True),  # the distillation token counts as a register
    "ViTMAEModel": ({}, True, 0, True),
    "BeitModel": ({"use_relative_position_bias": True, "use_mask_token": True}, True, 0, False),
    "Dinov2Model": ({}, True, 0, True),
    "Dinov2WithRegistersModel": ({"num_register_tokens": 4}, True, 4, True),
    "DINOv3ViTModel": ({"num_register_tokens": 4}, True, 4, True),
    "CLIPVisionModel": ({}, True, 0, True),
    "Siglip2VisionModel": ({"num_patches": 16}, False, 0, True),
    "Aimv2VisionModel": ({}, False, 0, False),  # an RMSNorm with weights
}


def of_library(name: str):
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    return of_transformers(cls(cls.config_class(**SMALL, **TRANSFORMERS[name][0])).eval())


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    made, (_, has_cls, n_registers, has_norm) = of_library(name), TRANSFORMERS[name]
    encoder = wrapped(made.model, **made.known)
    assert (encoder.layout.has_cls, encoder.layout.n_registers, encoder.layout.grid) == (has_cls, n_registers, (4, 4))
    assert bool(encoder.norm()[0]) == has_norm
    assert set(encoder.statistics) >= {"patch_self", "patch_patch_entropy", "patch_norm_ratio"}
    forward, outputs = made.model.forward, []  # with what it computes on the way
    made.model.forward = lambda **given: outputs.append(forward(**given, output_attentions=True, output_hidden_states=True))
    with torch.inference_mode():
        made.known["forward"](made.model, IMAGES)
    made.model.forward, (own,) = forward, outputs
    out, prefix = encoder(IMAGES, [0, 1], encoder.statistics, [0, 1]), encoder.layout.n_prefix
    torch.testing.assert_close(out.patch[0], own.hidden_states[1][:, prefix:], **CLOSE)
    for block, a in enumerate(own.attentions):
        for row, token in ({"centre": prefix + 10} | ({"cls": 0} if has_cls else {})).items():
            torch.testing.assert_close(out.maps[f"{row}/block{block}"], a[:, :, token, prefix:], **CLOSE)
    if name != "CLIPVisionModel":  # whose output is not normalised; [cls] alone is
        torch.testing.assert_close(encoder.model.forward_features(IMAGES), own.last_hidden_state, **CLOSE)


def test_other_sizes_interpolate_positions():
    made = of_library("Dinov2Model")
    assert wrapped(made.model, **made.known, input_size=48).layout.grid == (6, 6)


TORCHVISION = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 48}
OPEN_CLIP = {"image_size": 32, "patch_size": 8, "width": 24, "layers": 2, "heads": 3, "mlp_ratio": 2.0}
OPEN_CLIP |= {"attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 4}
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torchvision.models.VisionTransformer, TORCHVISION),
        (open_clip.transformer.VisionTransformer, OPEN_CLIP),
        (timm.create_model, TIMM | {"model_name": "vit_tiny_patch16_224"}),
        (timm.create_model, TIMM | {"model_name": "eva02_tiny_patch14_224"}),
    ],
)
def test_other_libraries(make, options):
    torch.manual_seed(0)
    model = make(**options).eval()
    encoder = wrapped(model)
    assert (encoder.layout.has_cls, encoder.layout.grid, encoder.n_blocks) == (True, (4, 4), 2)
    assert set(encoder.statistics) == {*STATISTICS, *PER_BLOCK}
    outs, attended = [], []
    hooks = [block.register_forward_hook(lambda _m, _i, x: outs.append(x)) for block in encoder.model.blocks]
    for branch in encoder.model.branches:
        hooks.append(branch.register_forward_pre_hook(lambda *given: attended.append(given), with_kwargs=True))
    with torch.inference_mode():
        model(IMAGES)
    for hook in hooks:
        hook.remove()
    out, prefix = encoder(IMAGES, [0, 1], encoder.statistics, [0]), encoder.layout.n_prefix
    for block in (0, 1):
        torch.testing.assert_close(out.patch[block], outs[block][:, prefix:], **CLOSE)
    module, inputs, given = attended[0]
    if isinstance(module, torch.nn.MultiheadAttention):  # torch's own weights
        x = inputs[0] if inputs else given["query"]
        with torch.inference_mode():
            _, a = module(x, x, x, need_weights=True, average_attn_weights=False)
        torch.testing.assert_close(out.maps["cls/block0"], a[:, :, 0, prefix:], **CLOSE)


def test_a_folder_of_transformers(tmp_path):
    made = of_library("ViTModel")
    made.model.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, resample=2).save_pretrained(tmp_path)
    encoder = load_encoder(f"transformers:{tmp_path}")
    described = [encoder.config[name] for name in ("input_size", "mean", "interpolation")]
    assert described == [(3, 32, 32), (0.5, 0.5, 0.5), "bilinear"]
    torch.testing.assert_close(encoder.model.forward_features(IMAGES), made.model(IMAGES).last_hidden_state)
    twin = load_encoder(f"transformers:{tmp_path}", random_seed=1)
    assert twin.weights != encoder.weights
    assert json.loads(twin.architecture) == {"model": f"transformers:{tmp_path}", "random_seed": 1}


def test_a_folder_of_timm(tmp_path):
    """As timm writes one for a hub: config.json, and safetensors."""
    torch.manual_seed(0)
    arguments = {"depth": 2, "embed_dim": 48, "num_heads": 2, "img_size": 32}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments).eval()
    timm.models.save_for_hf(model, tmp_path / "mine", model_args=arguments, safe_serialization=True)
    encoder = load_encoder(f"local-dir:{tmp_path}/mine")
    assert torch.equal(encoder.model.forward_features(IMAGES), model.forward_features(IMAGES))
    assert (encoder.config["input_size"], encoder.config["mean"]) == ((3, 32, 32), [0.5] * 3)
    with pytest.raises(BeyondClsError, match="nowhere"):
        load_encoder(f"local-dir:{tmp_path}/nowhere")


SQUARE = {"height": 224, "width": 224}


@pytest.mark.parametrize(
    ("size", "crop", "resample", "known"),
    [
        ({"shortest_edge": 256}, {"do_center_crop": True, "crop_size": SQUARE}, 3, (0.875, "center", "bicubic")),
        (SQUARE, {}, 2, (1.0, "squash", "bilinear")),
    ],
)
def test_what_a_processor_does(size, crop, resample, known):
    values = {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]}
    given = _arguments_of_processor(SimpleNamespace(size=size, **crop, resample=resample, **values))
    expected = dict(zip(("crop_pct", "crop_mode", "interpolation"), known, strict=True))
    assert given == {**expected, "input_size": (224, 224), "mean": (0.1, 0.2, 0.3), "std": (1, 1, 1)}


MINE = """
import timm, torch
import beyondcls

def make(depth=1):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=depth, num_heads=3)

def made():
    return beyondcls.wrap(make(2), has_cls=True, mean=(0.5,) * 3, std=(0.5,) * 3, block=0)

def wrong():
    return "no model"

def fails():
    raise ValueError("no weights")

not_a_function = 3
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


def test_a_function_in_a_file(mine):
    given = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    one = load_encoder(f"{mine}:make", **given)
    two = load_encoder("deep", model=f"{mine}:make", arguments={"depth": 2}, **given)
    assert (one.n_blocks, two.n_blocks, two.name) == (1, 2, "deep")
    assert json.loads(two.architecture) == json.loads(one.architecture) | {"depth": 2}
    wrapped_there = load_encoder("there", model=f"{mine}:made", crop_pct=1.0, family="labels")
    assert (wrapped_there.block, wrapped_there.config["crop_pct"], wrapped_there.config["mean"]) == (0, 1.0, [0.5] * 3)
    assert (wrapped_there.name, wrapped_there.pretraining.family) == ("there", "labels")
    Path(mine).write_text(MINE + "\n# edited\n")
    assert load_encoder(f"{mine}:make", **given).architecture != one.architecture


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("FILE:wrong", {}, "FILE:wrong returns str, expected a torch.nn.Module"),
        ("FILE:fails", {}, r"FILE:fails fails in line \d+ \(ValueError: no weights\); mend it"),
        *((f"FILE:{name}", {}, f"has no function '{name}'") for name in ("lost", "not_a_function")),
        ("nowhere.py:make", {}, "there is no file 'nowhere.py'"),
        ("FILE:make", {"checkpoint": "w.pth"}, "makes its own model; leave --checkpoint out, and read w.pth there"),
        ("FILE:make", {"weights": "0" * 32}, "have digest .*, expected 0{32}"),
        ("FILE:made", {"input_size": 64}, "has wrapped it for its own input size; leave input_size out"),
        ("torchvision:no_such_vit", {"random_seed": 0}, "torchvision:no_such_vit could not be loaded"),
    ],
)
@pytest.mark.filterwarnings("ignore::store.errors.BeyondClsWarning")
def test_what_a_user_should_do(mine, name, options, message):
    with pytest.raises(BeyondClsError, match=message.replace("FILE", re.escape(mine))):
        load_encoder(name.replace("FILE", mine), **options)


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BeyondClsError, match=r"needs transformers .*: pip install 'beyondcls\[transformers\]'"):
        load_encoder("transformers:google/vit")
