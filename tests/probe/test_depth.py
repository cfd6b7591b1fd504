"""Depth and normals: measures and losses against loops and closed forms, what views show, what is missing, and bad files."""

import math
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cosine
from sklearn.metrics import mean_absolute_percentage_error, root_mean_squared_error
from torch.nn.functional import interpolate, normalize

from probe.depth.maps import Counts, Maps
from probe.depth.run import PLAN, Regression, pixel_losses, regress
from probe.depth.targets import Depth, Normals, Target
from probe.result_files import is_measure
from probe.subsets import groups_of
from store import BeyondClsError, FeatureStore
from store.truths.view import map_in_view, values_in_view
from tests.features import write_features
from tests.truths import with_truths

SIDE, SIZE = 4, (32, 40)  # patches along a side; height and width of images
SETS: dict[str, Target] = {"depth": Depth(), "normals": Normals()}


def write_maps(
    folder: Path,
    n: int = 12,
    *,
    seed: int = 0,
    task: str = "depth",
    mirrored: bool = False,
    crop: tuple[float, ...] = (0, 0, 40, 32),
    **given: Any,
) -> FeatureStore:
    """Images of 4 x 4 patches whose first channels are depth, 3 m and more or less, or the normal, between patches bilinear.

    `folder`/features is the set, `folder`/maps has a .npy an image.

    Args:
        crop: x0, y0, x1, y1 that the view shows.
        mirrored: the view shows all images mirrored, as tokens do; maps are as otherwise.
    """
    plain = write_features(folder / "plain", n, SIDE**2, 6, seed=seed, signal=0, **given)
    tokens = torch.from_numpy(plain.tokens("patch").rows(np.arange(n)).astype(np.float32)).mT.unflatten(2, (SIDE, SIDE))
    values = (
        3 + tokens[:, :1].clamp(-2, 2) / 2
        if task == "depth"
        else normalize(tokens[:, :3] + torch.tensor([0, 0, 3.0])[:, None, None], dim=1)
    )
    stored = plain.tokens("patch")
    seen = stored.rows(np.arange(n)).reshape(n, SIDE, SIDE, -1)[:, :, ::-1].reshape(stored.shape)
    changed = {"images/crop/view0": np.tile(np.float32(crop), (n, 1))}
    changed |= {stored.name: seen, "images/flip/view0": np.ones(n, np.uint8)} if mirrored else {}
    store = with_truths(plain, folder / "features", sizes=[SIZE] * n, changed=changed)
    (folder / "maps").mkdir()
    pixels = interpolate(values, size=SIZE, mode="bilinear").numpy()
    for name, of_image in zip(store.ids, pixels, strict=True):
        np.save(folder / f"maps/{name}.npy", of_image[0] if task == "depth" else of_image.transpose(1, 2, 0))
    return store


def plan(epochs: int = 2, **recipe: Any) -> Any:
    return replace(PLAN, recipe=replace(PLAN.recipe, epochs=epochs, warmup_epochs=0, **recipe), seeds=(0,))


def maps_of(store: FeatureStore, folder: Path, target: Target = SETS["depth"], **given: Any) -> Maps:
    return Maps(store, folder=folder / "maps", target=target, rows=np.flatnonzero(store.valid), **given)


def means(content: dict[str, Any], protocol: str = "linear") -> dict[str, float]:
    return {name: value["mean"] for name, value in content["protocols"][protocol].items() if is_measure(value)}


def test_measures_of_depth_are_those_of_a_loop() -> None:
    p, t = np.random.default_rng(0).uniform(1, 5, (2, 1, 300))
    pairs = list(zip(p[0].tolist(), t[0].tolist(), strict=True))
    slope, shift = np.polyfit(p[0], t[0], 1)
    fitted = [(slope * a + shift, b) for a, b in pairs]

    def within(some: list[tuple[float, float]], k: int) -> float:
        return 100 * sum(max(a / b, b / a) < 1.25**k for a, b in some) / len(some)

    assert Depth().measures(p, t) == pytest.approx(
        {
            "rmse": root_mean_squared_error(t[0], p[0]),
            "abs_rel": mean_absolute_percentage_error(t[0], p[0]),
            "log10": sum(abs(math.log10(a / b)) for a, b in pairs) / 300,
            "si_log": 100 * statistics.pstdev(math.log(a / b) for a, b in pairs),
            **{f"delta{k}": within(pairs, k) for k in (1, 2, 3)},
            "aligned_rmse": root_mean_squared_error(t[0], slope * p[0] + shift),
            "aligned_delta1": within(fitted, 1),
        }
    )
    twice = Depth().measures(2 * t + 1, t)
    assert (twice["aligned_rmse"], twice["aligned_delta1"]) == (pytest.approx(0, abs=1e-12), 100)
    assert Depth().measures(np.full_like(t, 2), t)["aligned_rmse"] == pytest.approx(t.std()), "a constant has no scale"


