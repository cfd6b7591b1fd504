"""Single families: what the contract of encoders does not see, and files of one training under the name of another.

Files that an entry declares as its own are tested by the contract; these are of none, or of parts of a training.
"""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.capi import initial_frequencies
from extract.encoders.pretrained import cls_caution, listing_of, timm_model
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.saved import load_probe, save_probe
from store import BeyondClsError
from tests.extract.encoders.official import loaded, placed, takes, values_of, written, zeros_of
from tests.extract.encoders.published import OF_ALL, OF_EACH, PUBLISHED, VIT_B, VIT_S, Vit
from tests.extract.encoders.reference import offsets
from tests.extract.extracting import extract

DEPTH = 2
State = dict[str, Tensor]


def zeros(vit: Vit, **changes: Any) -> State:
    return zeros_of(replace(vit, depth=DEPTH, **changes).tensors())


def more(*names: str) -> State:
    """Tensors of these names that do not belong to an encoder."""
    return {name: torch.zeros(1) for name in names}


def at(place: str, *states: State) -> dict[str, Any]:
    return placed({}, place, {name: value for state in states for name, value in state.items()})


HEAD = more("head.weight", "head.bias")
WORDS = more("mask_token", "lm_head.weight", "lm_head.bias")
VIT, AVERAGED = zeros(VIT_S), zeros(VIT_S, names={"norm": "fc_norm"})
SHARED, OWN = (zeros(VIT_B, names=names) for names in (OF_ALL, OF_EACH))
OWN_AVERAGED = at("model/", zeros(VIT_B, names=OF_EACH | {"norm": "fc_norm"}), HEAD) | {"args": {}}
FAMILIES = ("mae", "mocov3", "dino", "ibot", "ijepa", "capi", "beit", "simmim", "maskfeat", "deit", "augreg")
# Without a name that tells who wrote it; with a classifier.
BARE, TUNED = {"deit-s16", "augreg-s16"}, {"mae-ft-s16", "deit-s16", "augreg-s16"}
FILES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    # what it is: its content, the entry whose it is and that sees so, entries that take it with a word on what they assume
    "any of timm without classifier": (VIT, set(), {"mae-s16", "dino-s16", "ibot-s16", *BARE}),
    "of timm, fine-tuned through the average": (AVERAGED | HEAD, {"mae-ft-s16"}, set()),
    "iBOT, teacher": (at("state_dict/", VIT), set(), {"mae-s16", "ibot-s16", *BARE}),
    "iBOT, teacher with head": (
        at("teacher/", {**at("backbone.", VIT), **more("head.last_layer2.weight_g")}),
        {"ibot-s16"},
        set(),
    ),
    "teacher": (at("teacher/backbone.", VIT), set(), {"dino-s16", "ibot-s16"}),
    "MoCo v3, momentum encoder": (at("state_dict/module.momentum_encoder.", VIT), set(), set()),
    "BEiT v2 fine-tuned, average": (OWN_AVERAGED, set(), set()),
    "BEiT": (at("model/", SHARED, WORDS), set(), set()),
    "DINOv2 fine-tuned": (zeros(PUBLISHED["dinov2-s14"][0]) | HEAD, set(), set()),
}


@pytest.mark.parametrize("file", FILES)
def test_against_every_transformer(file):
    content, sure, unsure = FILES[file]
    taken = {name for name in ENCODERS if name.startswith(FAMILIES) and takes(name, content, depth=DEPTH)}
    assert (sure, taken - sure) == ({name for name in taken if ENCODERS[name].is_confirmed_by(content)}, unsure)


NETWORK = {"module.norm.weight": torch.zeros(3)}
FULL = "has no `target_encoder`; it holds .*Give the full checkpoint, as `encoder`"
ORDER = {"rel_pos_bias.relative_position_index": offsets(14).T}  # of keys relative to queries


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mae-ft-s16", at("model/", VIT), r"neither `head\.weight` nor .*; load it as mae-s16"),
        ("mocov3-s16", at("state_dict/module.momentum_encoder.", VIT), r"without `base_encoder\.\*`"),
        ("dino-s16", written(PUBLISHED["ibot-s16"][1], values=zeros_of), "`ibot_loss`, .*as ibot-s16"),
        ("ibot-s16", written(PUBLISHED["dino-s16"][1], values=zeros_of), "`dino_loss`, .*as dino-s16"),
        ("dino-s16", {"student": VIT, "dino_loss": {}}, "in 'teacher'; it holds student, dino_loss"),
        ("ibot-s16", at("state_dict/", VIT, more("masked_embed")), r"`masked_embed`, .* checkpoint_teacher\.pth"),
        ("beitv2-b16", at("model/", SHARED, WORDS), r"`lm_head\.\*` without `cls_pt_layers\.\*`"),
        ("simmim-ft-b16", OWN_AVERAGED, "`args`, .*--model beit_base"),
        ("simmim-b16", at("model/encoder.", SHARED, ORDER), r"position_index \[197, 197\] is not BEiT's order"),
        *(("ijepa-h14", content, FULL) for content in ({"encoder": NETWORK, "epoch": 3}, {})),
        # Nothing else is taken in its place.
        ("ijepa-h14", {"encoder": NETWORK, "target_encoder": {}}, "no dictionary of tensors"),
    ],
)
def test_is_refused(name, content, message):
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


