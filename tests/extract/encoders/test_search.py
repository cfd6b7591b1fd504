"""A file of one's own: where the encoder is in it, what is beside it, and what is refused."""

import re
import shlex
import warnings
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from extract.encoders import Encoder, load_encoder
from extract.encoders.pretrained import timm_model
from extract.encoders.search import find
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
    """The encoder, and what was noted of its file."""
    torch.save(content, folder / "w.pth")
    options = {"model": MODEL, "arguments": SMALL, **options}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BeyondClsWarning)
        encoder = load_encoder("mine", checkpoint=folder / "w.pth", **options)
    notes = [str(warning.message) for warning in caught]
    return encoder, [note for note in notes if note.startswith("mine: ")]


def refusal(folder: Path, content: Any, **options: Any) -> str:
    with pytest.raises(BeyondClsError) as caught:
        load(folder, content, **options)
    return str(caught.value)


def which(encoder: Encoder) -> int:
    """The network whose every value it has."""
    state = encoder.model.state_dict()
    (index,) = [i for i, one in enumerate(NETWORKS) if all(torch.equal(state[name], value) for name, value in one.items())]
    return index


def options_in(text: str) -> list[dict[str, str]]:
    """Keys and prefixes that a message names."""
    pairs = re.findall(r"--checkpoint-key (\S+?) --checkpoint-prefix ([^\s,;]+)", text)
    return [{"checkpoint_key": shlex.split(key)[0], "checkpoint_prefix": shlex.split(prefix)[0]} for key, prefix in pairs]


