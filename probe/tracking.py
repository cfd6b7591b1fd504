"""Tracking: the objects of a video's first frame, found in later frames by the most similar patches.

Nothing is trained. Frames are images of a feature set whose ids are VIDEO/FRAME; masks are files, as those of DAVIS.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16
from scipy.ndimage import distance_transform_edt
from torch import Tensor
from torch.nn.functional import normalize

from probe.segmentation.label_maps import Upsampling
from probe.subsets import over_images, readable_rows
from probe.views import View, read_png
from store import BeyondClsError, FeatureStore
from store.truths.view import map_in_view

VOID = 255  # pixels of masks that no measure counts
TOLERANCE = 0.008  # of the diagonal, within which a contour is found
PATCHES_AT_ONCE = 512  # of a frame, whose similarities are in memory
MEASURES = {"j_and_f": (0, 1), "j": (0,), "f": (1,)}  # columns of J and F
FORM = "a folder with VIDEO/FRAME.png, 0 being the background, 1, 2, … objects, 255 what is not measured"


@dataclass(frozen=True)
class Propagation:
    """From which patches the label of a patch comes, by default as in DINO's evaluation.

    Attributes:
        n_frames: right before a frame that count, beside the first one.
        radius: rows and columns by which a patch may lie away; 0: any.
        k: most similar patches of all these frames, whose labels are averaged.
        temperature: of the weights of these, exp(cosine / temperature).
    """

    n_frames: int = 7
    radius: int = 12
    k: int = 5
    temperature: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (("n_frames", 0), ("radius", 0), ("k", 1)):
            if getattr(self, name) < least:
                raise BeyondClsError(f"--{name.replace('_', '-')} is {getattr(self, name)}, expected {least} or more")
        if not 0 < self.temperature < math.inf:
            raise BeyondClsError(f"--temperature is {self.temperature}, expected a positive number such as 0.1")


@dataclass(frozen=True, eq=False)
class Video:
    """Frames in their order.

    Attributes:
        rows: of the frames in the feature set.
        masks: by number of a frame; that of the first one is given, the others are measured.
    """

    name: str
    rows: Sequence[int]
    masks: dict[int, Path]


def read_videos(store: FeatureStore, masks: Path, names: Sequence[str] | None = None) -> list[Video]:
    """Videos of a feature set with their masks. The last frame is not measured, as in DAVIS.

    Args:
        names: of the videos; all by default.

    Raises:
        BeyondClsError: ids are not VIDEO/FRAME, a video is not there or a frame could not be read; or there is no mask of a
            first frame, or of no other one.
    """
    by_video: dict[str, list[str]] = {}
    for name in sorted(store.ids, key=frame_order):
        by_video.setdefault(str(PurePosixPath(name).parent), []).append(name)
    if wrong := next((name for name in by_video if name == "." or ".." in name or name.startswith("/")), None):
        raise BeyondClsError(
            f"image {by_video[wrong][0]!r} of {store.where} is of no video, expected ids VIDEO/FRAME; extract a folder with a "
            "folder of frames for each video"
        )
    if absent := [name for name in names or () if name not in by_video]:
        raise BeyondClsError(
            f"{len(absent)} of {len(names or ())} videos are not in {store.where}, first {absent[0]!r}, expected some of "
            f"{', '.join(list(by_video)[:5])}, …; correct --videos"
        )
    videos = []
    for name in dict.fromkeys(names or by_video):
        frames = by_video[name]
        files = [masks / f"{frame}.png" for frame in frames]
        found = {number: file for number, file in enumerate(files) if file.is_file() and number < max(len(files) - 1, 1)}
        if 0 not in found or len(found) < 2:
            what = f"only {files[0]} of its first frame" if found else f"no {files[0]} of its first frame"
            raise BeyondClsError(
                f"video {name!r} of {len(frames)} frames has {what}, expected masks of the first and of others but the last: "
                f"{FORM}; name videos that have these with --videos"
            )
        videos.append(Video(name, readable_rows(store, frames).tolist(), found))
    return videos


def frame_order(name: str) -> list[str | int]:
    """By which ids are sorted: frame 9 comes before frame 10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