def test_frequencies_at_the_start():
    """7 to 0.0007 turns per image side; rows turn the first half of channels, columns the second."""
    turns = initial_frequencies(64) / (2 * math.pi)
    torch.testing.assert_close(turns[0, :16], 7 * torch.logspace(0, -4, 16))
    assert torch.equal(turns, torch.block_diag(*(turns[0, :16].repeat(2),) * 2))


def test_capi_takes_other_sizes_and_heads_apply_its_final_norm(forty, tmp_path):
    """Positions are fractions of the image; the norm is by the root mean square, without parameters, in saved heads, too."""
    encoder = load_encoder("capi-l14", random_seed=0, arguments={"img_size": 56, "depth": 1, "dim": 32, "n_heads": 2})
    assert (encoder.described_transform["input_size"], encoder.grid) == ([3, 56, 56], (4, 4))
    store = extract(encoder, forty.part(range(4)), tmp_path / "features", dtype="float32")
    assert "norm/weight" not in store.arrays
    norm, spec = FinalNorm.from_store(store), HeadSpec("average", final_norm=True)
    tokens = torch.from_numpy(store.tokens("patch").all())
    inputs = torch.stack([encoder.views.cut(forty.image(row), "x", 0)[0] for row in range(4)])
    expected = encoder.model.forward_features(encoder.normalised(inputs))[:, 16:]
    torch.testing.assert_close(norm({"patch": tokens})["patch"], expected, rtol=1e-4, atol=1e-4)
    head = spec.build(32, 16, 3, norm).eval()
    save_probe(tmp_path / "p", head, spec, 16, {})
    assert torch.equal(load_probe(tmp_path / "p")({"patch": tokens})[0], head({"patch": tokens})[0])


def test_what_a_classifier_says_of_a_fine_tuned_mae(tmp_path):
    """Its architecture, and a caution about [cls]; not of one that was not trained at all, or has no [cls]."""
    for file, pooling, caution in zip(
        PUBLISHED["mae-ft-s16"], ("avg", "token"), ("fine-tuned through the average", ""), strict=True
    ):
        small, arguments = file.smaller()
        encoder = loaded("mae-ft-s16", written(small), tmp_path, **arguments)
        assert f'"global_pool": "{pooling}"' in encoder.architecture
        assert encoder.cls_caution[:30] == caution
    assert load_encoder("mae-ft-s16", random_seed=0, arguments=arguments).cls_caution == ""
    without_cls = {"embed_dim": 32, "depth": 1, "num_heads": 2, "global_pool": "avg", "fc_norm": True, "class_token": False}
    assert not cls_caution(timm_model("vit_tiny_patch16_224", **without_cls))


def test_weights_come_from_the_hub(monkeypatch):
    made, create, tag = [], timm.create_model, "vit_small_patch16_224.augreg_in1k"

    def offline(model, pretrained, **arguments):
        made.append((model, pretrained, arguments["num_classes"]))
        return create(model, pretrained=False, **arguments)

    assert timm.get_pretrained_cfg(tag).hf_hub_id == f"timm/{tag}", "timm knows these weights"
    monkeypatch.setattr(timm, "create_model", offline)
    encoder = load_encoder("augreg-s16", arguments={"depth": 1})
    assert made == [(tag, True, 0)]
    assert "augreg" not in encoder.architecture, "weights have their own digest"


@pytest.mark.parametrize("seed", [None, 0])
def test_without_attention(seed, monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **arguments: create(name, **arguments))
    encoder = load_encoder("convnext_atto.d2_in1k", random_seed=seed)
    assert not encoder.attends
    assert encoder(torch.zeros(1, 3, 64, 64), [3]).patch[3].shape == (1, 4, 320)


@pytest.mark.parametrize(
    ("name", "millions", "tokens", "block"),
    [
        ("ijepa-h14", 630.8, "256", 31),
        ("capi-l14", 302.7, "16 registers + 256", 23),
        ("convnext-b", 87.6, "49", 3),
    ],
)
def test_known_sizes(name, millions, tokens, block):
    of = listing_of(ENCODERS[name])
    assert of.n_parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert (of.tokens, of.block) == (tokens, block)


@pytest.mark.parametrize("name", ENCODERS)
def test_transform_is_that_of_the_official_code(name):
    """Timm's BEiT has a mean of 0.5, BEiT v2 not (--imagenet_default_mean_and_std). The contract compares the input size."""
    seen = {"crop_mode": "center", **ENCODERS[name].transform}
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if name.startswith("quickstart"):
        mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    if name.startswith(("augreg", "mixer")):
        mean = std = (0.5,) * 3
    share = 1.0 if name.startswith("quickstart") else 0.875
    assert seen == {"mean": mean, "std": std, "crop_pct": share, "crop_mode": "center", "interpolation": "bicubic"}