def test_measures_of_normals_are_those_of_a_loop() -> None:
    p, t = np.random.default_rng(0).normal(size=(2, 3, 101))
    angles = [math.degrees(math.acos(1 - cosine(a, b))) for a, b in zip(p.T, t.T, strict=True)]
    shares = {f"within_{limit:g}": 100 * sum(angle < limit for angle in angles) / 101 for limit in (11.25, 22.5, 30)}
    rmse = math.sqrt(sum(angle**2 for angle in angles) / 101)
    of_all = {"mean_angle": sum(angles) / 101, "median_angle": sorted(angles)[50], "rmse_angle": rmse}
    assert Normals().measures(p, t) == pytest.approx(of_all | shares)


def test_bins_are_weighted_as_published() -> None:
    """Equal logits, and those that are negative, are the middle; a large one is its bin's depth."""
    target, logits = Depth(2, 6, n_bins=5), torch.zeros(5, 2, 2)
    assert target.on_grid(logits - 1).flatten().tolist() == pytest.approx([4.0] * 64)
    logits[3] = 0.9  # 1.0 beside four of 0.1
    assert target.on_grid(logits)[0, 3, 3].item() == pytest.approx((1.0 * 5 + 0.1 * (2 + 3 + 4 + 6)) / 1.4)


@pytest.mark.parametrize("task", SETS)
def test_losses_and_gradients_are_those_of_plain_layers(task: str) -> None:
    target = SETS[task]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 4, target.n_outputs, generator=generator, dtype=torch.float64).requires_grad_()
    truths = torch.rand(3, 1 if task == "depth" else 3, 24, 24, generator=generator, dtype=torch.float64) + 0.5
    truths = truths if task == "depth" else truths / truths.norm(dim=1, keepdim=True)
    truths[0, :, :5], truths[2] = torch.nan, torch.nan
    up = partial(interpolate, mode="bilinear", align_corners=False)
    expected = torch.zeros(2, dtype=torch.float64)
    for image in (0, 1):
        seen = ~truths[image, 0].isnan()
        for member in (0, 1):
            grid = logits[member, image].movedim(-1, 0)[None]
            if task == "depth":
                weights = up(grid, size=(16, 16)).relu() + 0.1
                bins = torch.linspace(1e-3, 10, 256, dtype=torch.float64)
                depth = up(((weights / weights.sum(1, keepdim=True)).mT.movedim(1, -1) @ bins)[None].mT, size=(24, 24))
                d = (depth[0, 0][seen] + 1e-3).log() - (truths[image, 0][seen] + 1e-3).log()
                expected[member] += (d.var(correction=0) + 0.15 * d.mean() ** 2 + 1e-6).sqrt()
            else:
                normal = up(grid, size=(24, 24))[0]
                cosine = torch.cosine_similarity(normal[:, seen], truths[image][:, seen], dim=0)
                expected[member] += cosine.clamp(-1 + 1e-4, 1 - 1e-4).acos().mean()
    losses = pixel_losses(target, logits, list(truths), [])
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)  # weights of the upsampling are float32
    weighting = torch.tensor([1.0, 3.0], dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((weighting * of).sum(), logits)[0] for of in (losses, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("task", "measure", "share"), [("depth", "rmse", 0.35), ("normals", "mean_angle", 0.25)])
def test_what_tokens_hold_is_found(task: str, measure: str, share: float, tmp_path: Path) -> None:
    for name, n, seed in (("a", 32, 0), ("b", 10, 1)):
        write_maps(tmp_path / name, n, seed=seed, task=task)
    stores = [FeatureStore.open(tmp_path / name / "features") for name in "ab"]
    one = Regression(*stores, SETS[task], tmp_path / "a/maps", tmp_path / "b/maps", plan(20, base_lr=0.5))
    content, trained = regress(one)
    assert means(content)[measure] < share * means(content, "mean")[measure]
    assert (content["n_training"], content["n_test"], len(trained[0].curve)) == (32, 10, 20)
    measured = content["protocols"]["mean"][measure]  # each group of images left out is as if it had never been there
    kept = np.flatnonzero(groups_of(10) != 3)
    (tmp_path / "c").mkdir()
    learnt = Counts.of(maps_of(stores[0], tmp_path / "a", SETS[task]))
    constant = SETS[task].at_pixels(torch.from_numpy(learnt.sums / learnt.measured)[:, None, None])[:, 0].numpy()
    truths = [maps_of(stores[1], tmp_path / "b", SETS[task]).shown(row).reshape(len(constant), -1) for row in kept.tolist()]
    values = [SETS[task].measures(np.broadcast_to(constant, t.shape), t.astype(np.float64))[measure] for t in truths]
    assert measured["without"][3] == pytest.approx(np.mean(values))


def test_cls_behind_each_patch_is_learnt_from(tmp_path: Path) -> None:
    """A depth that [cls] alone holds."""
    store = write_maps(tmp_path, 16)
    cls = store.tokens("cls").rows(np.arange(16)).astype(np.float32)
    for row, image in enumerate(store.ids):
        np.save(tmp_path / f"maps/{image}.npy", np.full(SIZE, 3 + cls[row, 0].clip(-2, 2) / 2))
    one = Regression(store, store, Depth(), tmp_path / "maps", tmp_path / "maps", plan(20, base_lr=0.5))
    with_cls, without = (means(regress(replace(one, with_cls=some))[0])["rmse"] for some in (True, False))
    assert with_cls < 0.5 * without


def test_views_show_maps_as_label_maps() -> None:
    values = np.random.default_rng(0).integers(0, 9, (9, 11)).astype(np.int16)
    shown = map_in_view(values, (-3, 1.5, 8, 12), True, (6, 8))
    ours = values_in_view(values[None].astype(np.float32), (-3, 1.5, 8, 12), True, (6, 8))[0]
    np.testing.assert_array_equal(np.where(shown == -1, np.nan, shown), ours)


def test_a_mirrored_view_turns_normals(tmp_path: Path) -> None:
    """Where images and tokens are mirrored, the same is learnt of maps that are not: the first value has the other sign."""
    found = []
    for mirrored in (False, True):
        folder = tmp_path / str(mirrored)
        one, other = (write_maps(folder / str(s), 6, task="normals", seed=s, mirrored=mirrored) for s in (0, 1))
        content, _ = regress(Regression(one, other, Normals(), folder / "0/maps", folder / "1/maps", plan(40, base_lr=0.5)))
        found.append(means(content)["mean_angle"])
    assert found[0] == pytest.approx(found[1], abs=0.5)
    maps = maps_of(one, folder / "0", Normals())
    turned = maps.original(0)[:, :, ::-1] * np.float32([-1, 1, 1])[:, None, None]
    np.testing.assert_array_equal(maps.in_frame(0, SIZE), turned)


def test_what_is_missing_beyond_or_not_shown_counts_nowhere(tmp_path: Path) -> None:
    store = write_maps(tmp_path, 4, crop=(2, 2, 30, 30))  # a view of rows and columns 2 to 29
    depth = np.full(SIZE, 2.0)
    depth[2:4, 2:30], depth[4], depth[5], depth[6, 0] = [[0.0], [np.nan]], 11, -1, 0
    for image in store.ids[:3]:
        np.save(tmp_path / f"maps/{image}.npy", depth)
    np.save(tmp_path / f"maps/{store.ids[3]}.npy", depth * np.nan)
    counts = Counts.of(maps := maps_of(store, tmp_path))
    missing = 2 * 28 + 40 + 1
    assert (counts.missing, counts.beyond, counts.measured) == (3 * missing + 32 * 40, 3 * 40, 3 * 24 * 28)
    assert counts.outside == 3 * (32 * 40 - missing - 40 - 24 * 28)
    assert (counts.sums.tolist(), counts.rows) == ([2 * counts.measured], [0, 1, 2])
    assert np.isnan(maps.in_frame(0, (28, 28))[0, :4]).all()
    for task in (Depth(), Depth(1, 3)):
        content, _ = regress(Regression(store, store, task, tmp_path / "maps", tmp_path / "maps", plan()))
        assert means(content, "mean")["rmse"] == pytest.approx(0, abs=1e-6)
        assert (content["n_test"], content["n_without"]["test"], content["n_training"]) == (3, 1, 3)
        assert content["pixels"]["test"] == counts.described


def test_normals_without_length_are_missing_and_files_of_both_kinds_are_alike(tmp_path: Path) -> None:
    store = write_maps(tmp_path, 2, task="normals")
    picture = np.full((*SIZE, 3), (128, 128, 255), np.uint8)
    picture[0], picture[1] = 0, 128  # which is a length of 1.7, and of none
    (tmp_path / f"maps/{store.ids[0]}.npy").unlink()
    Image.fromarray(picture).save(tmp_path / f"maps/{store.ids[0]}.png")
    vectors = np.zeros((*SIZE, 3))
    vectors[2:, :, 2] = 1.2
    np.save(tmp_path / f"maps/{store.ids[1]}.npy", vectors)
    of_picture, of_array = (maps_of(store, tmp_path, Normals()).original(row) for row in (0, 1))
    np.testing.assert_allclose(of_picture, of_array, atol=0.004)
    assert np.isnan(of_picture[:, :2]).all()
    np.testing.assert_allclose(np.linalg.norm(of_picture[:, 2:], axis=0), 1, rtol=1e-6)
    Image.fromarray(np.full(SIZE, 2500, np.uint16)).save(tmp_path / f"maps/{store.ids[0]}.png")  # millimetres
    assert maps_of(store, tmp_path).original(0).flatten().tolist() == [2.5] * 1280
    assert maps_of(store, tmp_path, Depth(per_metre=5000)).original(0)[0, 0, 0] == 0.5


BAD: dict[str, tuple[Any, str]] = {
    "no file": (None, r"1 of 2 images of .* have no file of depth in .*, first '000001'; expected either of .*000001.png"),
    "another size": (np.ones((8, 9), np.float32), r"000001.npy holds \[8, 9\] float32; expected .* of 40 x 32 pixels"),
    "whole numbers": (np.ones(SIZE, np.int32), r"000001.npy holds \[32, 40\] int32; expected a 16-bit PNG .* metres"),
    "objects": (np.full(SIZE, None, object), r"000001.npy is damaged \(.*object.*\), expected a 16-bit PNG"),
    "8 bits": (Image.new("L", SIZE[::-1]), r"000001.png has 40 x 32 pixels of Pillow's mode L; expected a 16-bit PNG"),
    "no picture": (b"PNG", r"000001.png cannot identify image file .*; expected a 16-bit PNG"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_named(case: str, tmp_path: Path) -> None:
    (content, message), store = BAD[case], write_maps(tmp_path, 2)
    file = tmp_path / f"maps/{store.ids[1]}.npy"
    file.unlink()
    if isinstance(content, np.ndarray):
        np.save(file, content)
    elif isinstance(content, bytes):
        file.with_suffix(".png").write_bytes(content)
    elif content is not None:
        content.save(file.with_suffix(".png"))
    with pytest.raises(BeyondClsError, match=message):
        Counts.of(maps_of(store, tmp_path))


def test_other_bad_input_is_named(tmp_path: Path) -> None:
    store = write_maps(tmp_path, 2)
    with pytest.raises(BeyondClsError, match="depths are from 3 to 2 m, expected 0 < --min-depth < --max-depth"):
        Depth(3, 2)
    with pytest.raises(BeyondClsError, match=r"--per-metre is 0, expected a positive number"):
        Depth(per_metre=0)
    Image.new("I;16", SIZE[::-1]).save(tmp_path / f"maps/{store.ids[0]}.png")
    with pytest.raises(BeyondClsError, match=r"1 of 2 images .* have two files of depth"):
        maps_of(store, tmp_path)
    other = write_maps(tmp_path / "other", 2, weights="other")
    with pytest.raises(BeyondClsError, match="are of two encoders"):
        Regression(store, other, Depth(), tmp_path, tmp_path)
