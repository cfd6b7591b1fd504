"""Correspondence: whether the patch most like that of a point in one image lies where the same point is in another.

Nothing is trained. Pairs and their points are those of SPair-71k, or a table of points of any images.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import grid_sample, normalize

from probe.subsets import over_images, readable_rows
from store import BeyondClsError, FeatureStore

THRESHOLDS = (0.05, 0.1, 0.15)  # shares of a pair's size within which a point is found
COLUMNS = ("source", "target", "x", "y", "target_x", "target_y", "size")  # of a table of points; `category` may be one, too
IN_MEMORY = 128  # images whose tokens are kept while pairs of them follow one another
FORM = f"a folder of SPair-71k's PairAnnotation (…/test/*.json), or a .csv with the columns {', '.join(COLUMNS)}"


@dataclass(frozen=True, eq=False)
class Pair:
    """Points of one image, and the same points in another, in pixels of the originals.

    Attributes:
        source, target: ids of the images, or their files' names.
        size: pixels of which thresholds are shares: the longer side of the object's box in the target image.
    """

    source: str
    target: str
    category: str
    points: Float[np.ndarray, "K 2"]
    target_points: Float[np.ndarray, "K 2"]
    size: float


def read_pairs(place: str | Path) -> list[Pair]:
    """Pairs in the order of their files' names, or of the table, whose rows of one pair follow one another.

    Raises:
        BeyondClsError: there are none, or a file is not as it should be.
    """
    path, pairs = Path(place), list[Pair]()
    if not path.is_dir() and not (path.suffix == ".csv" and path.is_file()):
        raise BeyondClsError(f"{path} is neither; expected {FORM}")
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            pairs += [_pair_from_spair(file)] if path.is_dir() else _pairs_from_table(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error) as error:
            reason = f"{type(error).__name__}: {error}"
            raise BeyondClsError(f"{file} holds no pair of images with points ({reason}); expected {FORM}") from error
    if not pairs:
        raise BeyondClsError(f"there are no pairs in {path}; expected {FORM}")
    return pairs


def _pair_from_spair(file: Path) -> Pair:
    content = json.loads(file.read_text(encoding="utf-8"))
    left, top, right, bottom = content["trg_bndbox"]
    category, size = content["category"], max(right - left, bottom - top)
    source, target = (f"{category}/{content[name]}" for name in ("src_imname", "trg_imname"))
    return _pair(source, target, category, content["src_kps"], content["trg_kps"], size)


def _pairs_from_table(file: Path) -> list[Pair]:
    by_pair: dict[tuple[str, str], list[dict[str, str]]] = {}
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for row in csv.DictReader(lines):
            by_pair.setdefault((row["source"], row["target"]), []).append(row)
    pairs = []
    for (source, target), rows in by_pair.items():
        points, others = ([[row[x], row[y]] for row in rows] for x, y in (("x", "y"), ("target_x", "target_y")))
        pairs.append(_pair(source, target, rows[0].get("category") or "", points, others, rows[0]["size"]))
    return pairs


def _pair(source: str, target: str, category: str, points: Any, others: Any, size: Any) -> Pair:
    one, other = (np.asarray(some, np.float64) for some in (points, others))
    if one.shape != other.shape or one.shape[1:] != (2,) or not np.isfinite([one, other]).all():
        raise ValueError(f"points {one.shape} and {other.shape}, expected as many x, y in both images")
    if not 0 < float(size) < float("inf"):
        raise ValueError(f"a size of {size} pixels, expected a positive one")
    return Pair(source, target, category, one, other, float(size))


@dataclass(frozen=True, eq=False)
class Shown:
    """Pairs whose points the views of a feature set show.

    Attributes:
        pairs: with those of their points that both views show.
        rows: of the source and of the target image of each.
        n_points: of them; `n_outside`: points that are outside of a view, and count nowhere.
    """

    pairs: Sequence[Pair]
    rows: Int[np.ndarray, "P 2"]
    crops: Float[np.ndarray, "N 4"]
    n_points: int
    n_outside: int


def shown_points(store: FeatureStore, pairs: Sequence[Pair]) -> Shown:
    """What view 0 of the images of a set shows.

    Raises:
        BeyondClsError: an image of a pair is not in the set, or could not be read; or no point is shown.
    """
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.source, pair.target)))
    row_of = dict(zip(names, readable_rows(store, names).tolist(), strict=True))
    crops = store.array("images/crop/view0").all().astype(np.float64)
    kept, rows, n_all = [], [], 0
    for pair in pairs:
        of_pair = row_of[pair.source], row_of[pair.target]
        both = ((pair.points, crops[of_pair[0]]), (pair.target_points, crops[of_pair[1]]))
        inside = np.logical_and.reduce([((some >= crop[:2]) & (some <= crop[2:])).all(1) for some, crop in both])
        n_all += len(inside)
        if inside.any():
            kept.append(replace(pair, points=pair.points[inside], target_points=pair.target_points[inside]))
            rows.append(of_pair)
    if not kept:
        raise BeyondClsError(
            f"no view of {store.where} shows a point of these pairs; extract whole images: --crop-mode squash --crop-pct 1"
        )
    n = sum(len(pair.points) for pair in kept)
    return Shown(kept, np.array(rows), crops, n, n_all - n)


def kept_blocks(store: FeatureStore, block: int | None = None) -> list[int]:
    """Blocks whose patch tokens a set has, or the one that is asked for.

    Raises:
        BeyondClsError: there is none, or not that one.
    """
    kept = sorted(store.spec.blocks) if "patch" in store.kinds else []
    if not kept or block not in (None, *kept):
        raise BeyondClsError(
            f"{store.where} has patch tokens of {'blocks ' + ', '.join(map(str, kept)) if kept else 'no block'}"
            f"{'' if block is None else f', and --block is {block}'}; extract it with --blocks, and without --vectors only"
        )
    return kept if block is None else [block]


def correspondence(
    store: FeatureStore,
    seen: Shown,
    block: int,
    thresholds: Sequence[float] = THRESHOLDS,
    device: str | torch.device = "cpu",
    advance: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """Percentage of correct keypoints (PCK) of a block's patch tokens, as `over_seeds` makes it.

    `pck_0.1_point` is that of all points, `pck_0.1_image` the mean over pairs of each pair's. `chance` is what a patch that is
    drawn would reach, of all points, `categories` have their own.

    The token of a point lies between those of the four patches around it (bilinear); of the target's patches the one that is
    most like it by cosine is the answer, at its centre. It is right if it is not farther from the point than the threshold
    times the size of the pair. Images are left out in turn, with all their pairs.

    Args:
        seen: of `shown_points`.
        advance: called with 1 after each pair.

    Raises:
        BeyondClsError: a threshold that is not positive.

    Source: Min et al. 2019 (SPair-71k, arXiv 1908.10543), α of the target's box; El Banani et al. 2024 (Probe3D, arXiv
    2404.08636) for bilinear tokens and the best patch. Their code puts a patch's answer at its corner.
    """
    if any(not threshold > 0 for threshold in thresholds):
        raise BeyondClsError(f"thresholds are {list(thresholds)}, expected positive shares such as 0.1")
    errors, chances = [], []
    for error, distances in _errors(store, seen, block, device):
        errors.append(error)
        chances.append(np.array([(distances <= threshold).mean() for threshold in thresholds]))
        advance(1)
    n_points = np.array([len(error) for error in errors])
    right = np.array([[(error <= threshold).sum() for threshold in thresholds] for error in errors])
    images, of_pair = np.unique(seen.rows, return_inverse=True)
    of_pair = of_pair.reshape(seen.rows.shape)

    def percent(chosen: np.ndarray, i: int, per_image: bool) -> float:
        kept = chosen[of_pair].all(1)
        if not kept.any():
            return float("nan")
        n_right, n = right[kept, i], n_points[kept]
        return 100 * float((n_right / n).mean() if per_image else n_right.sum() / n.sum())

    measured: dict[str, Any] = {}
    names = [f"{threshold:g}" for threshold in thresholds]
    for i, name in enumerate(names):
        measured[f"pck_{name}_point"] = over_images(len(images), partial(percent, i=i, per_image=False))
        measured[f"pck_{name}_image"] = over_images(len(images), partial(percent, i=i, per_image=True))
    weighed = 100 * np.average(chances, axis=0, weights=n_points)
    measured["chance"] = dict(zip(names, weighed.tolist(), strict=True))
    categories, of_each = np.array([pair.category for pair in seen.pairs]), {}
    for category in sorted(set(categories) - {""}):  # pairs, and PCK per point
        of_name = categories == category
        shares = 100 * right[of_name].sum(0) / n_points[of_name].sum()
        of_each[str(category)] = {"pairs": int(of_name.sum()), **dict(zip(names, shares.tolist(), strict=True))}
    return {**measured, "categories": of_each}


def _errors(
    store: FeatureStore, seen: Shown, block: int, device: str | torch.device
) -> Iterator[tuple[Float[np.ndarray, "K"], Float[np.ndarray, "K T"]]]:
    """For each pair how far each answer is from the point, and how far each patch would be, as shares of the pair's size."""
    array = store.tokens("patch", block=block)
    height, width = store.grid

    @lru_cache(IN_MEMORY)
    def tokens(row: int) -> Float[Tensor, "D h w"]:
        read = torch.from_numpy(array.rows(np.array([row]))[0].astype(np.float32)).to(device)
        return normalize(read, dim=1).T.reshape(-1, height, width)

    centres = np.stack(np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height), -1).reshape(-1, 2)
    for pair, (source, target) in zip(seen.pairs, seen.rows.tolist(), strict=True):
        crop, other = seen.crops[source], seen.crops[target]
        places = torch.from_numpy((pair.points - crop[:2]) / (crop[2:] - crop[:2])).float().to(device)
        # Beyond the centres of the outermost patches, these alone.
        at = grid_sample(tokens(source)[None], 2 * places[None, None] - 1, padding_mode="border", align_corners=False)
        similar = at[0, :, 0].T @ tokens(target).flatten(1)
        positions = other[:2] + centres * (other[2:] - other[:2])
        distances = np.linalg.norm(positions - pair.target_points[:, None], axis=2) / pair.size
        yield distances[np.arange(len(distances)), similar.argmax(1).cpu().numpy()], distances
