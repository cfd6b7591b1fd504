import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from extract.datasets import open_images
from pipelines.report.collect import Inputs, collect
from pipelines.report.overlays import Overlays, draw_overlays, first_of_classes
from store import BeyondClsError
from tests.pipelines.report.written import write_all, write_images


def drawn(paths: dict[str, Path], n: int = 2, data: str | None = None) -> Overlays:
    inputs: Inputs = collect(paths["probes"], paths["attention"])
    return draw_overlays(inputs, data or str(paths["data"]), n)


def reasons(overlays: Overlays) -> str:
    return " ".join(overlays.left_out)


def test_a_column_per_map_and_a_row_per_class(tmp_path: Path):
    overlays = drawn(write_all(tmp_path), 3)
    assert [(c.encoder, c.kind) for c in overlays.columns] == [
        (encoder, kind) for encoder in ("mae", "random") for kind in ("[cls] attention", "AbMILP weights")
    ]
    assert [e.id for e in overlays.examples] == ["000", "002", "001"]  # classes 0, 1, 2
    assert [e.label for e in overlays.examples][1:] == ["dog", "cat"]
    assert overlays.left_out == ()
    cls, abmilp = overlays.examples[0].overlays[:2]
    assert (round(cls.peak, 2), round(abmilp.peak, 2)) == (3.0, 2.0)
    assert "000" in cls.alt
    assert cls.uri.startswith("data:image/png;base64,")


def test_each_image_gets_its_own_row_of_the_map(tmp_path: Path):
    paths = write_all(tmp_path)
    file = paths["attention"] / "mae" / "cls_map.npy"
    maps = np.full((7, 4), 0.25, np.float16)
    maps[2] = (0.7, 0.1, 0.1, 0.1)  # the image with id 002
    np.save(file, maps)
    peaks = {e.id: round(e.overlays[0].peak, 1) for e in drawn(paths, 3).examples}
    assert peaks == {"000": 1.0, "002": 2.8, "001": 1.0}


def test_other_images_are_never_shown(tmp_path: Path):
    paths = write_all(tmp_path)
    other = write_images(tmp_path / "other", n=8)
    overlays = drawn(paths, data=other)
    assert overlays.examples == ()
    assert f"mae: its maps are of other images (data set {open_images(str(paths['data'])).digest})" in reasons(overlays)
    assert "random: its maps are of other images" in reasons(overlays)


def test_problems_of_the_images_leave_all_out(tmp_path: Path):
    overlays = drawn(write_all(tmp_path), data=write_images(tmp_path / "bad", problem=True))
    assert overlays.examples == ()
    assert "1 problem(s)" in reasons(overlays)
    assert "no number" in reasons(overlays)


def test_missing_images_leave_all_out(tmp_path: Path):
    overlays = drawn(write_all(tmp_path), data=str(tmp_path / "gone.tar"))
    assert overlays.examples == ()
    assert "cannot be read" in reasons(overlays)


def test_patches_that_are_no_square(tmp_path: Path):
    overlays = drawn(write_all(tmp_path, n_tokens=5))
    assert overlays.examples == ()
    assert "5 patches are no square grid" in reasons(overlays)


def test_maps_of_fewer_images(tmp_path: Path):
    paths = write_all(tmp_path)
    np.save(paths["attention"] / "mae" / "cls_map.npy", np.full((6, 4), 0.25))
    overlays = drawn(paths)
    assert [c.kind for c in overlays.columns if c.encoder == "mae"] == ["AbMILP weights"]
    assert "expected one row for each of 7 images" in reasons(overlays)


def test_weights_of_another_feature_set(tmp_path: Path):
    paths = write_all(tmp_path)
    file = paths["probes"] / "mae" / "abmilp" / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["features"]["test"] = "other"
    file.write_text(json.dumps(metrics))
    overlays = drawn(paths)
    assert [c.kind for c in overlays.columns if c.encoder == "mae"] == ["[cls] attention"]
    assert "another feature set" in reasons(overlays)


def test_without_attention_nothing_ties_weights_to_images(tmp_path: Path):
    paths = write_all(tmp_path)
    shutil.rmtree(paths["attention"] / "mae")
    overlays = drawn(paths)
    assert {c.encoder for c in overlays.columns} == {"random"}
    assert "mae: attention was not computed" in reasons(overlays)


def test_encoder_without_cls_and_head_without_weights(tmp_path: Path):
    paths = write_all(tmp_path)
    (paths["attention"] / "mae" / "cls_map.npy").unlink()
    (paths["probes"] / "mae" / "abmilp" / "trained" / "weights.npy").unlink()
    overlays = drawn(paths)
    assert {c.encoder for c in overlays.columns} == {"random"}
    assert "mae, [cls] attention: it has no [cls] map." in overlays.left_out
    assert "mae, AbMILP weights: there is no AbMILP head with weights." in overlays.left_out


def test_damaged_maps_are_an_error(tmp_path: Path):
    paths = write_all(tmp_path)
    (paths["attention"] / "mae" / "cls_map.npy").write_bytes(b"no array")
    with pytest.raises(BeyondClsError, match=r"cls_map.npy is damaged .*expected an array \[N, T\]; run its stage again"):
        drawn(paths)


def test_no_examples_asked(tmp_path: Path):
    assert drawn(write_all(tmp_path), 0).left_out == ("No examples were asked for.",)


def test_examples_take_turns_over_classes():
    assert first_of_classes([2, 2, 0, 1, 0], 5) == [2, 3, 0, 4, 1]
    assert first_of_classes([2, 2, 0, 1, 0], 2) == [2, 3]
