"""Predictions in pixels of the originals: through crops and mirrored views, each image's at its place."""

import numpy as np
import pytest
import torch

from probe.segmentation.evaluate import GRID, Predicted, evaluate
from probe.segmentation.label_maps import LabelMaps
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.sets import Sets
from store import FeatureStore
from tests.features import write_features
from tests.probe.segmentation.features import CLASSES, SIDE
from tests.truths import with_truths

N, CROP, CELL = 5, (8, 4, 24, 20), 4  # the view shows 16 x 16 pixels, 4 of a patch each way


@pytest.fixture(scope="module")
def cropped(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Images of 24 x 32 pixels whose view is mirrored; patches are classified by the largest of three channels."""
    folder = tmp_path_factory.mktemp("cropped")
    plain = write_features(folder / "plain", N, SIDE**2, 6, signal=0)
    seen = plain.tokens("patch").rows(np.arange(N))[..., :3].argmax(-1).reshape(N, SIDE, SIDE)
    maps = np.ones((N, 24, 32), np.int16)
    maps[:, CROP[1] : CROP[3], CROP[0] : CROP[2]] = np.kron(seen[:, :, ::-1], np.ones((CELL, CELL)))
    maps[:, CROP[1], CROP[0]] = -1
    shown = {"images/crop/view0": np.tile(np.array(CROP, np.float32), (N, 1)), "images/flip/view0": np.ones(N, np.uint8)}
    return with_truths(plain, folder / "set", maps=list(maps), map_classes=CLASSES, changed=shown)


def perfect() -> PatchHead:
    return PatchHead(torch.zeros(6), torch.ones(6), torch.eye(3, 6), torch.zeros(3), (SIDE, SIDE))


def test_through_a_mirrored_crop(cropped):
    tested, maps = Sets(cropped, cropped).tested, LabelMaps(cropped)
    labels = tested.labels.copy()
    assert np.array_equal(labels, perfect().of_tokens(tokens(cropped)).argmax(1).flatten(1).numpy())
    kept = {}
    models = {
        "covered": Predicted(head=perfect(), interpolated=False),
        "between": Predicted(head=perfect()),
        "labels": Predicted(labels[[1, 3]]),
    }
    measured, shown = evaluate(
        tested.part([1, 3]), models, ("original", 32), maps, lambda name, row, values: kept.setdefault((name, row), values)
    )
    for name in ("covered", "labels"):
        confusions = measured[name].confusions
        assert {resolution: one.accuracy for resolution, one in confusions.items()} == {GRID: 100, "original": 100, 32: 100}
        assert [one.n for one in confusions.values()] == [2 * 16, 2 * (16 * 16 - 1), 2 * (32 * 32 - 4)]
    assert measured["between"].confusions[GRID].accuracy == 100
    assert 60 < measured["between"].confusions["original"].accuracy < 100, "between patches, logits are interpolated"
    outside = 24 * 32 - 16 * 16
    assert shown.shows == "crop"
    assert shown.percent_outside == pytest.approx(100 * outside / (24 * 32 - 1))
    assert set(kept) == {(name, row) for name in models for row in (1, 3)}
    for (name, row), values in kept.items():
        assert values.shape == (24, 32), "of the first resolution"
        assert (values == -1).sum() == outside, "where the view shows nothing"
        truth = cropped.segmentation.label_map(row)
        inside = (values >= 0) & (truth >= 0)
        assert name == "between" or np.array_equal(values[inside], truth[inside])


def tokens(store: FeatureStore) -> torch.Tensor:
    return torch.from_numpy(store.tokens("patch").rows(np.arange(N))).float()


def test_frames_are_as_grids_are(tmp_path):
    """Their shorter side has so many pixels."""
    plain = write_features(tmp_path / "plain", 2, 6, 6, n_classes=2)
    plain.attributes["grid"] = [2, 3]
    plain.__dict__.pop("grid", None)
    drawn = np.random.default_rng(0).integers(0, 3, (2, 4, 6)).astype(np.int16)
    maps = LabelMaps(with_truths(plain, tmp_path / "set", maps=list(drawn), map_classes=CLASSES))
    assert (maps.frame(8), maps.frame(2)) == ((8, 12), (2, 3))
    assert [maps.in_frame(1, maps.frame(side)).shape for side in (4, 8)] == [(4, 6), (8, 12)]
    np.testing.assert_array_equal(maps.in_frame(1, (4, 6)), drawn[1])
