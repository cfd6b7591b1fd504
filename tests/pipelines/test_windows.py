"""Images in windows, put together as a plain loop does; from `extract --crop-mode slide` to `segment` and label maps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import jaccard_score

from extract.encoders import load_encoder
from extract.transform import Views
from pipelines import attention, norms
from pipelines.live.online import online
from probe.depth.run import Regression
from probe.depth.targets import Depth
from probe.geometry import rows_of_all
from probe.result_files import read_result
from probe.segmentation import label_maps
from probe.segmentation.label_maps import Upsampling, label_map_of, mean_logits
from probe.segmentation.patch_head import load_patch_head
from probe.segmentation.run import Protocols, segment
from probe.segmentation.sets import Sets
from probe.sources import Source
from probe.subsets import readable_rows
from store import BeyondClsError, FeatureStore, StoreError, open_store
from tests.extract.tiny import TINY
from tests.features import write_features
from tests.probe.segmentation.features import CLASSES
from tests.truths import with_truths

SIDE, STRIDE, GRID_SIDE, N_CLASSES = 32, 21, 4, 5
WIDTHS, N_VIEWS = (32, 53, 70), 3  # one window, two, three
TRANSFORM = {"input_size": (3, SIDE, SIDE), "crop_mode": "slide", "crop_pct": 1.0, "interpolation": "bicubic"}
VIEWS = Views({**TRANSFORM, "mean": (0.0,) * 3, "std": (1.0,) * 3})
ENCODER = ("--encoder", "tiny", "--model", "vit_tiny_patch16_224", "--random-seed", 0, "--dtype", "float32")
ARGUMENTS = tuple(part for name, value in TINY.items() for part in ("--argument", f"{name}={value}"))


def draw(folder: Path, split: str, widths: tuple[int, ...]) -> None:
    """Noise whose brightness is that of one of three classes, of 8 x 8 pixels each."""
    generator = np.random.default_rng(len(split))
    for part in (split, f"{split}annot"):
        (folder / part).mkdir(parents=True)
    for i, width in enumerate(widths):
        labels = np.kron(generator.integers(0, 3, (4, -(-width // 8))), np.ones((8, 8), int))[:, :width]
        image = 100 * labels[..., None] + generator.integers(0, 50, (SIDE, width, 3))
        Image.fromarray(image.astype(np.uint8)).save(folder / split / f"{i:04}.png")
        labels[0] = 11  # void
        Image.fromarray(labels.astype(np.uint8)).save(folder / f"{split}annot" / f"{i:04}.png")


def plainly(on_grids: torch.Tensor, width: int, mode: str) -> torch.Tensor:
    """Mean logits [K, 32, width] of windows, which are all of an image of this width."""
    total, count = torch.zeros(on_grids.shape[1], SIDE, width, dtype=on_grids.dtype), torch.zeros(SIDE, width)
    for i, one in enumerate(on_grids):
        left = min(i * STRIDE, width - SIDE)
        total += F.pad(F.interpolate(one[None], size=(SIDE, SIDE), mode=mode)[0], (left, width - SIDE - left))
        count[:, left : left + SIDE] += 1
    return total / count


@pytest.fixture
def extract(beyondcls, tmp_path):
    def call(split: str, *given: object, fails: bool = False) -> str:
        options = ("--split", split, "--crop-mode", "slide", "--out", tmp_path / split)
        return beyondcls("extract", *ENCODER, *ARGUMENTS, "--data", tmp_path / "CamVid", *options, *given, fails=fails)

    return call


def test_from_images_to_label_maps(beyondcls, extract, tmp_path):
    for split, times in (("train", 8), ("test", 1)):
        draw(tmp_path / "CamVid", split, WIDTHS * times)
        extract(split, "--views", 3)
    store = open_store(tmp_path / "test")
    crops = [store.array(f"images/crop/view{view}").rows([2])[0].tolist() for view in range(3)]
    assert crops == [[0, 0, 32, 32], [21, 0, 53, 32], [38, 0, 70, 32]], "the last is flush"
    quick = ("--epochs", 20, "--base-lrs", "3", "--seeds", 0, "--cs", "1", "--ks", 1, "--metric", "cosine", "--save-maps", 3)
    out = tmp_path / "out"
    said = beyondcls("segment", "--features", tmp_path / "train", "--test", tmp_path / "test", "--out", out, *quick)
    assert "outside" not in said
    content = read_result(out / "metrics.json")
    assert (content["shown"]["shows"], content["shown"]["percent_outside"]) == ("windows", 0)
    assert content["protocols"]["linear"]["n_views"] == 3, "all windows are trained on"
    maps = {name: [out / "maps" / name / f"{i:04}.png" for i in range(3)] for name in ("truth", "linear", "logistic", "knn")}
    pixels = {name: [np.asarray(Image.open(file)).astype(int) for file in files] for name, files in maps.items()}
    truth = np.concatenate([one.ravel() for one in pixels["truth"]])
    for name in ("linear", "logistic", "knn"):
        predicted = np.concatenate([one.ravel() for one in pixels[name]])[truth != 255]
        miou = 100 * jaccard_score(truth[truth != 255], predicted, average="macro")
        assert content["protocols"][name]["miou_original"]["mean"] == pytest.approx(miou)
    encoder = load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, crop_mode="slide")
    for name, mode in (("linear", "bilinear"), ("logistic", "nearest")):
        head, _ = load_patch_head(out / name / "seed0")
        pictures = [Image.open(tmp_path / f"CamVid/test/{i:04}.png") for i in range(3)]
        for picture, saved in zip(pictures, pixels[name], strict=True):
            pixels_of = torch.from_numpy(np.array(picture)).movedim(-1, 0)
            lefts = sorted({min(i * STRIDE, picture.width - SIDE) for i in range(3)})
            windows = encoder.normalised(torch.stack([pixels_of[..., left : left + SIDE] for left in lefts]))
            logits = head.of_tokens(encoder(windows, [encoder.block]).patch[encoder.block]).detach()
            expected = plainly(logits, picture.width, mode).argmax(0).numpy()
            assert (expected == saved).mean() > 0.995, "but for logits that are nearly equal"
        live = online(encoder, out / name / "seed0").label_maps(pictures)
        assert min((a == b).mean() for a, b in zip(live, pixels[name], strict=True)) > 0.995


def test_an_image_that_is_too_long(extract, tmp_path):
    draw(tmp_path / "CamVid", "test", (40, 90))
    said = extract("test", "--views", 3, fails=True)
    assert "test/0001.png is 90 x 32 pixels, of which 4 windows show all, but views is 3; give --views 4, or" in said
    record = ("--views", 3, "--on-error", "record")
    assert "1 of them invalid" in extract("test", *record)
    assert open_store(tmp_path / "test").valid.tolist() == [True, False]
    extract("test", "--views", 4, "--extend")
    store = open_store(tmp_path / "test")
    assert (store.valid.tolist(), store.spec.n_views) == ([True, True], 4)
    assert store.array("images/crop/view3").rows([0, 1]).tolist() == [[8, 0, 40, 32], [58, 0, 90, 32]]


def upsamplings_of(size: tuple[int, int]) -> list[Upsampling]:
    views = VIEWS.covering(size[::-1])
    return [Upsampling.to_original((GRID_SIDE, GRID_SIDE), VIEWS.crop(size[::-1], "", view).box, False, size) for view in views]


@pytest.mark.parametrize("width", [32, 54, 110])
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
    upsamplings = upsamplings_of((SIDE, 70))[:2]  # pixels from 0 to 32 and from 21 to 53
    labels = np.stack([np.full((GRID_SIDE, GRID_SIDE), label, np.int16) for label in (4, 1)])
    expected = np.repeat([4, 1, -1], [21, 32, 17])
    np.testing.assert_array_equal(label_map_of(labels, upsamplings, (SIDE, 70)), np.tile(expected, (SIDE, 1)))


def write_windows(folder: Path) -> FeatureStore:
    """Each pixel's label is drawn."""
    plain = write_features(folder / "plain", len(WIDTHS), GRID_SIDE**2, 6, views=N_VIEWS, signal=0)
    plain.spec = replace(plain.spec, transform=TRANSFORM)
    maps = [np.random.default_rng(0).integers(-1, 3, (SIDE, width)).astype(np.int16) for width in WIDTHS]
    crops = np.array([[VIEWS.crop((width, SIDE), "", view).box for width in WIDTHS] for view in range(N_VIEWS)], np.float32)
    changed = {f"images/crop/view{view}": boxes for view, boxes in enumerate(crops)}
    return with_truths(plain, folder / "set", maps=maps, map_classes=CLASSES, changed=changed)


def test_repeated_windows_count_once(tmp_path: Path) -> None:
    """Of images of one window, of two and of three, patches of all others are void."""
    store = write_windows(tmp_path)
    tested = Sets(store, store).tested
    assert tested.views == (0, 1, 2)
    void = (tested.labels.reshape(-1, N_VIEWS, GRID_SIDE**2) == -1).all(-1)
    assert void.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


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
