"""Heads for patches on disk: what is damaged is named, and never taken for another."""

import json

import pytest
import torch

from probe.head import FinalNorm
from probe.saved import task_of
from probe.segmentation.patch_head import TASK, PatchHead, load_patch_head, save_patch_head
from store import BeyondClsError


@pytest.fixture
def stem(tmp_path):
    """A saved head, whose name has a dot."""
    torch.manual_seed(0)
    norm = FinalNorm(torch.rand(4), torch.rand(4), 1e-5)
    head = PatchHead(torch.rand(4), torch.rand(4), torch.rand(3, 4), torch.rand(3), (2, 3), norm)
    save_patch_head(tmp_path / "best.v1", head, {"block": 1})
    return tmp_path / "best.v1"


@pytest.mark.parametrize("ending", ["", ".json", ".safetensors"])
def test_there_and_back(stem, ending):
    head, about = load_patch_head(f"{stem}{ending}")
    assert task_of(f"{stem}{ending}") == TASK
    assert (head.grid, head.dim, head.n_classes, about["n_patches"], about["block"]) == ((2, 3), 4, 3, 6, 1)
    assert (head.final_norm.eps, head.training) == (1e-5, False)
    torch.manual_seed(0)
    norm = FinalNorm(torch.rand(4), torch.rand(4), 1e-5)
    mean, scale, weight, bias = torch.rand(4), torch.rand(4), torch.rand(3, 4), torch.rand(3)
    tokens = torch.rand(5, 6, 4)
    expected = ((norm({"patch": tokens})["patch"] - mean) * scale) @ weight.T + bias
    torch.testing.assert_close(head({"patch": tokens}), expected.mT.unflatten(2, (2, 3)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"task": "detection"},
            r"best.v1.json is of 'detection', expected 'segmentation'; train it again",
        ),
        ({"format_version": 2}, r"has format version 2, expected 1; a later beyondcls wrote it"),
        ({"format_version": 0}, r"has format version 0, expected 1; train it again: beyondcls segment"),
        ({"grid": [6]}, r"is not a readable head \(ValueError: .*\); train it again"),
        ({"dim": 5}, r"is not a readable head \(RuntimeError: "),
        ({"final_norm_eps": None}, r"is not a readable head \(RuntimeError: "),
        ({"n_classes": "3"}, r"is not a readable head \(TypeError: "),
        (["grid"], r"is not a readable head \(KeyError: 'grid'\)"),
    ],
)
def test_a_wrong_description(stem, changed, message):
    file = stem.with_name("best.v1.json")
    about = json.loads(file.read_text())
    file.write_text(
        json.dumps(about | changed if isinstance(changed, dict) else {k: about[k] for k in about if k not in changed})
    )
    with pytest.raises(BeyondClsError, match=message):
        load_patch_head(stem)


@pytest.mark.parametrize("damage", [lambda content: content[:-7], lambda content: b"", lambda content: b"{" * 90])
def test_damaged_parameters(stem, damage):
    file = stem.with_name("best.v1.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BeyondClsError, match=r"best.v1 is not a readable head \((SafetensorError|ValueError): "):
        load_patch_head(stem)


@pytest.mark.parametrize("content", ["[1]", "{", '{"task": 1}', "\0\ud800"])
def test_a_description_of_something_else(stem, content):
    stem.with_name("best.v1.json").write_bytes(content.encode("utf8", "surrogatepass"))
    assert task_of(stem) is None
    with pytest.raises(BeyondClsError, match="is not a readable head"):
        load_patch_head(stem)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_missing_file(stem, kind):
    stem.with_name(f"best.v1.{kind}").unlink()
    with pytest.raises(BeyondClsError, match=rf"there is no head .*best.v1.{kind}; `beyondcls segment --out` writes"):
        load_patch_head(stem)
