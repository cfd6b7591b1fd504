"""Tracking: against loops patch by patch, F against dilation by a disk, DAVIS' layout made small, and bad input."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from scipy.ndimage import binary_dilation
from scipy.spatial.distance import chebyshev
from scipy.special import softmax

from pipelines.report.collect import Folders, Inputs
from pipelines.report.sections.few_shot import section
from probe.result_files import read_result
from probe.segmentation.label_maps import Upsampling
from probe.tracking import (
    VOID,
    Propagation,
    contour_measure,
    contours,
    frame_order,
    label_map,
    of_objects,
    propagate,
    region_measure,
)
from tests.pipelines.report.written import shown, studied, tables
from tests.pipelines.test_extract import ENCODER

Command = Callable[..., str]
HEIGHT, WIDTH, N_FRAMES = 48, 64, 6


def by_hand(frames: np.ndarray, first: np.ndarray, grid: tuple[int, int], how: Propagation) -> list[np.ndarray]:
    """Labels of frames after the first, a patch and a source at a time."""
    labels, places = [first], list(np.ndindex(grid))
    for t in range(1, len(frames)):
        used, found = [0, *range(max(1, t - how.n_frames), t)], np.zeros_like(first)
        for p, at in enumerate(places):
            near = [q for q, other in enumerate(places) if not how.radius or chebyshev(at, other) <= how.radius]
            best = sorted(((frames[t, p] @ frames[s, q], s, q) for s in used for q in near), reverse=True)[: how.k]
            weights = softmax([cosine / how.temperature for cosine, _, _ in best])
            found[p] = sum(w * labels[s][q] for w, (_, s, q) in zip(weights, best, strict=True))
        labels.append(found)
    return labels[1:]


@pytest.mark.parametrize("how", [Propagation(), Propagation(2, 1, 3, 0.2), Propagation(0, 0, 1)])
def test_patch_by_patch(how: Propagation) -> None:
    generator, grid = np.random.default_rng(0), (5, 7)
    frames = generator.normal(size=(6, 35, 8))
    frames /= np.linalg.norm(frames, axis=2, keepdims=True)
    first = np.eye(3)[generator.integers(0, 3, 35)]
    found = propagate(iter(torch.from_numpy(frames)), torch.from_numpy(first), grid, how)
    for one, other in zip(found, by_hand(frames, first, grid, how), strict=True):
        np.testing.assert_allclose(one.numpy(), other, atol=1e-12)


def test_the_shares_of_each_object_are_stretched_in_the_frame() -> None:
    shares = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 0.3, 0.6])[:, None, None]
    values = torch.nn.functional.interpolate(shares[None], size=(16, 20), mode="bilinear")[0].flatten(1)
    stretched = (values - values.amin(1, keepdim=True)) / (values.amax(1) - values.amin(1))[:, None]
    found = label_map(shares, Upsampling.to_frame((4, 5), (16, 20)), (16, 20))
    assert (found == stretched.argmax(0).reshape(16, 20).numpy()).mean() > 0.99, "but for shares that are equal"


def blob(seed: int) -> np.ndarray:
    return binary_dilation(np.random.default_rng(seed).random((150, 220)) < 0.001, iterations=9)


def test_contours_are_compared_as_dilated_by_a_disk() -> None:
    """In DAVIS' code a contour is dilated by all pixels of a disk."""
    reach = math.ceil(0.008 * math.hypot(150, 220))
    across = np.arange(-reach, reach + 1)
    disk = across[:, None] ** 2 + across**2 <= reach**2
    for seed in range(2):
        one, other = blob(seed), blob(seed) ^ blob(seed + 10)
        a, b = contours(one), contours(other)
        precision, recall = (a & binary_dilation(b, disk)).sum() / a.sum(), (b & binary_dilation(a, disk)).sum() / b.sum()
        assert contour_measure(one, other) == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-12)
        assert region_measure(one, other) == pytest.approx((one & other).sum() / (one | other).sum(), abs=1e-12)


def test_measures_of_what_is_empty_or_equal() -> None:
    some, nothing = blob(0), np.zeros((150, 220), bool)
    for measure in (contour_measure, region_measure):
        assert (measure(some, some), measure(nothing, nothing)) == (1, 1)
        assert (measure(some, nothing), measure(nothing, some)) == (0, 0)


def test_what_is_void_counts_neither_way() -> None:
    truth = np.where(blob(0), 1, np.where(blob(3), VOID, 0))
    for predicted in (blob(0), blob(0) | blob(3)):
        assert of_objects(predicted.astype(int), truth, [1]).tolist() == [[1, 1]]


def test_a_contour_is_a_pixel_wide_and_open_at_the_edge() -> None:
    mask = np.zeros((4, 5), bool)
    mask[:2, 3:] = True
    expected = np.zeros((4, 5), bool)
    expected[[0, 1, 1, 1], [2, 2, 3, 4]] = True
    np.testing.assert_array_equal(contours(mask), expected)


def test_frames_follow_by_their_numbers() -> None:
    names = ["a/9", "a/10", "a/frame8.2", "a/frame8.10", "b/00001", "b/00002"]
    others = names[::-1]
    assert sorted(others, key=frame_order) == names


