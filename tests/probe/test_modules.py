"""Trained modules on disk, of all kinds: what comes back, and that what is damaged is named and never taken for another."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._pytree import tree_leaves

from probe.detection.detector import load_detector, load_detector_with, save_detector
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.saved import load_probe, load_with, save_probe, task_of
from probe.segmentation.patch_head import PatchHead, load_patch_head, save_patch_head
from store import BeyondClsError
from tests.probe.detection.tiny import DIM, tiny_detector

SPEC = HeadSpec(options={"depth": 2}, final_norm=True)


@dataclass
class Saved:
    """A module on disk, whose name has a dot, and what it was."""

    stem: Path
    module: nn.Module
    features: Any
    load: Callable[[Any], tuple[nn.Module, dict[str, Any]]]
    name: str
    task: str | None

    def file(self, kind):
        return self.stem.with_name(f"{self.stem.name}.{kind}")

    def is_refused(self, message, **changes):
        """With another description, where there are changes; "gone" removes one."""
        if changes:
            described = {**json.loads(self.file("json").read_text()), **changes}
            self.file("json").write_text(json.dumps({name: value for name, value in described.items() if value != "gone"}))
        with pytest.raises(BeyondClsError, match=message):
            self.load(self.stem)


@pytest.fixture(params=["probe", "head", "detector"])
def saved(request, tmp_path) -> Saved:
    torch.manual_seed(0)
    stem, norm = tmp_path / "best.v1", FinalNorm(torch.rand(8), torch.rand(8), 1e-5)
    if request.param == "probe":
        module = SPEC.build(8, 9, 3, norm).eval()
        save_probe(stem, module, SPEC, 9, {"block": 1})
        return Saved(stem, module, {"patch": torch.randn(5, 9, 8)}, load_with, "probe", None)
    if request.param == "head":
        module = PatchHead(torch.rand(8), torch.rand(8), torch.rand(3, 8), torch.rand(3), (2, 3), norm)
        save_patch_head(stem, module, {"block": 1})
        return Saved(stem, module, {"patch": torch.rand(5, 6, 8)}, load_patch_head, "head", "segmentation")
    module = tiny_detector(masks=False).eval()
    save_detector(stem, module, {"block": 1})
    return Saved(stem, module, torch.randn(2, 64, DIM), load_detector_with, "detector", "detection")


of_a_probe = pytest.mark.parametrize("saved", ["probe"], indirect=True)
of_a_detector = pytest.mark.parametrize("saved", ["detector"], indirect=True)


def test_there_and_back(saved):
    """By the name of either file, or by what they have in common."""
    assert {task_of(f"{saved.stem}{ending}") for ending in ("", ".json", ".safetensors")} == {saved.task}
    loaded, about = saved.load(f"{saved.stem}.safetensors")
    assert (about["block"], loaded.training) == (1, False)
    assert sorted(file.name for file in saved.stem.parent.iterdir()) == ["best.v1.json", "best.v1.safetensors"]
    for ours, theirs in zip(*(tree_leaves(module(saved.features)) for module in (loaded, saved.module)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_patch_head_normalises_scales_and_convolves(tmp_path):
    norm, (mean, scale, weight, bias) = FinalNorm(torch.rand(4), torch.rand(4), 1e-5), map(torch.rand, (4, 4, (3, 4), 3))
    tokens = torch.rand(5, 6, 4)
    expected = ((norm({"patch": tokens})["patch"] - mean) * scale) @ weight.T + bias
    actual = PatchHead(mean, scale, weight, bias, (2, 3), norm)({"patch": tokens})
    torch.testing.assert_close(actual, expected.mT.unflatten(2, (2, 3)))


@of_a_detector
def test_a_detector_without_masks_finds_boxes_alone_and_is_no_probe(saved):
    loaded = load_detector(saved.stem)
    assert (loaded.final_norm, loaded.options.masks) == (None, False)
    assert all(found.keys() == {"boxes", "labels", "scores"} for found in loaded(saved.features))
    with pytest.raises(BeyondClsError, match=r"best.v1.json is of detection, .* load_detector"):
        load_with(saved.stem)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_missing_file(saved, kind):
    saved.file(kind).unlink()
    saved.is_refused(rf"there is no {saved.name} .*best\.v1\.{kind}'; `beyondcls \w+ --out`")


@pytest.mark.parametrize("keep", [0, 100])
def test_cut_parameters(saved, keep):
    saved.file("safetensors").write_bytes(saved.file("safetensors").read_bytes()[:keep])
    saved.is_refused(rf"not a readable {saved.name} \((SafetensorError|ValueError): .*; train it again")


@pytest.mark.parametrize("change", ["narrow", "missing", "extra"])
def test_parameters_of_another(saved, change):
    state = load_file(saved.file("safetensors"))
    name = next(name for name, values in state.items() if values.ndim == 2)
    changed = {name: state[name][:, :1].contiguous()} if change == "narrow" else {"more": torch.zeros(1)}
    others = {n: v for n, v in state.items() if n != name}
    save_file(others if change == "missing" else state | changed, saved.file("safetensors"))
    saved.is_refused(rf"not a readable {saved.name} \(RuntimeError: ")


@pytest.mark.parametrize("text", ["[]", '{"task": %s}', '{"format_version": 2}', "\x00\xff", "[" * 10_000])
def test_a_description_of_something_else(saved, text):
    saved.file("json").write_text(text.replace("%s", json.dumps(saved.task)), encoding="latin-1")
    saved.is_refused(f"is not a readable {saved.name}|is of whole images, expected a {saved.name}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "format version 99, expected .; .*: pip"),
        ({"format_version": 0}, "format version 0, expected .; train it again: beyondcls "),
        ({"task": "depth"}, "is of depth, expected a "),
        ({"dim": "wide"}, r"is not a readable \w+ \((ValueError|TypeError): "),
        ({"n_classes": 4}, r"is not a readable \w+ \(RuntimeError: "),
        ({"n_classes": "gone"}, r"is not a readable \w+ \(KeyError: 'n_classes'\)"),
        ({"n_classes": 2**30}, r"\(ValueError: a width of 1073741824 is described, and best\.v1\.safetensors has \d+ bytes"),
    ],
)
def test_descriptions_that_cannot_be(saved, changes, message):
    saved.is_refused(message, **changes)


@pytest.mark.parametrize("saved", ["head", "detector"], indirect=True)
@pytest.mark.parametrize(("grid", "error"), [([6], "ValueError: "), ("gone", r"KeyError: 'grid'\)")])
def test_a_grid_that_cannot_be(saved, grid, error):
    saved.is_refused(rf"is not a readable {saved.name} \({error}", grid=grid)


@of_a_detector
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": [1, 8]}, "1 x 8 patches"),
        ({"masks": True}, r"is not a readable detector \(RuntimeError: "),
        ({"mask_layers": 10**9, "masks": True}, r"is not a readable detector \(ValueError: a larger model"),
    ],
)
def test_a_detector_of_other_parts(saved, changes, message):
    saved.is_refused(message, **(changes if "grid" in changes else {"detector": saved.module.options.to_dict() | changes}))


@of_a_probe
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregator": "abmlip"}, "mean 'abmilp'"),
        ({"aggregator": ["abmilp"]}, "not a readable probe"),
        ({"aggregator": "average"}, "'average' 'depth'|not a readable probe"),
        ({"options": {"depth": 3}}, "not a readable probe"),
        ({"options": 3}, "not a readable probe"),
        ({"final_norm": False}, "not a readable probe"),
        ({"dim": -1}, "not a readable probe"),
        ({"n_patches": "gone"}, "not a readable probe .*'n_patches'"),
    ],
)
def test_probes_that_cannot_be(saved, changes, message):
    saved.is_refused(message, **changes)


@of_a_probe
@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 2**40},
        {"n_classes": 2**28},
        {"options": {"depth": 10**9}},
        {"options": {"position": "sin-cos"}, "n_patches": 2**40},
        {"aggregator": "ap", "options": {"heads": 2**40}, "dim": 2**40 + 1},
    ],
    ids=str,
)
def test_sizes_that_its_parameters_cannot_have(saved, changes, monkeypatch):
    """None is made: memory for it would be taken before the parameters are looked at."""
    built = HeadSpec.build
    monkeypatch.setattr(HeadSpec, "build", lambda *args: built(*args) if torch.empty(0).is_meta else pytest.fail("is made"))
    saved.is_refused(r"\(ValueError: a (larger model|width of \d+) is described", **changes)


@of_a_probe
def test_a_probe_that_was_edited_to_name_a_file_does_not_run_it(saved):
    evil = saved.stem.with_name("evil.py")
    evil.write_text(f"open({str(evil.parent / 'ran')!r}, 'w')")
    saved.is_refused("has a custom aggregator", aggregator=f"{evil}:Mine", options={})
    assert not (evil.parent / "ran").exists()


def test_one_that_does_not_say_where_its_classifier_started(tmp_path):
    made = SPEC.build(8, 9, 3)
    save_probe(tmp_path / "old", made, HeadSpec(options={"depth": 2}), 9, {})
    described = json.loads((tmp_path / "old.json").read_text())
    assert described.pop("init") == "normal"
    (tmp_path / "old.json").write_text(json.dumps(described))
    assert torch.equal(load_probe(tmp_path / "old").classifier.weight, made.classifier.weight)
