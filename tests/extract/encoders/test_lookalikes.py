"""Files of one training under the name of another of the same architecture: refused, or loaded with a word on it.

Those that an entry declares as its own are tested by the contract of encoders; these are of none, or of parts of a training.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.encoders import ENCODERS
from store import BeyondClsError
from tests.extract.encoders.official import loaded, placed, takes, values_of, written, zeros_of
from tests.extract.encoders.published import OF_ALL, OF_EACH, PUBLISHED, VIT_B, VIT_S, Vit
from tests.extract.encoders.reference import offsets

DEPTH = 2
State = dict[str, Tensor]


def zeros(vit: Vit, **changes: Any) -> State:
    return zeros_of(replace(vit, depth=DEPTH, **changes).tensors())


def more(*names: str) -> State:
    """Tensors of these names that do not belong to an encoder."""
    return {name: torch.zeros(1) for name in names}


def at(place: str, *states: State) -> dict[str, Any]:
    return placed({}, place, {name: value for state in states for name, value in state.items()})


def with_head(content: dict[str, Any]) -> dict[str, Any]:
    return placed(content, "teacher/head.", more("last_layer2.weight_g"))


HEAD = more("head.weight", "head.bias")
WORDS = more("mask_token", "lm_head.weight", "lm_head.bias")
VIT, AVERAGED = zeros(VIT_S), zeros(VIT_S, names={"norm": "fc_norm"})
SHARED, OWN = (zeros(VIT_B, names=names) for names in (OF_ALL, OF_EACH))
OWN_AVERAGED = zeros(VIT_B, names=OF_EACH | {"norm": "fc_norm"})
DINOV2 = zeros(PUBLISHED["dinov2-s14"][0])
FAMILIES = ("mae", "mocov3", "dino", "ibot", "ijepa", "capi", "beit", "simmim", "maskfeat", "deit", "augreg")
# Without a name that tells who wrote it; with a classifier.
BARE, TUNED = ("deit-s16", "augreg-s16"), ("mae-ft-s16", "deit-s16", "augreg-s16")
FILES: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...]]] = {
    # what it is: its content, the entry whose it is and that sees so, entries that take it with a word on what they assume
    "any of timm without classifier": (VIT, None, ("mae-s16", "dino-s16", "ibot-s16", *BARE)),
    "of timm, with classifier": (VIT | HEAD, None, TUNED),
    "of timm, fine-tuned through the average": (AVERAGED | HEAD, "mae-ft-s16", ()),
    "iBOT, student": (at("state_dict/", VIT, more("masked_embed")), None, ()),
    "iBOT, teacher": (at("state_dict/", VIT), None, ("mae-s16", "ibot-s16", *BARE)),
    "iBOT, teacher with head": (with_head(at("teacher/backbone.", VIT)), "ibot-s16", ()),
    "teacher": (at("teacher/backbone.", VIT), None, ("dino-s16", "ibot-s16")),
    "MoCo v3, momentum encoder": (at("state_dict/module.momentum_encoder.", VIT), None, ()),
    "BEiT v2 fine-tuned, average": (at("model/", OWN_AVERAGED, HEAD) | {"args": {}}, None, ()),
    "BEiT v2 fine-tuned, [cls]": (at("model/", OWN, HEAD), None, ()),
    "BEiT": (at("model/", SHARED, WORDS), None, ()),
    "DINOv2 fine-tuned": (DINOV2 | HEAD, None, ()),
}


@pytest.mark.parametrize("file", FILES)
def test_against_every_transformer(file):
    content, entry, unsure = FILES[file]
    taken = [name for name in ENCODERS if name.startswith(FAMILIES) and takes(name, content, depth=DEPTH)]
    assert {name for name in taken if ENCODERS[name].is_confirmed_by(content)} == ({entry} if entry else set())
    assert {name for name in taken if not ENCODERS[name].is_confirmed_by(content)} == set(unsure)


NETWORK = {"module.norm.weight": torch.zeros(3)}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # what it is: under which name, its content, what is said
    "MAE before fine-tuning": ("mae-ft-s16", at("model/", VIT), r"neither `head\.weight` nor .*; load it as mae-s16"),
    "MoCo v3, momentum encoder": ("mocov3-s16", at("state_dict/module.momentum_encoder.", VIT), r"without `base_encoder\.\*`"),
    "iBOT under DINO's name": ("dino-s16", written(PUBLISHED["ibot-s16"][1], values=zeros_of), "`ibot_loss`, .*as ibot-s16"),
    "DINO under iBOT's name": ("ibot-s16", written(PUBLISHED["dino-s16"][1], values=zeros_of), "`dino_loss`, .*as dino-s16"),
    "DINO without teacher": ("dino-s16", {"student": VIT, "dino_loss": {}}, "in 'teacher'; it holds student, dino_loss"),
    "iBOT without teacher": ("ibot-s16", {"student": VIT, "epoch": 3}, "in 'teacher', in 'state_dict'; it holds student, "),
    "iBOT, student": ("ibot-s16", at("state_dict/", VIT, more("masked_embed")), r"`masked_embed`, .* checkpoint_teacher\.pth"),
    "the first BEiT": ("beitv2-b16", at("model/", SHARED, WORDS), r"`lm_head\.\*` without `cls_pt_layers\.\*`"),
    "BEiT v2 fine-tuned": ("simmim-ft-b16", at("model/", OWN_AVERAGED, HEAD) | {"args": {}}, "`args`, .*--model beit_base"),
    "SimMIM with keys relative to queries": (
        "simmim-b16",
        at("model/encoder.", SHARED, {"rel_pos_bias.relative_position_index": offsets(14).T}),
        r"rel_pos_bias\.relative_position_index \[197, 197\] is not BEiT's order",
    ),
    **{
        f"I-JEPA, {what}": ("ijepa-h14", content, r"has no `target_encoder`; it holds .*Give the full checkpoint, as `encoder`")
        for what, content in {
            "only the other": {"encoder": NETWORK, "epoch": 3},
            "bare": NETWORK,
            "of whom?": {"state_dict": NETWORK},
            "nothing": {},
        }.items()
    },
    **{
        f"I-JEPA, {broken}": ("ijepa-h14", {"encoder": NETWORK, "target_encoder": broken}, "no dictionary of tensors")
        for broken in (None, {}, {"module.norm.weight": 3})  # nothing else is taken in its place
    },
}


@pytest.mark.parametrize("file", REFUSED)
def test_is_refused(file):
    name, content, message = REFUSED[file]
    with pytest.raises(BeyondClsError, match=message):
        ENCODERS[name].read(content)


def test_mocov3_without_the_authors_prefixes(tmp_path):
    """Any ViT-S would fit, and run with twice its attention heads. The message's remedy makes it a file that loads."""
    file, arguments = PUBLISHED["mocov3-s16"][0].smaller()
    state = values_of(file.tensors())
    with pytest.raises(BeyondClsError, match=r"begins with `base_encoder\.` or `module\.`, .* torch\.save") as caught:
        loaded("mocov3-s16", {"model": state}, tmp_path, **arguments)
    remedy = re.sub(r", 'mocov3.pth'\)$", "", str(caught.value).partition("back: torch.save(")[2])
    encoder = loaded("mocov3-s16", eval(remedy, {"state": state}), tmp_path, **arguments)
    assert encoder.weights == loaded("mocov3-s16", written(file, state), tmp_path, **arguments).weights
