"""Detectors on disk: one without norm or masks is loaded as such, and damage is named."""

import json

import pytest
import torch

from probe.detection.detector import load_detector, save_detector
from store import BeyondClsError
from tests.probe.detection.tiny import DIM, tiny_detector


@pytest.fixture
def stem(tmp_path):
    """Without masks and without a norm; its name has a dot."""
    save_detector(tmp_path / "best.v1", tiny_detector(masks=False), {"block": 1})
    return tmp_path / "best.v1"


@pytest.mark.parametrize("ending", [".json", ".safetensors"])
def test_there_and_back(stem, ending):
    loaded, made = load_detector(f"{stem}{ending}"), tiny_detector(masks=False).eval()
    assert (loaded.final_norm, loaded.training, loaded.options) == (None, False, made.options)
    tokens = torch.randn(2, 64, DIM)
    for ours, theirs in zip(loaded(tokens), made(tokens), strict=True):
        assert ours.keys() == theirs.keys() == {"boxes", "labels", "scores"}
        assert all(torch.equal(values, theirs[name]) for name, values in ours.items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"detector": {"masks": True}}, r"is not a readable detector \(RuntimeError: .*\); train it again"),
        ({"final_norm_eps": 1e-6}, r"is not a readable detector \(RuntimeError: "),
        ({"grid": [1, 8]}, "the grid has 1 x 8 patches"),
        ({"detector": {"mask_layers": 10**9, "masks": True}}, r"\(ValueError: a larger model is described than best\.v1\.saf"),
        ({"n_classes": 2**30}, r"\(ValueError: a width of 1073741824 is described, and best\.v1\.safetensors has \d+ bytes"),
        ({"dim": "wide"}, r"is not a readable detector \(ValueError: "),
        (["grid"], r"is not a readable detector \(KeyError: 'grid'\)"),
    ],
)
def test_a_wrong_description(stem, changed, message):
    file = stem.with_name("best.v1.json")
    about = json.loads(file.read_text())
    if isinstance(changed, list):
        about = {name: value for name, value in about.items() if name not in changed}
    elif "detector" in changed:
        about["detector"] |= changed["detector"]
    else:
        about |= changed
    file.write_text(json.dumps(about))
    with pytest.raises(BeyondClsError, match=message):
        load_detector(f"{stem}.json")


def test_damaged_parameters(stem):
    file = stem.with_name("best.v1.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(BeyondClsError, match=r"is not a readable detector \(SafetensorError: .*\); train it again"):
        load_detector(f"{stem}.json")
    file.unlink()
    with pytest.raises(BeyondClsError, match=r"there is no detector '.*best\.v1\.safetensors'"):
        load_detector(f"{stem}.json")
