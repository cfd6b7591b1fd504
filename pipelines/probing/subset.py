"""The part of the training images that heads are trained on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import typer
import xxhash

from probe.subsets import k_shot, percentage
from store import FeatureStore, read_ids, rows_of_ids

Draw = Callable[[int, np.ndarray], np.ndarray]  # of a seed, and the rows to draw from


def subset_of(store: FeatureStore, of_run: dict[str, Any]) -> tuple[np.ndarray | Draw | None, dict[str, Any]]:
    """Rows to train on, if not all, and their record in description.json; removes the parameters of subsets from `of_run`.

    Each seed of a head draws its own k images of each class, or its own percentage, unless there is a seed of the subset.
    """
    k, percent, seed = of_run.pop("k_shot", None), of_run.pop("percent", None), of_run.pop("subset_seed", None)
    if (ids := of_run.pop("ids", None)) is not None:
        return _listed(store, Path(ids))
    if k is None and percent is None:
        return None, {}

    def draw(seed: int, rows: np.ndarray) -> np.ndarray:
        return percentage(store.labels, percent, seed, rows) if k is None else k_shot(store.labels, k, seed, rows)

    about = {"percent": percent} if k is None else {"k_shot": k}
    if seed is None:
        return draw, {"subset": {**about, "seed": "own"}}
    return draw(seed, np.flatnonzero(store.labelled)), {"subset": {**about, "seed": seed}}


def _listed(store: FeatureStore, file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Rows of the images that a file lists, and its record in description.json: a digest of its content, not its path.

    Raises:
        StoreError: no such file, or images that are not in the set.
    """
    named = read_ids(file)
    rows = rows_of_ids(store, named)
    if unusable := int((~store.labelled[rows]).sum()):
        typer.echo(f"{unusable:,} of {len(rows):,} images of {file} have no label or could not be read, and are left out")
    digest = xxhash.xxh3_128_hexdigest("\n".join(named).encode())
    return rows, {"subset": {"ids": file.name, "n_ids": len(named), "n_unusable": unusable, "digest": digest}}
