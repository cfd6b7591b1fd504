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

from probe.detection.detector import load_detector, load_detector_with, save_detector
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.saved import load_with, save_probe, task_of
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

    def edit(self, **changes):
        file = self.stem.with_name("best.v1.json")
        described = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in described.items() if value != "gone"}))

    def is_refused(self, message):
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


def flat(result):
    """Tensors of what a module gives."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in flat(part)]


@pytest.mark.parametrize("ending", ["", ".json", ".safetensors"])
def test_there_and_back(saved, ending):
    loaded, about = saved.load(f"{saved.stem}{ending}")
    assert task_of(f"{saved.stem}{ending}") == saved.task
    assert (about["block"], loaded.training) == (1, False)
    assert sorted(file.name for file in saved.stem.parent.iterdir()) == ["best.v1.json", "best.v1.safetensors"]
    for ours, theirs in zip(flat(loaded(saved.features)), flat(saved.module(saved.features)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_patch_head_normalises_scales_and_convolves(tmp_path):
    norm, (mean, scale, weight, bias) = FinalNorm(torch.rand(4), torch.rand(4), 1e-5), map(torch.rand, (4, 4, (3, 4), 3))
    tokens = torch.rand(5, 6, 4)
    expected = ((norm({"patch": tokens})["patch"] - mean) * scale) @ weight.T + bias
    actual = PatchHead(mean, scale, weight, bias, (2, 3), norm)({"patch": tokens})
    torch.testing.assert_close(actual, expected.mT.unflatten(2, (2, 3)))


def test_a_detector_without_masks_finds_boxes_alone(tmp_path):
    save_detector(tmp_path / "one", tiny_detector(masks=False), {})
    loaded = load_detector(tmp_path / "one")
    assert (loaded.final_norm, loaded.options.masks) == (None, False)
    assert all(found.keys() == {"boxes", "labels", "scores"} for found in loaded(torch.randn(2, 64, DIM)))


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_missing_file(saved, kind):
    saved.stem.with_name(f"best.v1.{kind}").unlink()
    saved.is_refused(rf"there is no {saved.name} .*best\.v1\.{kind}'; `beyondcls \w+ --out` writes one per seed")


@pytest.mark.parametrize("keep", [0, 4, 100, -9])
def test_cut_parameters(saved, keep):
    file = saved.stem.with_name("best.v1.safetensors")
    file.write_bytes(file.read_bytes()[:keep])
    saved.is_refused(rf"not a readable {saved.name} \((SafetensorError|ValueError): .*; train it again")


@pytest.mark.parametrize("change", ["narrow", "missing", "extra"])
def test_parameters_of_another(saved, change):
    file = saved.stem.with_name("best.v1.safetensors")
    state = load_file(file)
    name = next(name for name, values in state.items() if values.ndim == 2)
    changed = {name: state[name][:, :1].contiguous()} if change == "narrow" else {"more": torch.zeros(1)}
    save_file({n: v for n, v in state.items() if n != name} if change == "missing" else state | changed, file)
    saved.is_refused(rf"not a readable {saved.name} \(RuntimeError: ")


@pytest.mark.parametrize("text", ["", "[]", "3", '{"task": %s}', '{"format_version": 2}', "\x00\xff", "[" * 10_000, '"' * 3])
def test_a_description_of_something_else(saved, text):
    text = text.replace("%s", json.dumps(saved.task))
    saved.stem.with_name("best.v1.json").write_text(text, encoding="latin-1")
    saved.is_refused(f"is not a readable {saved.name}|is of whole images, expected a {saved.name}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "format version 99, expected .; a later beyondcls wrote it: pip"),
        ({"format_version": 0}, "format version 0, expected .; train it again: beyondcls "),
        ({"task": "depth"}, "is of depth, expected a "),
        ({"dim": "wide"}, r"is not a readable \w+ \((ValueError|TypeError): "),
        ({"n_classes": 4}, r"is not a readable \w+ \(RuntimeError: "),
        ({"n_classes": "gone"}, r"is not a readable \w+ \(KeyError: 'n_classes'\)"),
        ({"final_norm_eps": "gone"}, r"is not a readable \w+ \(KeyError: 'final_norm_eps'\)"),
        ({"n_classes": 2**30}, r"\(ValueError: a width of 1073741824 is described, and best\.v1\.safetensors has \d+ bytes"),
    ],
)
def test_descriptions_that_cannot_be(saved, changes, message):
    saved.edit(**changes)
    saved.is_refused(message)


def test_a_grid_that_cannot_be(saved):
    if saved.name != "probe":
        saved.edit(grid=[6])
        saved.is_refused(rf"is not a readable {saved.name} \(ValueError: ")
        saved.edit(grid="gone")
        saved.is_refused(rf"is not a readable {saved.name} \(KeyError: 'grid'\)")
    if saved.name == "detector":
        saved.edit(grid=[1, 8])
        saved.is_refused("the grid has 1 x 8 patches")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"masks": True}, r"\(RuntimeError: "), ({"mask_layers": 10**9, "masks": True}, r"\(ValueError: a larger model is desc")],
)
def test_a_detector_of_other_parts(saved, options, message):
    if saved.name == "detector":
        saved.edit(detector=saved.module.options.to_dict() | options)
        saved.is_refused(rf"is not a readable detector {message}")


def test_a_detector_is_no_probe(saved):
    if saved.name == "detector":
        with pytest.raises(BeyondClsError, match=r"best.v1.json is of detection, .*; load detectors by load_detector"):
            load_with(saved.stem)
