"""Predictions in pixels of the originals, from patches, and their confusions, by hand and against peers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from probe.segmentation.evaluate import GRID, Confusion, ModelPredictions, evaluate
from probe.segmentation.label_maps import LabelMapsOfView, Upsampling
from probe.segmentation.linear import pixel_loss
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.sets import Sets
from store import BeyondClsError, FeatureStore
from tests.features import write_features
from tests.probe.segmentation.features import CLASSES, SIDE
from tests.truths import with_truths


def test_as_scikit_learn():
    """Classes 5 to 8 are not predicted; neither are 6 to 8 true, so that they count nowhere."""
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(-1, 6, 500), generator.integers(0, 5, 500)
    confusion = Confusion(9)
    for part in (slice(0, 77), slice(77, None)):
        confusion.add(truth[part], predicted[part])
    both = truth[truth >= 0], predicted[truth >= 0]
    assert confusion.counts.tolist() == confusion_matrix(*both, labels=range(9)).tolist()
    np.testing.assert_allclose(confusion.iou, [*(100 * jaccard_score(*both, average=None)), *[np.nan] * 3])
    assert confusion.miou == pytest.approx(100 * jaccard_score(*both, average="macro"))
    assert (confusion.n, confusion.accuracy) == (len(both[0]), pytest.approx(100 * accuracy_score(*both)))
    nothing = Confusion(2)
    nothing.add(np.array([-1]), np.array([0]))
    assert np.isnan([nothing.miou, nothing.accuracy]).all(), "nothing labelled is no number"


@pytest.mark.parametrize(("truth", "predicted"), [([2], [0]), ([0], [2]), ([0], [-1]), ([-2], [0])])
def test_other_labels_are_refused(truth, predicted):
    with pytest.raises(BeyondClsError, match=r"expected 0 to 1 \(void is -1\)"):
        Confusion(2).add(np.array(truth), np.array(predicted))


SMALL = (3, 4)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", [(0, 0, 21, 17), (3.5, -2, 15.25, 30), (-4, -4, 40, 8), (30, 0, 40, 17)])
def test_back_to_the_original(crop, flip):
    """A pixel is that of the view in which its centre is. The view may show any part of the image, mirrored or not, or none."""
    upsampling = Upsampling.to_original(SMALL, crop, flip, (17, 21))
    labels = np.arange(12, dtype=np.int16).reshape(SMALL)
    original = logits = np.random.default_rng(0).normal(size=(2, *SMALL)).astype(np.float32)
    whole = np.full((17, 21), -1, np.int16)
    whole[upsampling.shown] = upsampling.nearest(labels)
    if flip:
        labels, logits = labels[:, ::-1], logits[..., ::-1].copy()
    rows, columns = (
        (np.arange(n) + 0.5 - start) * (cells / (stop - start))
        for n, start, stop, cells in ((17, *crop[1::2], SMALL[0]), (21, *crop[::2], SMALL[1]))
    )
    inside = ((rows >= 0) & (rows < SMALL[0]))[:, None] & (columns >= 0) & (columns < SMALL[1])
    nearest = labels[np.floor(rows).astype(int).clip(0, 2)[:, None], np.floor(columns).astype(int).clip(0, 3)]
    np.testing.assert_array_equal(whole, np.where(inside, nearest, -1))
    places = torch.tensor(np.stack(np.broadcast_arrays(columns / 4, rows[:, None] / 3), -1) * 2 - 1).float()[None]
    between = F.grid_sample(torch.from_numpy(logits)[None], places, padding_mode="border", align_corners=False)[0].numpy()
    np.testing.assert_allclose(
        upsampling.bilinear(torch.from_numpy(original)).numpy(), between[:, *upsampling.shown], atol=1e-5
    )


def test_loss_and_gradient_as_cross_entropy():
    """Void is ignored; an image that is void everywhere counts nothing. One member is as wrong as can be."""
    torch.manual_seed(0)
    size, members, n_classes = (9, 8), 2, 3
    logits = torch.randn(members, 3, *SMALL, n_classes, dtype=torch.float64)
    logits = (logits * torch.tensor([1, 500]).view(-1, 1, 1, 1, 1)).requires_grad_()
    labels = torch.randint(-1, n_classes, (3, *size))
    labels[2] = -1
    upsampling = Upsampling.to_frame(SMALL, size)
    loss = pixel_loss(logits, list(labels), [upsampling] * 3)
    (gradient,) = torch.autograd.grad((loss * torch.tensor([1.0, 3.0])).sum(), logits)
    pixels = F.interpolate(logits.flatten(0, 1).movedim(-1, 1), size=size, mode="bilinear").unflatten(0, (members, 3))
    theirs = torch.stack([sum(F.cross_entropy(p[i][None], labels[i][None], ignore_index=-1) for i in (0, 1)) for p in pixels])
    (expected,) = torch.autograd.grad((theirs * torch.tensor([1.0, 3.0])).sum(), logits)
    torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


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


def test_through_a_mirrored_crop(cropped):
    tested, maps = Sets(cropped, cropped).tested, LabelMapsOfView(cropped)
    head = PatchHead(torch.zeros(6), torch.ones(6), torch.eye(3, 6), torch.zeros(3), (SIDE, SIDE))
    tokens = torch.from_numpy(cropped.tokens("patch").rows(range(N))).float()
    assert np.array_equal(tested.labels, head.of_tokens(tokens).argmax(1).flatten(1).numpy())
    kept = {}
    models = {
        "covered": ModelPredictions(head=head, interpolated=False),
        "between": ModelPredictions(head=head),
        "labels": ModelPredictions(tested.labels[[1, 3]]),
    }
    measured, shown = evaluate(
        tested.part([1, 3]), models, ("original", 32), maps, lambda name, row, values: kept.setdefault((name, row), values)
    )
    for name in ("covered", "labels"):
        confusions = measured[name]
        assert {resolution: one.accuracy for resolution, one in confusions.items()} == {GRID: 100, "original": 100, 32: 100}
        assert [one.n for one in confusions.values()] == [2 * 16, 2 * (16 * 16 - 1), 2 * (32 * 32 - 4)]
    assert measured["between"][GRID].accuracy == 100
    assert 60 < measured["between"]["original"].accuracy < 100, "between patches, logits are interpolated"
    outside = 24 * 32 - 16 * 16
    assert (shown["shows"], shown["percent_outside"]) == ("crop", pytest.approx(100 * outside / (24 * 32 - 1)))
    assert f"{shown['percent_outside']:.1f} %" in shown["words"]
    assert set(kept) == {(name, row) for name in models for row in (1, 3)}
    for (name, row), values in kept.items():
        assert values.shape == (24, 32), "of the first resolution"
        assert (values == -1).sum() == outside, "where the view shows nothing"
        truth = cropped.segmentation.label_map(row)
        inside = (values >= 0) & (truth >= 0)
        assert name == "between" or np.array_equal(values[inside], truth[inside])


def test_frames_are_as_grids_are(tmp_path):
    """Their shorter side has so many pixels."""
    plain = write_features(tmp_path / "plain", 2, 6, 6, n_classes=2)
    plain.attributes["grid"] = [2, 3]
    plain.__dict__.pop("grid", None)
    drawn = np.random.default_rng(0).integers(0, 3, (2, 4, 6)).astype(np.int16)
    maps = LabelMapsOfView(with_truths(plain, tmp_path / "set", maps=list(drawn), map_classes=CLASSES))
    assert (maps.frame(8), maps.frame(2)) == ((8, 12), (2, 3))
    assert [maps.in_frame(1, maps.frame(side)).shape for side in (4, 8)] == [(4, 6), (8, 12)]
    np.testing.assert_array_equal(maps.in_frame(1, (4, 6)), drawn[1])
