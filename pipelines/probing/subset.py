"""The part of the training images that heads are trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import typer
import xxhash

from probe.subsets import k_shot, percentage
from store import FeatureStore, read_ids, rows_of_ids


def subset_of(store: FeatureStore, of_run: dict[str, Any]) -> tuple[np.ndarray | None, dict[str, Any]]:
    """Rows to train on, if not all, and their record in description.json; removes the parameters of subsets from `of_run`."""
    k, percent, seed = of_run.pop("k_shot", None), of_run.pop("percent", None), of_run.pop("subset_seed", 0)
    if (ids := of_run.pop("ids", None)) is not None:
        return _listed(store, Path(ids))
    rows = np.flatnonzero(store.labelled)
    if k is not None:
        return k_shot(store.labels, k, seed, rows), {"subset": {"k_shot": k, "seed": seed}}
    if percent is not None:
        return percentage(store.labels, percent, seed, rows), {"subset": {"percent": percent, "seed": seed}}
    return None, {}


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