def behind(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def one(*names: str) -> State:
    """Tensors that are not the encoder's."""
    return {name: torch.zeros(1) for name in names}


def wrapped(state: Mapping[str, Tensor]) -> State:
    """Names of a model whose blocks FSDP shards, and whose MLPs are computed again on the way back."""
    inner = {"blocks.0.": "blocks.0._fsdp_wrapped_module.", "mlp.": "mlp._checkpoint_wrapped_module."}
    names = {name: name for name in state}
    for plain, other in inner.items():
        names = {name: text.replace(plain, other) for name, text in names.items()}
    return {names[name]: value for name, value in state.items()}


PREFIXES = ("model.", "module.", "backbone.", "encoder.", "teacher.backbone.", "timm_model.", "net.0.", "visual.trunk.")


class TestPrefixes:
    @pytest.mark.parametrize(("prefix", "place"), zip(PREFIXES, cycle(["state_dict", "model", None]), strict=False))
    def test_is_removed_and_noted(self, prefix, place, tmp_path):
        state = behind(prefix, A)
        encoder, (note,) = load(tmp_path, {place: state, "epoch": 3} if place else state)
        assert encoder.weights == tiny_encoder(0, depth=1).weights
        assert options_in(note) == [{"checkpoint_key": place or "", "checkpoint_prefix": prefix}]

    @pytest.mark.parametrize(
        ("prefix", "part"),
        [
            ("_orig_mod.", "_orig_mod"),
            ("module._orig_mod.", "_orig_mod"),
            ("_orig_mod.module.", "_orig_mod"),
            ("_fsdp_wrapped_module.", "_fsdp_wrapped_module"),
            ("model._forward_module.backbone.", "_forward_module"),
        ],
    )
    def test_of_how_a_training_ran(self, prefix, part, tmp_path):
        content = {"model": behind(prefix, A)}
        encoder, notes = load(tmp_path, content)
        assert which(encoder) == 0
        assert notes[-1].endswith(f"without {part}")
        assert which(load(tmp_path, content, checkpoint_prefix=prefix)[0]) == 0, "as it is in the file"

    def test_amid_names(self, tmp_path):
        encoder, notes = load(tmp_path, behind("_fsdp_wrapped_module.", wrapped(A)))
        assert which(encoder) == 0
        assert notes == ["mine: names are taken without _fsdp_wrapped_module, _checkpoint_wrapped_module"]

    def test_names_that_would_be_one(self, tmp_path):
        """Of two tensors, none is the right one without a word."""
        both = A | {"blocks.0._orig_mod.norm1.weight": torch.ones(32)}
        assert "unexpected (1): blocks.0._orig_mod.norm1.weight" in refusal(tmp_path, both)

    def test_as_it_was_before(self, tmp_path):
        for content in (A, {"model": A}, {"state_dict": A, "optimizer": {"state": {0: one("exp_avg")}}}):
            encoder, notes = load(tmp_path, content)
            assert (which(encoder), notes) == (0, [])


@pytest.mark.parametrize(
    "key",
    [
        "module",
        "teacher",
        "target_encoder",
        "state_dict_ema",
        "model_ema",
        "model/ema",
        "classy_state_dict/base_model/model/trunk",
    ],
)
def test_a_key_is_found_and_noted(key, tmp_path):
    content = A
    for part in reversed(key.split("/")):
        content = {part: content, "epoch": 3}
    encoder, (note,) = load(tmp_path, content)
    assert which(encoder) == 0
    assert options_in(note) == [{"checkpoint_key": key, "checkpoint_prefix": ""}]


HEAD = one("head.weight", "head.bias")
DECODER = one("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pred.bias")
DINO_HEAD = one("head.mlp.0.weight", "head.last_layer.weight_g")
HEADS = one("dino_head.mlp.0.weight", "ibot_head.last_layer.weight_v")
# What it is: its content, and how many other networks are in it. The first is taken.
FILES: dict[str, tuple[dict[str, Any], int]] = {
    "with classifier": ({"model": A | HEAD}, 0),
    "MAE": ({"model": A | DECODER, "epoch": 799}, 0),
    "MAE, compiled, in parallel": ({"model": behind("module._orig_mod.", A | DECODER)}, 0),
    "DINO": ({"teacher": behind("backbone.", A | DINO_HEAD), "student": behind("module.backbone.", B | DINO_HEAD)}, 1),
    "iBOT": ({"student": behind("module.backbone.", B | one("masked_embed")), "teacher": behind("module.backbone.", A)}, 1),
    "DINOv2": ({"teacher": behind("backbone.", A | one("mask_token")) | HEADS, "iteration": 3}, 0),
    "DINOv2 of Lightning": ({"state_dict": behind("student.backbone.", B) | behind("teacher.backbone.", A) | HEADS}, 1),
    "teacher beside bare names": ({"state_dict": B | behind("teacher.", A)}, 1),
    "I-JEPA": ({"encoder": behind("module.", B), "target_encoder": behind("module.", A), "predictor": one("module.w")}, 1),
    "MoCo": ({"state_dict": behind("module.encoder_q.", A) | behind("module.encoder_k.", B) | one("module.queue")}, 1),
    "solo-learn": ({"state_dict": behind("momentum_backbone.", B) | behind("backbone.", A) | one("projector.0.weight")}, 1),
    "BYOL": ({"state_dict": behind("target_network.", B) | behind("online_network.", A)}, 1),
    "average of weights": ({"state_dict_ema": B, "state_dict": A}, 1),
    "average of weights, with heads": ({"model": A | HEAD, "model_ema": B | HEAD}, 1),
    "averages of teacher and student": (
        {"ema": behind("teacher.", B), "net": behind("teacher.", A) | behind("student.", C)},
        2,
    ),
    "average alone": ({"model_ema": {"module": A}, "n": one("x")}, 0),
    "averaged by torch": (behind("module.", A) | one("n_averaged"), 0),
    "DeepSpeed": ({"module": A, "optimizer": {"m": one("x")}}, 0),
    "CLIP": ({"state_dict": behind("module.visual.trunk.", A) | one("module.text.w.weight", "module.logit_scale")}, 0),
    "one under two names": ({"state_dict": behind("net.", A) | behind("compiled._orig_mod.", A)}, 0),
    "bare beside a teacher, as it was": ({"model": A | HEAD, "teacher": B}, 1),
}


@pytest.mark.parametrize("file", FILES)
def test_files_of_trainings(file, tmp_path):
    """One network is taken; each other is noted with the options that choose it."""
    content, n_others = FILES[file]
    encoder, notes = load(tmp_path, content)
    assert which(encoder) == 0
    others = options_in(" ".join(note for note in notes if "not taken" in note))
    assert sorted(which(load(tmp_path, content, **options)[0]) for options in others) == list(range(1, n_others + 1))


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ({"model": A | HEAD}, {"head.*": 2}),
        (
            {"model": behind("module.", A | DECODER)},
            {"mask_token": 1, "decoder_pos_embed": 1, "decoder_embed.*": 1, "decoder_blocks.*": 1, "decoder_pred.*": 1},
        ),
        (
            {"state_dict": behind("teacher.backbone.", A) | behind("teacher.", HEADS)},
            {"teacher.dino_head.*": 1, "teacher.ibot_head.*": 1},
        ),
        (
            {"teacher": behind("backbone.", A | one("mask_token")) | HEADS},
            {"mask_token": 1, "dino_head.*": 1, "ibot_head.*": 1},
        ),
        (behind("backbone.", A) | one("neck.fc0.weight", "neck.fc0.bias", "queue"), {"neck.*": 2, "queue": 1}),
    ],
)
def test_what_is_left_out_is_counted_and_named(content, left, tmp_path):
    (note,) = [note for note in load(tmp_path, content)[1] if "left out: " in note]
    groups = note.partition("left out: ")[2].split(", ")
    assert {group.split(" ")[0]: int((re.search(r"\((\d+)\)", group) or [0, 1])[1]) for group in groups} == left


