"""What is known of trained heads, as numbers and on disk."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probe.closed import CLOSED, Closed, Logistic, Ridge, Vectors
from probe.cost import Cost, bytes_read, cost_of, shapes_read
from probe.grid import HeadPlan
from probe.passes import Outcome, Passes
from probe.saved import save_probe
from probe.select import Selected

LINEAR = (Logistic, Ridge)  # protocols whose classifier is a linear layer, as that of a head
UNCOUNTED = "flops_per_image is unknown: this aggregator's steps depend on values, or on its device"


def measures_of(name: str, plan: HeadPlan, passes: Passes, outcomes: Sequence[Outcome], chosen: Selected) -> dict[str, Any]:
    """Content of metrics.json of a head that was trained."""
    cost = _cost(name, passes)
    return {
        **_common(name, plan, passes),
        **{measure: over_seeds([outcome.result[measure] for outcome in outcomes]) for measure in outcomes[0].result},
        "seeds": list(plan.seeds),
        "recipe": _recipe(plan, chosen),
        "selected": chosen.to_dict(),
        "n_parameters": sum(p.numel() for p in outcomes[0].head.parameters()),
        "cost": asdict(cost),
        "notes": [*chosen.notes, *([UNCOUNTED] if cost.flops_per_image is None else [])],
    }


def measures_of_closed(name: str, plan: HeadPlan, protocol: Closed, passes: Passes) -> dict[str, Any]:
    """Content of metrics.json of a protocol without gradient steps, which is run on view 0."""
    sides = []
    for source, pooled in zip((passes.training, passes.test), passes.vectors(name), strict=True):
        labels = torch.from_numpy(source.store.labels[source.rows])
        sides.append(Vectors(pooled.vectors[0].cpu(), labels, source.store.n_classes))
    result, cost = protocol.fit(*sides), _cost(name, passes)
    called = next((known for known, kind in CLOSED.items() if type(protocol) is kind), type(protocol).__name__)
    return {
        **_common(name, plan, passes),
        **{measure: over_seeds([value]) for measure, value in result.metrics.items()},
        "seeds": [],
        "protocol": {"name": called, **vars(protocol)},
        "cost": asdict(cost if isinstance(protocol, LINEAR) else Cost(0, None, None, cost.bytes_per_image)),
        "selected": {**result.chosen, **asdict(result.selection)},
        "notes": list(result.notes),
    }


def _common(name: str, plan: HeadPlan, passes: Passes) -> dict[str, Any]:
    reads = passes.template(name).aggregator.reads
    return {
        "encoder": passes.training.store.attributes["encoder"],
        **plan.head.to_dict(),
        "block": passes.training.probed_block,
        "n_training": len(passes.training.rows),
        "n_test": len(passes.test.rows),
        "n_views": len(passes.views),
        "n_tokens": _n_patches(passes, reads),
        "n_classes": passes.training.store.n_classes,
    }


def _n_patches(passes: Passes, reads: Sequence[str]) -> int | None:
    """T; None for a head that reads no patch tokens, whether they lie here or not."""
    return passes.n_patches if any(kind.startswith("patch") for kind in reads) else None


def _cost(name: str, passes: Passes) -> Cost:
    head = passes.template(name)
    return cost_of(head, shapes_read(head, passes.training), bytes_read(head, passes.training))


def _recipe(plan: HeadPlan, chosen: Selected) -> dict[str, Any]:
    return asdict(replace(plan.recipe, base_lr=chosen.base_lr, weight_decay=chosen.weight_decay))


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation over seeds (n - 1 in the denominator; 0 for one value) and the single values."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": std, "values": [float(value) for value in values]}


def write_measures(folder: Path, measures: Mapping[str, Any]) -> None:
    """Write metrics.json, and remove what an earlier run has left beside it.

    A stage of dvc.yaml has `trained` and `curves.csv`, too: where nothing is trained by steps, they are empty.
    """
    (folder / "trained").mkdir(parents=True, exist_ok=True)
    left = [*folder.glob("trained/seed*.json"), *folder.glob("trained/seed*.safetensors"), folder / "trained/weights.npy"]
    for file in left:
        file.unlink(missing_ok=True)
    (folder / "curves.csv").write_text("seed,epoch\n")
    (folder / "metrics.json").write_text(json.dumps(measures, indent=1) + "\n")


def write_trained(
    folder: Path,
    plan: HeadPlan,
    passes: Passes,
    outcomes: Sequence[Outcome],
    chosen: Selected,
    about: Mapping[str, Any],
) -> None:
    """Write the probes, their weights on the test images, and their curves."""
    trained, store = folder / "trained", passes.training.store
    of_all = {
        "recipe": _recipe(plan, chosen),
        **about,
        **passes.training.described,
        "classes": store.attributes.get("classes"),
    }
    for outcome in outcomes:
        details = {"seed": outcome.member.seed, "result": outcome.result, **of_all}
        n_patches = _n_patches(passes, outcome.head.aggregator.reads)
        save_probe(trained / f"seed{outcome.member.seed}", outcome.head, plan.head, n_patches, details)
    weights = [outcome.weights for outcome in outcomes if outcome.weights is not None]
    if weights:
        mean = torch.stack(weights).mean(0)
        patches = mean[:, -passes.n_patches :] if passes.n_patches else mean  # [cls] comes first where it is weighted too
        np.save(trained / "weights.npy", patches.numpy().astype(np.float32))
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["seed", *outcomes[0].curve[0]])
        writer.writeheader()
        writer.writerows({"seed": outcome.member.seed, **entry} for outcome in outcomes for entry in outcome.curve)
