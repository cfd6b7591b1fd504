"""The benchmark of decoders runs with what is installed, names what is not, and tells equal pixels from others."""

import json
from pathlib import Path

import pytest

from benchmarks import decoding


@pytest.fixture(autouse=True)
def _one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SIZE", (96, 64))


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    decoding.main(["--quick", "--images", "2", "--rounds", "1"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert "simplejpeg is missing: pip install simplejpeg" in lines
    ratios = json.loads(last)
    assert ratios.pop("evidence") is False, "two images are none"
    assert {name.split("_", 1)[0] for name in ratios} == {"draft", "torchvision"}
    assert ratios.keys() >= {"torchvision_1_threads", "torchvision_2_threads", "torchvision_cpu", "torchvision_decoding"}
    assert ratios["torchvision_equal_pixels"] > 0.9
    assert all(ratio > 0 for ratio in ratios.values())


def test_pixels_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    content = decoding.photograph(0)
    assert decoding.equal_pixels([content], "pillow") == 1
    monkeypatch.setitem(decoding.DECODERS, "other", lambda given: decoding.pillow(given).rotate(180))
    assert decoding.equal_pixels([content], "other") < 0.5
    monkeypatch.setitem(decoding.DECODERS, "smaller", lambda given: decoding.pillow(given).resize((48, 32)))
    assert decoding.equal_pixels([content], "smaller") == 0


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no \.jpg or \.jpeg file; leave out --files"):
        decoding.main(["--quick", "--files", str(tmp_path)])
