"""Files of one training under the name of another of the same architecture: refused, or loaded with a word on it."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.encoders import ENCODERS
from extract.encoders.weights import CLASSIFIER
from store import BeyondClsError
from tests.extract.encoders import test_capi, test_convnext, test_dinov2, test_dinov3, test_ijepa, test_mixer
from tests.extract.encoders.beit import beit_shapes, block_shapes, with_indices
from tests.extract.encoders.official import Shapes, shapes_of, vit_shapes

DEPTH = 2
State = dict[str, Tensor]


def zeros(shapes: Shapes) -> State:
    """Tensors that take no memory, and that can be computed with."""
    return {name: torch.zeros(()).expand(tuple(shape)) for name, shape in shapes.items()}


def small(*names: str) -> State:
    """Tensors of these names that are no part of an encoder."""
    return zeros(dict.fromkeys(names, (1,)))


def below(prefix: str, *states: State) -> State:
    return {f"{prefix}{name}": value for state in states for name, value in state.items()}


def averaged(state: State) -> State:
    """After fine-tuning through the average: the norm is behind pooling."""
    return {f"fc_{name}" if name.startswith("norm.") else name: value for name, value in state.items()} | HEAD


def student_and_teacher(loss: str, head: State, masked: State) -> dict[str, Any]:
    student, teacher = (below("backbone.", VIT, more) | below("head.", head) for more in (masked, {}))
    return {"student": below("module.", student), "teacher": teacher, "epoch": 1, loss: small("center")}


HEAD = small("head.weight", "head.bias")
VIT = zeros(vit_shapes(384, DEPTH, 16, 197))
NORMLESS = {name: x for name, x in zeros(vit_shapes(768, DEPTH, 16, 197)).items() if not name.startswith("norm.")}
SHARED, OWN = (with_indices(zeros(beit_shapes(768, DEPTH, 12, shared=shared))) for shared in (True, False))
WORDS = small("mask_token", "lm_head.weight", "lm_head.bias")
DINO_HEAD = small("mlp.0.weight", "last_layer.weight_g", "last_layer.weight_v")
TARGET = zeros(test_ijepa.official("h14", DEPTH))

# Without a name that tells who wrote it; with a classifier; the four CAPI, of one shape.
BARE, TUNED = ("deit-s16", "augreg-s16"), ("mae-ft-s16", "deit-s16", "augreg-s16")
CAPI = ("capi-l14", "capi-l14-in22k", "capi-l14-lvd", "capi-l14-p205")
FILES: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...]]] = {
    # what it is: its content, the entry whose it is and that sees so, entries that take it with a word on what they assume
    "MAE": ({"model": VIT}, None, ("mae-s16", *BARE)),
    "MAE with decoder": ({"model": VIT | small("mask_token", "decoder_embed.weight")}, "mae-s16", ()),
    "MAE fine-tuned, average": ({"model": averaged(VIT)}, "mae-ft-s16", ()),
    "MAE fine-tuned, [cls]": ({"model": VIT | HEAD}, None, TUNED),
    "DeiT": ({"model": VIT | HEAD, "args": {}}, None, TUNED),
    "of timm, with classifier": (VIT | HEAD, None, TUNED),
    "DINO, backbone, or any of timm without classifier": (VIT, None, ("mae-s16", "dino-s16", "ibot-s16", *BARE)),
    "DINO": (student_and_teacher("dino_loss", DINO_HEAD, {}), "dino-s16", ()),
    "iBOT, teacher": ({"state_dict": VIT}, None, ("mae-s16", "ibot-s16", *BARE)),
    "iBOT, student": ({"state_dict": VIT | small("masked_embed")}, None, ()),
    "iBOT": (student_and_teacher("ibot_loss", DINO_HEAD, small("masked_embed")), "ibot-s16", ()),
    "iBOT, teacher with head": (
        {"teacher": below("head.", small("last_layer2.weight_g")) | below("backbone.", VIT)},
        "ibot-s16",
        (),
    ),
    "teacher": ({"teacher": below("backbone.", VIT)}, None, ("dino-s16", "ibot-s16")),
    "MoCo v3": ({"state_dict": below("module.base_encoder.", VIT) | below("module.momentum_encoder.", VIT)}, "mocov3-s16", ()),
    "MoCo v3, classifier": ({"state_dict": below("module.", VIT, HEAD)}, None, ("mocov3-s16",)),
    "MoCo v3, momentum encoder": ({"state_dict": below("module.momentum_encoder.", VIT)}, None, ()),
    "MaskFeat": ({"model_state": NORMLESS | small("mask_token", "hogs.0.weight_x", "pred_head.a")}, "maskfeat-b16", ()),
    "SimMIM": ({"model": below("encoder.", SHARED, small("mask_token")) | small("decoder.0.weight")}, "simmim-b16", ()),
    "SimMIM fine-tuned": ({"model": averaged(OWN), "config": {}}, "simmim-ft-b16", ()),
    "SimMIM or BEiT fine-tuned, weights alone": ({"model": averaged(OWN)}, None, ("simmim-ft-b16",)),
    "BEiT v2": ({"model": SHARED | WORDS | zeros(block_shapes("cls_pt_layers.0.", 768))}, "beitv2-b16", ()),
    "BEiT v2 of timm": (OWN, None, ("simmim-b16", "beitv2-b16")),
    "BEiT v2 fine-tuned, average": ({"model": averaged(OWN), "args": {}}, None, ()),
    "BEiT v2 fine-tuned, [cls]": ({"model": OWN | HEAD}, None, ()),
    "BEiT": ({"model": SHARED | WORDS}, None, ()),
    "DINOv2": (zeros(test_dinov2.official(384, DEPTH)), "dinov2-s14", ()),
    "DINOv2 with registers": (zeros(test_dinov2.official(384, DEPTH, registers=True)), "dinov2-reg-s14", ()),
    "DINOv2 fine-tuned": (zeros(test_dinov2.official(384, DEPTH)) | HEAD, None, ()),
    "DINOv3": (zeros(test_dinov3.published_shapes(384, DEPTH) | {"rope_embed.periods": (16,)}), "dinov3-s16", ()),
    "I-JEPA": (test_ijepa.full_checkpoint(TARGET, TARGET), "ijepa-h14", ()),
    "CAPI": (below("backbone.", zeros(test_capi.encoder_shapes(DEPTH))), None, CAPI),
    "ConvNeXt": ({"model": zeros(test_convnext.official_shapes((96, 192, 384, 768), (3, 3, 9, 3)))}, "convnext-t", ()),
    "MLP-Mixer": (zeros(test_mixer.official_shapes(196)), "mixer-b16", ()),
}


@cache
def expected(name: str, **arguments: Any) -> dict[str, tuple[int, ...]]:
    return shapes_of(name, **({} if name.startswith(("convnext", "mixer")) else {"depth": DEPTH}), **arguments)


def takes(name: str, content: Mapping[str, Any]) -> bool:
    try:
        state, arguments = ENCODERS[name].read(content)
    except BeyondClsError:
        return False
    shapes = {key: tuple(value.shape) for key, value in state.items() if key not in CLASSIFIER}
    return shapes == expected(name, **arguments)


@pytest.mark.parametrize("file", FILES)
def test_against_every_entry(file: str) -> None:
    content, entry, unsure = FILES[file]
    taken = [name for name in ENCODERS if takes(name, content)]
    assert {name for name in taken if ENCODERS[name].is_told_by(content)} == ({entry} if entry else set())
    assert {name for name in taken if not ENCODERS[name].is_told_by(content)} == set(unsure)
