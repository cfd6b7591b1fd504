"""Score maps of a feature set: its stored attention, and the weights of trained probes on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from probe.saved import load_with
from probe.sources import JOINED, Source, check_trained_on
from store import BeyondClsError, FeatureStore, Loader

BATCH_SIZE = 256
STORED = {"cls": "cls", "centre": "centre-patch"}  # kind of map in the store -> its name in results


@dataclass(frozen=True, eq=False)
class ScoreMaps:
    """Maps of one kind, of N images: one for each seed.

    Attributes:
        source: "attention" or "probe".
        name: "cls" (mean over attention heads), "cls-head-3" (counted from 0), "centre-patch" (mean), or a head's folder.
        seeds: of a probe; empty for attention.
    """

    source: Literal["attention", "probe"]
    name: str
    maps: tuple[Float[np.ndarray, "N h w"], ...]
    seeds: tuple[int, ...] = ()


def attention_maps(store: FeatureStore, rows: np.ndarray, view: int = 0, block: int | None = None) -> list[ScoreMaps]:
    """The [cls] row of a block's attention, its mean over attention heads and each head; the mean of the centre patch's row.

    Only maps that the set stores. `block`: the deepest by default.

    Raises:
        StoreError: there is no such view, or no map of that block; or no grid is known.
    """
    score_maps = []
    for kind in (kind for kind in STORED if store.map_blocks(kind)):
        stored = store.attention(kind, block, view).rows(rows)  # [N, H, T]
        grids = stored.reshape(*stored.shape[:2], *store.grid)
        score_maps.append(ScoreMaps("attention", STORED[kind], (grids.mean(1, dtype=np.float32),)))
        if kind == "cls":
            score_maps += [ScoreMaps("attention", f"cls-head-{head}", (grids[:, head],)) for head in range(grids.shape[1])]
    return score_maps


def probe_maps(store: FeatureStore, rows: np.ndarray, folder: Path, view: int = 0) -> ScoreMaps | None:
    """The weights of a head's probes, for all seeds; None if it has no weights over single patches, or they are all equal.

    Args:
        folder: PROBES/ENCODER/HEAD, as `beyondcls probe` writes it.

    Raises:
        BeyondClsError: no probes there, or of another encoder, or one that needs a second feature set; StoreError: no grid
            is known.
    """
    files = sorted((folder / "trained").glob("seed*.json"), key=lambda file: int(file.stem.removeprefix("seed")))
    if not files:
        raise BeyondClsError(
            f"there are no trained probes in {str(folder)!r}, expected {folder}/trained/seed0.json; "
            "name PROBES/ENCODER with --probes, and folders in it with --head"
        )
    heads, described = zip(*(load_with(file) for file in files), strict=True)
    for file, about in zip(files, described, strict=True):
        check_trained_on(file, about, store, framed=False)  # one that was trained on crops may localise whole images
    reads = heads[0].aggregator.reads
    if second := [kind for kind in reads if kind.startswith(JOINED)]:
        raise BeyondClsError(f"{folder} reads {second[0]!r}, of a second feature set, which this does not; leave that head out")
    source = Source(store, block=described[0]["block"])
    arrays = {kind: source.arrays(kind, (view,)) for kind in reads}
    batches = Loader(arrays, store.labels, rows=rows, batch_size=BATCH_SIZE, shuffle=False).epoch()
    n_patches = int(described[0]["n_patches"] or source.n_patches or 0)
    weights: list[list[torch.Tensor]] = [[] for _ in heads]
    with torch.inference_mode():
        for batch in batches:
            for head, parts in zip(heads, weights, strict=True):
                weight = head(batch)[1]
                if weight is None or not 0 < n_patches <= weight.shape[1]:
                    return None
                parts.append(weight[:, -n_patches:])  # [cls] comes first where it is weighted too
    maps = tuple(torch.cat(parts).reshape(-1, *store.grid).numpy() for parts in weights)
    if all((m.min((1, 2)) == m.max((1, 2))).all() for m in maps):
        return None
    return ScoreMaps("probe", folder.name, maps, tuple(int(about["seed"]) for about in described))