def propagate(
    frames: Iterator[Float[Tensor, "T D"]],
    first: Float[Tensor, "T C"],
    grid: tuple[int, int],
    how: Propagation,
) -> Iterator[Float[Tensor, "T C"]]:
    """Labels of the patches of each frame after the first, given those of the first: shares of C objects.

    Args:
        frames: patch tokens of unit length.
        grid: rows and columns of patches.

    Source: Jabri et al. 2020 (arXiv 2006.14613), with the values and the code of DINO (Caron et al. 2021).
    """
    rows, columns = (places.flatten() for places in torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij"))
    rows, columns = rows.to(first.device), columns.to(first.device)
    beginning = (next(frames), first)
    before: deque[tuple[Tensor, Tensor]] = deque(maxlen=how.n_frames)
    for tokens in frames:
        sources, labels = (torch.cat(parts) for parts in zip(beginning, *before, strict=True))
        shares = []
        for part in torch.arange(len(tokens), device=tokens.device).split(PATCHES_AT_ONCE):
            similar = (tokens[part] @ sources.T).view(len(part), -1, len(tokens))  # [p, frames, T]
            if how.radius:
                far = ((rows[part, None] - rows).abs() > how.radius) | ((columns[part, None] - columns).abs() > how.radius)
                similar.masked_fill_(far[:, None], -math.inf)
            best, places = similar.flatten(1).topk(min(how.k, similar[0].numel()))
            weights = (best / how.temperature).softmax(1)
            shares.append((weights[:, :, None] * labels[places]).sum(1))
        passed_on = torch.cat(shares)
        yield passed_on
        before.append((tokens, passed_on))


def still(store: FeatureStore, videos: Sequence[Video]) -> dict[str, Any]:
    """What the first frame's mask reaches in all frames, and how many objects there are; every mask is read.

    Raises:
        BeyondClsError: a mask is no PNG of one channel, or of another size, or that of a first frame has no object.
    """
    view, of_videos = View(store), []
    for video in videos:
        given, objects = _first_mask(video, view)
        masks = (_mask(video, n, view) for n in video.masks if n)
        # A mask of another size is of no pixel.
        frames = [of_objects(given if given.shape == mask.shape else np.zeros_like(mask), mask, objects) for mask in masks]
        of_videos.append(np.mean(frames, 0))
    every = np.full(len(videos), True)
    means = {name: _over_videos(of_videos, columns, every) for name, columns in MEASURES.items()}
    return {"still": means, "n_objects": sum(map(len, of_videos))}


def tracking(
    store: FeatureStore,
    videos: Sequence[Video],
    block: int,
    how: Propagation,
    device: str | torch.device = "cpu",
    advance: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """J (`region_measure`), F (`contour_measure`) and their mean, percent: over objects, of each one's mean over frames.

    Each is as `over_seeds` makes it, with videos left out in turn.

    Args:
        advance: called with 1 after each frame.

    Raises:
        BeyondClsError: as `still`.
    Source: Pont-Tuset et al. 2017 (DAVIS 2017, arXiv 1704.00675).
    """
    view, array = View(store), store.tokens("patch", block=block)
    of_videos = list[Float[np.ndarray, "objects 2"]]()

    def tokens_of(rows: Sequence[int]) -> Iterator[Float[Tensor, "T D"]]:
        for row in rows:
            yield normalize(torch.from_numpy(array.rows(np.array([row]))[0].astype(np.float32)).to(device), dim=1)
            advance(1)

    for video in videos:
        given, objects = _first_mask(video, view)
        on_grid = map_in_view(given, *view.shows(video.rows[0]), store.grid).flatten()
        labels = torch.from_numpy(on_grid[:, None] == [0, *objects]).float().to(device)
        frames = []
        for number, shares in enumerate(propagate(tokens_of(video.rows), labels, store.grid, how), 1):
            if number not in video.masks:
                continue
            truth = _mask(video, number, view)
            upsampling = Upsampling.to_original(store.grid, *view.shows(video.rows[number]), truth.shape)
            predicted = label_map(shares.T.reshape(-1, *store.grid), upsampling, truth.shape)
            frames.append(of_objects(np.array([0, *objects])[predicted], truth, objects))
        of_videos.append(np.mean(frames, 0))
    n = len(videos)
    return {name: over_images(n, partial(_over_videos, of_videos, columns)) for name, columns in MEASURES.items()}


def _mask(video: Video, number: int, view: View) -> Int16[np.ndarray, "h w"]:
    """Objects of the pixels of a frame; VOID where nothing is measured.

    Raises:
        BeyondClsError: it is no PNG of one channel, or of another size.
    """
    size = view.size(video.rows[number])
    expected = f"a PNG of one channel, of {size[1]} x {size[0]} pixels (width x height) as its frame"
    return read_png(video.masks[number], size, ("P", "L"), expected).astype(np.int16)


def _first_mask(video: Video, view: View) -> tuple[Int16[np.ndarray, "h w"], list[int]]:
    """It, and its objects."""
    given = _mask(video, 0, view)
    objects = [int(label) for label in np.unique(given) if label not in (0, VOID)]
    if not objects:
        raise BeyondClsError(f"{video.masks[0]} has no object, expected one or more in a video's first frame: {FORM}")
    return given, objects


def _over_videos(of_videos: Sequence[np.ndarray], columns: Sequence[int], chosen: Bool[np.ndarray, "n"]) -> float:
    return 100 * float(np.concatenate(list(compress(of_videos, chosen)))[:, columns].mean())


def label_map(shares: Float[Tensor, "C rows columns"], upsampling: Upsampling, size: tuple[int, int]) -> np.ndarray:
    """The object of each pixel of `size` (height, width), 0 where the view does not show it.

    Shares are interpolated, and those of each object stretched to 0…1 in the frame, as DINO's code does; the highest counts.
    """
    values = upsampling.bilinear(shares.cpu())
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    values = torch.where(high > 0, (values - low) / (high - low), values)
    objects = np.zeros(size, np.int64)
    objects[upsampling.shown] = values.nan_to_num(1.0).argmax(0).numpy()
    return objects


def of_objects(
    predicted: Int[np.ndarray, "h w"], truth: Int[np.ndarray, "h w"], objects: Sequence[int]
) -> Float[np.ndarray, "objects 2"]:
    """J and F of each object, at the pixels that are not VOID."""
    counts = truth != VOID
    masks = [((predicted == label) & counts, truth == label) for label in objects]
    return np.array([(region_measure(*pair), contour_measure(*pair)) for pair in masks])


def region_measure(predicted: Bool[np.ndarray, "h w"], truth: Bool[np.ndarray, "h w"]) -> float:
    """J: intersection over union, 0…1; 1 where both are empty."""
    union = int((predicted | truth).sum())
    return int((predicted & truth).sum()) / union if union else 1.0


def contour_measure(predicted: Bool[np.ndarray, "h w"], truth: Bool[np.ndarray, "h w"]) -> float:
    """F: harmonic mean of the shares of each contour that lie near the other, 0…1; 1 where neither has any.

    Near is within 0.008 of the diagonal, rounded up to whole pixels.
    """
    one, other = contours(predicted), contours(truth)
    if not one.any() or not other.any():
        return float(one.any() == other.any())
    reach = math.ceil(TOLERANCE * math.hypot(*truth.shape))
    precision, recall = ((distance_transform_edt(~b)[a] <= reach).mean() for a, b in ((one, other), (other, one)))
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def contours(mask: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Pixels that differ from that on their right, below them, or below on the right."""
    more = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    return (mask ^ more[:-1, 1:]) | (mask ^ more[1:, :-1]) | (mask ^ more[1:, 1:])
