"""The benchmark of decoders runs with what is installed, names what is not, and tells equal pixels from others."""

import json
from pathlib import Path

import pytest

from benchmarks import decoding

SIDES = (96, 64)


def test_without_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    decoding.main(["--quick", "--images", "2", "--rounds", "1", "--sides", "96x64,1100x1090"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert "simplejpeg is missing: pip install simplejpeg" in lines
    ratios = json.loads(last)
    assert ratios.pop("evidence") is False, "two images are none"
    assert {name.split("_", 1)[0] for name in ratios} == {"torch", "draft", "copied", "decoded"}
    assert ratios.keys() >= {"torch_1_threads", "torch_2_threads", "torch_cpu", "torch_cpu_1100x1090"}
    assert ratios["copied_equal_pixels"] == ratios["copied_equal_pixels_1100x1090"] == 1
    assert ratios["draft_equal_pixels"] == ratios["torch_equal_pixels"] > 0.9, "small images have no draft"
    assert ratios["draft_equal_pixels_1100x1090"] < ratios["torch_equal_pixels_1100x1090"]
    assert all(ratio > 0 for ratio in ratios.values())


def test_what_torch_cuts_is_what_extraction_cuts() -> None:
    content = decoding.photograph(0, SIDES)
    raster = decoding.Raster(decoding.np.array(decoding.Pixels().decoded(content)))
    assert decoding.torch.equal(decoding.VIEWS["torch"].evaluation(raster), decoding.WAYS["torch"](content))


def test_pixels_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    content = decoding.photograph(0, SIDES)
    assert decoding.equal_pixels([content], "copied") == 1
    monkeypatch.setitem(decoding.WAYS, "other", lambda given: decoding.copied(given).flip(-1))
    assert decoding.equal_pixels([content], "other") < 0.5
    monkeypatch.setitem(decoding.WAYS, "smaller", lambda given: decoding.copied(given)[:, :48])
    assert decoding.equal_pixels([content], "smaller") == 0


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no \.jpg or \.jpeg file; leave out --files"):
        decoding.main(["--quick", "--files", str(tmp_path)])