def write_davis(folder: Path) -> None:
    """Videos of a red and of a blue square, each of which moves on grey noise; the frames of the second are 7 to 12."""
    (folder / "ImageSets/2017").mkdir(parents=True)
    (folder / "ImageSets/2017/val.txt").write_text("two\none\n")
    for v, name in enumerate(("one", "two", "training")):
        noise = np.random.default_rng(v)
        for kind in ("JPEGImages", "Annotations"):
            (folder / kind / "480p" / name).mkdir(parents=True)
        for frame in range(N_FRAMES):
            pixels = noise.integers(90, 110, (HEIGHT, WIDTH, 3)).astype(np.uint8)
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            for label, (top, colour) in enumerate(((2, (255, 0, 0)), (26, (0, 0, 255)))[: 1 + v % 2], 1):
                place = slice(top, top + 18), slice(2 + 6 * frame, 20 + 6 * frame)
                pixels[place], mask[place] = colour, label
            number = f"{frame + 7}" if name == "two" else f"{frame:05d}"
            Image.fromarray(pixels).save(folder / f"JPEGImages/480p/{name}/{number}.jpg", quality=95)
            picture = Image.fromarray(mask, "P")
            picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
            picture.save(folder / f"Annotations/480p/{name}/{number}.png")


@pytest.fixture
def extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyondcls: Command) -> Path:
    monkeypatch.chdir(tmp_path)
    write_davis(tmp_path / "DAVIS")
    Path("params.yaml").write_text(yaml.safe_dump({"encoders": {"tiny": ENCODER}}))
    given = ("--encoder", "tiny", "--params", "params.yaml", "--data", "DAVIS/JPEGImages/480p", "--out", "features/davis")
    beyondcls("extract", *given, "--crop-mode", "squash", "--crop-pct", 1, "--blocks", "0,1")
    return tmp_path


GIVEN = ("--features", "features/davis", "--masks", "DAVIS/Annotations/480p", "--out", "tracking/davis/tiny")
LISTED = (*GIVEN, "--videos", "DAVIS/ImageSets/2017/val.txt")


def test_the_layout_of_davis(extracted: Path, beyondcls: Command) -> None:
    said = beyondcls("track", *LISTED)
    assert "3 objects in 2 videos, 12 frames" in said
    content = read_result(extracted / "tracking/davis/tiny/metrics.json")
    assert (content["n_videos"], content["n_images"], content["n_measured"]) == (2, 12, 2 * (N_FRAMES - 2))
    assert [one["block"] for one in content["blocks"]] == [0, 1]
    for one in content["blocks"]:
        assert one["n_objects"] == 3
        assert one["still"]["j"] == pytest.approx(17.5, abs=1e-9), "12 of 24 columns, 6 of 30, none, none"
        assert one["j"]["mean"] > one["still"]["j"] + 15, "squares of one colour are found where they move"
        assert one["j_and_f"]["mean"] == pytest.approx((one["j"]["mean"] + one["f"]["mean"]) / 2)
        assert len(one["j"]["without"]) == 2, "videos are left out in turn"
    inputs = Inputs({("tiny", "cls"): studied("tiny", "cls", 50.0)}, folders=Folders(tracking=extracted / "tracking"))
    of_page = section(inputs)
    assert of_page is not None
    assert [row[:3] for row in shown(tables(of_page)["tracking"])] == [["davis", "tiny", "0"], ["davis", "tiny", "1"]]
    assert "4 objects in 3 videos, 18 frames" in beyondcls("track", *GIVEN, "--block", 1)


def test_bad_input_is_one_line(extracted: Path, beyondcls: Command) -> None:
    masks, flat = Path("DAVIS/Annotations/480p/one"), ("--features", "features/flat")

    def says(message: str, *options: object) -> None:
        assert message in beyondcls("track", *LISTED, *options, fails=True)

    Path("other.txt").write_text("one\nbear\n")
    says("--videos is none.txt, which is no file", "--videos", "none.txt")
    says("1 of 2 videos are not in features/davis, first 'bear'", "--videos", "other.txt")
    says("has patch tokens of blocks 0, 1, and --block is 7", "--block", 7)
    says("--k is 0, expected 1 or more", "--k", 0)
    says("--temperature is 0.0, expected a positive number", "--temperature", 0)
    says("video 'two' of 6 frames has no nowhere/two/7.png of its first frame", "--masks", "nowhere")
    Image.new("RGB", (WIDTH, HEIGHT), "white").save(masks / "00000.png")
    says("64 x 48 pixels of Pillow's mode RGB")
    for file in sorted(masks.iterdir())[1:]:
        file.unlink()
    says("has only DAVIS/Annotations/480p/one/00000.png of its first frame")
    assert not Path("tracking").exists()
    given = ("--encoder", "tiny", "--params", "params.yaml", "--data", "DAVIS/JPEGImages/480p/one", "--out", "features/flat")
    beyondcls("extract", *given)
    says("'00000' of features/flat is of no video, expected ids VIDEO/FRAME", *flat)