class TestRefused:
    @pytest.mark.parametrize(
        ("extra", "pattern"),
        [
            ("blocks.0.ls1.gamma", None),
            ("blocks.0.attn.qkv.lora_A.default.weight", None),
            ("norm.extra", None),
            ("blocks.1.norm1.weight", None),
            ("reg_token", "reg_token"),
            ("norm_pre.weight", "norm_pre.*"),
            ("adapter.down.weight", "adapter.*"),
            ("rope.periods", "rope.*"),
        ],
    )
    def test_what_may_concern_tokens(self, extra, pattern, tmp_path):
        """Unless it is to be left out: the message proposes patterns, but for parts of blocks."""
        content = {"model": behind("teacher.backbone.", A | one(extra))}
        message = refusal(tmp_path, content)
        assert "18 of the model's 18 tensors" in message
        assert f"unexpected (1): {extra}." in message
        assert re.findall("--ignore '(.*)'", message) == ([pattern] if pattern else [])
        encoder, notes = load(tmp_path, content, ignore=pattern or extra)
        assert which(encoder) == 0
        assert sum("left out by --ignore" in note for note in notes) == 1

    def test_patterns_leave_nothing_out_that_the_model_has(self, tmp_path):
        assert which(load(tmp_path, A | one("a.x", "b.y"), ignore=["a.*", "b.y"])[0]) == 0
        assert which(load(tmp_path, A | one("a.x", "b.y"), ignore="*")[0]) == 0
        short = {name: value for name, value in A.items() if name != "norm.bias"}
        assert "missing (1): norm.bias" in refusal(tmp_path, behind("module.", short), ignore="*")
        assert "unexpected (1): b.y" in refusal(tmp_path, A | one("a.x", "b.y"), ignore="a.*,c")

    @pytest.mark.parametrize("name", ["cls_token", "patch_embed.proj.bias", "blocks.0.mlp.fc1.weight", "norm.bias"])
    def test_a_tensor_that_is_missing_or_of_another_shape(self, name, tmp_path):
        """Behind a prefix, and though an average has it: networks are not put together."""
        average = {"state_dict_ema": {name: B[name], "blocks.0.norm1.bias": B["blocks.0.norm1.bias"]}}
        short = {n: v for n, v in A.items() if n != name}
        message = refusal(tmp_path, {"model": behind("module.", short)} | average)
        assert f"17 of the model's 18 tensors. missing (1): {name}" in message
        other = refusal(tmp_path, {"model": behind("module.", short | {name: torch.zeros(3, 5)})})
        assert f"other shape (1): {name} [3, 5] for" in other

    def test_several_of_which_no_name_says_which(self, tmp_path):
        content = {"state_dict": behind("left.", A) | behind("right.", B), "ema": C}
        choices = options_in(refusal(tmp_path, content))
        assert [which(load(tmp_path, content, **choice)[0]) for choice in choices] == [0, 1]

    def test_names_of_another_kind(self, tmp_path):
        names = one("vit.embeddings.cls_token", "vit.encoder.layer.0.attention.query.weight", "vit.layernorm.norm.weight")
        message = refusal(tmp_path, {"scaler": one("scale"), "model": names})
        assert "0 of the model's 18 tensors. missing (18): blocks.0" in message
        assert "unexpected (3): vit.embeddings.cls_token, " in message

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
    def test_quantised(self, dtype, tmp_path):
        name = "blocks.0.attn.qkv.weight"
        message = refusal(tmp_path, A | {name: A[name].to(dtype)})
        assert f"has whole numbers in {name}, expected weights that were not quantised" in message

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"checkpoint_key": "techer"}, "--checkpoint-key is 'techer', expected one that holds tensors: teacher, student"),
            ({"checkpoint_prefix": "module."}, r"--checkpoint-prefix is 'module\.', .*; there are backbone\.\* \(36\)"),
            ({"checkpoint_key": "student", "checkpoint_prefix": "x"}, r"--checkpoint-prefix is 'x\.', but no name"),
        ],
    )
    def test_a_choice_that_is_not_there(self, options, message, tmp_path):
        content = {"teacher": behind("backbone.", A), "student": behind("backbone.", B), "epoch": 3}
        with pytest.raises(BeyondClsError, match=message):
            load(tmp_path, content, **options)

    def test_dictionaries_within_themselves(self, tmp_path):
        content = {"model": behind("module.", A)}
        content["model"]["again"] = content
        assert which(load(tmp_path, content)[0]) == 0


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
        small = {"patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
        model = {"model": "beit_base_patch16_224", "arguments": small}
        state = timm_model(model["model"], **small, img_size=40).state_dict()
        encoder, (note,) = load(tmp_path, state, **model)
        assert encoder.config["input_size"] == (3, 40, 40)
        assert "40 x 40 pixels" in note

    def test_of_timms_own_sizes(self):
        """24 x 24 positions of a ViT/16 are for 384 pixels."""
        with torch.device("meta"):
            large = timm.create_model("vit_base_patch16_384", num_classes=0)
            found = find(large.state_dict(), timm_model("vit_base_patch16_224"), None, None)
        assert found.side == 384
        assert find(large.state_dict(), large, None, None).side is None

    def test_what_a_user_gives_wins(self, tmp_path):
        state = tiny_encoder(1, depth=1, img_size=64).model.state_dict()
        assert "give arguments: { img_size: 64 }" in refusal(tmp_path, state)
        resized, notes = load(tmp_path, state, arguments=ANY_SIZE, input_size=32)
        same, _ = load(tmp_path, state, arguments=SMALL | {"img_size": 64}, input_size=32)
        assert notes == []
        assert resized.config["input_size"] == (3, 32, 32)
        assert resized.weights == same.weights

    @pytest.mark.parametrize("n", [1, 18, 19, 51])
    def test_positions_of_no_square(self, n, tmp_path):
        message = refusal(tmp_path, A | {"pos_embed": torch.zeros(1, n, 32)}, arguments=ANY_SIZE)
        assert f"pos_embed [1, {n}, 32] for" in message


class TestRegistry:
    """Files for its names are read as their authors write them; options choose, and the rest is as strict as it was."""

    def load(self, folder: Path, content: Any, **options: Any) -> tuple[Encoder, list[str]]:
        return load(folder, content, model="mae-s16", **options)

    def test_a_prefix_is_proposed_and_removed_when_asked(self, tmp_path):
        content = {"model": behind("module.", A | DECODER)}
        with pytest.raises(BeyondClsError, match=r"Behind a prefix there are 18; give --checkpoint-prefix module\.$"):
            self.load(tmp_path, content)
        assert which(self.load(tmp_path, content, checkpoint_prefix="module")[0]) == 0

    def test_how_a_training_ran(self, tmp_path):
        encoder, notes = self.load(tmp_path, {"model": behind("_orig_mod.", wrapped(A) | DECODER)})
        assert which(encoder) == 0
        assert notes == ["mine: names are taken without _orig_mod, _fsdp_wrapped_module, _checkpoint_wrapped_module"]

    def test_averages(self, tmp_path):
        content = {"model": A | DECODER, "model_ema": B | DECODER}
        encoder, (note,) = self.load(tmp_path, content)
        assert which(encoder) == 0
        (choice,) = options_in(note)
        assert which(self.load(tmp_path, content, **choice)[0]) == 1

    def test_names_to_leave_out(self, tmp_path):
        content = {"model": A | DECODER | one("probe.weight")}
        with pytest.raises(BeyondClsError, match=r"unexpected \(1\): probe\.weight"):
            self.load(tmp_path, content)
        assert which(self.load(tmp_path, content, ignore="probe.*")[0]) == 0

    def test_a_choice_hides_nothing_of_the_rest(self, tmp_path):
        """That a file is of iBOT is seen though the tensors of its teacher are chosen."""
        content = {"teacher": behind("backbone.", A), "ibot_loss": one("center")}
        with pytest.raises(BeyondClsError, match="which iBOT writes and DINO does not"):
            load(tmp_path, content, model="dino-s16", checkpoint_key="teacher", checkpoint_prefix="backbone.")


@pytest.mark.parametrize("network", ["base_encoder", "momentum_encoder"])
def test_another_number_of_attention_heads(network, tmp_path):
    """MoCo v3's ViT-S has twice those of any other, and tensors of the same shapes."""
    file, arguments = PUBLISHED["mocov3-s16"][0].smaller()
    content = {"state_dict": behind(f"module.{network}.", values_of(file.tensors()))}
    model = {"model": "vit_small_patch16_224"}
    with pytest.raises(BeyondClsError, match=r"those of mocov3-s16\. .* 12 attention heads, vit_small_patch16_224 6, and no"):
        load(tmp_path, content, **model, arguments=arguments)
    for n_heads in (6, 12):
        encoder, _ = load(tmp_path, content, **model, arguments={**arguments, "num_heads": n_heads})
        assert encoder.model.blocks[0].attn.num_heads == n_heads
