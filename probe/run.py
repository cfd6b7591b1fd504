"""Stage two: heads trained from feature sets, without the encoder."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probe.aggregators import make_aggregator
from probe.saved import save_probe
from probe.train import Recipe, Trained, train
from store import BeyondClsError, FeatureStore, Loader, StoreError
from store.spec import DATA_FIELDS


def probe(
    training: FeatureStore,
    test: FeatureStore,
    out: Path,
    *,
    aggregator: str = "abmilp",
    options: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    block: int | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train one head per seed and write everything that is known of them into `out`; returns the content of metrics.json.

    Writes `trained/seed<S>.safetensors` and `.json` (the probe), `trained/weights.npy` (mean over seeds of the aggregator's
    weights on the valid test images, [N, T] float16, if it has any), `curves.csv` (seed, epoch, loss, top1, …) and
    `metrics.json`. Nothing is selected: every seed's last epoch counts.

    Args:
        training, test: feature sets of one encoder.
        aggregator: a name in AGGREGATORS; `options` are its own.
        block: whose tokens to read; the deepest stored one by default.
        progress: called with 1 after each epoch.

    Raises:
        BeyondClsError: unknown aggregator, or classes that differ between the sets.
        StoreError: feature sets of two encoders, or without the tokens that the aggregator reads.
    """
    recipe, options = recipe or Recipe(), options or {}
    if not seeds:
        raise BeyondClsError("no seed was given; give at least one")
    check_pair(training, test)
    reads = make_aggregator(aggregator, 1, **options).reads
    n_classes = training.n_classes
    learn = _loader(training, reads, block, recipe.batch_size, True, device)
    judge = _loader(test, reads, block, recipe.batch_size, False, device)
    dim = next(iter(learn.arrays.values())).shape[-1]
    runs = [train(aggregator, options, dim, n_classes, learn, judge, recipe, seed, progress) for seed in seeds]
    trained = out / "trained"
    trained.mkdir(parents=True, exist_ok=True)
    keys = {"training": training.spec.key, "test": test.spec.key}
    for run in runs:
        save_probe(trained / f"seed{run.seed}", run, aggregator, options, dim, n_classes, recipe, keys)
    _write_curves(out / "curves.csv", runs)
    weights = [run.weights for run in runs if run.weights is not None]
    if weights:
        np.save(trained / "weights.npy", np.mean(weights, axis=0).astype(np.float16))
    metrics = {
        "encoder": training.attributes["encoder"],
        "aggregator": aggregator,
        "options": options,
        **{name: _over_seeds(runs, name) for name in runs[0].result},
        "n_training": len(learn.rows),
        "n_test": len(judge.rows),
        "n_tokens": _n_tokens(learn),
        "n_classes": n_classes,
        "seeds": list(seeds),
        "recipe": asdict(recipe),
        "features": keys,
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics


def check_pair(training: FeatureStore, test: FeatureStore) -> None:
    """Refuse sets that do not belong together.

    Raises: StoreError: of two encoders (or transforms, blocks, dtypes), without valid images, or with other classes.
    """
    if training.spec.encoder_key != test.spec.encoder_key:
        differ = [name for name in training.spec.differences(test.spec) if name not in DATA_FIELDS]
        raise StoreError(
            f"{training.path} ({training.attributes['encoder']}, key {training.spec.key}) and {test.path} "
            f"({test.attributes['encoder']}, key {test.spec.key}) are of two encoders or extractions: "
            f"{', '.join(differ)} differ"
        )
    for store in (training, test):
        if not (store.valid & (store.labels >= 0)).any():
            raise StoreError(f"{store.path} has no valid, labelled image; a probe needs labels")
    if training.n_classes != test.n_classes:
        raise StoreError(
            f"{training.path} has {training.n_classes} classes, {test.path} has {test.n_classes}; "
            "use splits of one data set, or give both extractions the same --classes file"
        )
    ours, theirs = training.attributes.get("classes"), test.attributes.get("classes")
    if ours and theirs and ours != theirs:
        a, b = next((a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
        raise StoreError(
            f"class {a!r} of {training.path} is {b!r} in {test.path}; give both extractions the same --classes file"
        )


def _loader(
    store: FeatureStore, reads: Sequence[str], block: int | None, batch_size: int, shuffle: bool, device: str | torch.device
) -> Loader:
    arrays = {kind: store.tokens(kind, block) for kind in reads}  # type: ignore[arg-type]
    rows = np.flatnonzero(store.valid & (store.labels >= 0))
    return Loader(arrays, store.labels, rows, batch_size, shuffle, device)


def _n_tokens(loader: Loader) -> int | None:
    """Patches per image, if patches are read."""
    return loader.arrays["patch"].shape[1] if "patch" in loader.arrays else None


def _over_seeds(runs: Sequence[Trained], name: str) -> dict[str, Any]:
    """Mean, standard deviation over seeds (n - 1 in the denominator; 0 for one seed) and the single values."""
    values = [run.result[name] for run in runs]
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, "values": values}


def _write_curves(path: Path, runs: Sequence[Trained]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["seed", *runs[0].curve[0]])
        writer.writeheader()
        writer.writerows({"seed": run.seed, **entry} for run in runs for entry in run.curve)
