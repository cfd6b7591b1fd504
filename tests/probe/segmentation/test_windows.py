"""Windows of an image put together: as a plain loop over them does that pads, adds up and counts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from extract.transform import Views
from pipelines import attention, norms
from probe.depth.run import Regression
from probe.depth.targets import Depth
from probe.geometry import rows_of_all
from probe.segmentation import label_maps
from probe.segmentation.evaluate import GRID, ModelPredictions, evaluate
from probe.segmentation.label_maps import LabelMapsOfView, Upsampling, label_map_of, mean_logits
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.run import Protocols, segment
from probe.segmentation.sets import Sets
from probe.sources import Source
from probe.subsets import readable_rows
from store import BeyondClsError, FeatureStore, StoreError
from tests.features import write_features
from tests.probe.segmentation.features import CLASSES
from tests.truths import with_truths

SIDE, STRIDE, GRID_SIDE, N_CLASSES = 28, 18, 4, 5
TRANSFORM = {"input_size": (3, SIDE, SIDE), "crop_mode": "slide", "crop_pct": 1.0, "interpolation": "bicubic"}
VIEWS = Views({**TRANSFORM, "mean": (0.0,) * 3, "std": (1.0,) * 3})


def plainly(on_grids: torch.Tensor, width: int, mode: str = "bilinear") -> torch.Tensor:
    """Mean logits [K, 28, width] of windows of an image that is 28 pixels high."""
    total, count = torch.zeros(on_grids.shape[1], SIDE, width, dtype=on_grids.dtype), torch.zeros(SIDE, width)
    for i, one in enumerate(on_grids):
        left = min(i * STRIDE, width - SIDE)
        pixels = F.interpolate(one[None], size=(SIDE, SIDE), mode=mode)[0]
        total += F.pad(pixels, (left, width - SIDE - left))
        count[:, left : left + SIDE] += 1
    return total / count


def upsamplings_of(size: tuple[int, int]) -> list[Upsampling]:
    views = VIEWS.covering(size[::-1])
    return [Upsampling.to_original((GRID_SIDE, GRID_SIDE), VIEWS.crop(size[::-1], "", view).box, False, size) for view in views]


@pytest.mark.parametrize("width", [28, 29, 46, 47, 100])
@pytest.mark.parametrize("turned", [False, True])
def test_as_a_plain_loop(monkeypatch: pytest.MonkeyPatch, width: int, turned: bool) -> None:
    size = (width, SIDE) if turned else (SIDE, width)
    upsamplings = upsamplings_of(size)
    on_grids = torch.randn(len(upsamplings), N_CLASSES, GRID_SIDE, GRID_SIDE, dtype=torch.float64)
    ours = on_grids.mT if turned else on_grids
    for interpolated, mode in ((True, "bilinear"), (False, "nearest")):
        mean, expected = mean_logits(ours, upsamplings, size, interpolated), plainly(on_grids, width, mode)
        torch.testing.assert_close(mean.mT if turned else mean, expected, rtol=0, atol=1e-6)
        for n in (1 << 26, 3 * width * N_CLASSES):
            monkeypatch.setattr(label_maps, "LOGITS_AT_ONCE", n)
            labels = label_map_of(ours, upsamplings, size, interpolated)
            np.testing.assert_array_equal(labels.T if turned else labels, expected.argmax(0))


def test_labels_are_votes_and_what_no_window_shows_is_void() -> None:
    upsamplings = upsamplings_of((SIDE, 60))[:2]  # pixels from 0 to 28 and from 18 to 46
    labels = np.stack([np.full((GRID_SIDE, GRID_SIDE), label, np.int16) for label in (4, 1)])
    expected = np.repeat([4, 1, -1], [18, 28, 14])
    np.testing.assert_array_equal(label_map_of(labels, upsamplings, (SIDE, 60)), np.tile(expected, (SIDE, 1)))


WIDTHS, N_VIEWS = (28, 46, 60), 3  # of one window, of two and of three


def write_windows(folder: Path) -> FeatureStore:
    """Images 28 pixels high; each pixel's label is drawn."""
    plain = write_features(folder / "plain", len(WIDTHS), GRID_SIDE**2, 6, views=N_VIEWS, signal=0)
    plain.spec = replace(plain.spec, transform=TRANSFORM)
    maps = [np.random.default_rng(0).integers(-1, 3, (SIDE, width)).astype(np.int16) for width in WIDTHS]
    crops = np.array([[VIEWS.crop((width, SIDE), "", view).box for width in WIDTHS] for view in range(N_VIEWS)], np.float32)
    changed = {f"images/crop/view{view}": boxes for view, boxes in enumerate(crops)}
    return with_truths(plain, folder / "set", maps=maps, map_classes=CLASSES, changed=changed)


def test_repeated_windows_count_once(tmp_path: Path) -> None:
    store = write_windows(tmp_path)
    tested = Sets(store, store).tested
    assert tested.views == (0, 1, 2)
    void = (tested.labels.reshape(-1, N_VIEWS, GRID_SIDE**2) == -1).all(-1)
    assert void.tolist() == [[False, True, True], [False, False, True], [False, False, False]]
    head = PatchHead(torch.zeros(6), torch.ones(6), torch.randn(3, 6), torch.zeros(3), (GRID_SIDE, GRID_SIDE))
    predicted = np.random.default_rng(1).integers(0, 3, tested.labels.shape).astype(np.int16)
    kept: dict[tuple[str, int], np.ndarray] = {}
    models = {"head": ModelPredictions(head=head), "labels": ModelPredictions(predicted)}
    measured, shown = evaluate(tested, models, ["original"], LabelMapsOfView(store), lambda *of: kept.setdefault(of[:2], of[2]))
    tokens = [torch.from_numpy(store.tokens("patch", view=view).rows(range(3))).float() for view in range(N_VIEWS)]
    right = n = 0
    for row, width in enumerate(WIDTHS):
        on_grids = head.of_tokens(torch.stack([of_view[row] for of_view in tokens[: row + 1]])).detach()
        expected, truth = plainly(on_grids, width).argmax(0).numpy(), store.segmentation.label_map(row)
        np.testing.assert_array_equal(kept["head", row], expected)
        right, n = right + int((expected == truth)[truth >= 0].sum()), n + int((truth >= 0).sum())
        votes = F.one_hot(torch.from_numpy(predicted[row]).long().unflatten(0, (N_VIEWS, GRID_SIDE, GRID_SIDE))[: row + 1])
        of_votes = plainly(votes.movedim(-1, 1).double(), width, "nearest").argmax(0)
        np.testing.assert_array_equal(kept["labels", row], of_votes)
    confusions = measured["head"].confusions
    assert (confusions["original"].n, confusions["original"].accuracy) == (n, pytest.approx(100 * right / n))
    assert confusions[GRID].n == int((tested.labels >= 0).sum())
    assert shown == {"shows": "windows", "percent_outside": 0.0, "words": "whole image, in windows that overlap"}


def test_only_segmentation_puts_windows_together(tmp_path: Path) -> None:
    store = write_windows(tmp_path)
    with pytest.raises(BeyondClsError, match=r"at is 64, but views of .*set are windows, .* expected original"):
        segment(Sets(store, store), Protocols(), ["original", 64])
    others: list[Callable[[], object]] = [
        lambda: Source(store).rows,
        lambda: rows_of_all([store]),
        lambda: readable_rows(store, store.ids[:1]),
        lambda: Regression(store, store, Depth(), tmp_path, tmp_path),
        lambda: attention.main(store.where, tmp_path / "attention"),
        lambda: norms.main(store.where, tmp_path / "norms"),
    ]
    for other in others:
        with pytest.raises(StoreError, match=r"views of .*set are windows \(crop_mode slide\), expected an evaluation crop"):
            other()
