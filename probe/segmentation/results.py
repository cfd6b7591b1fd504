"""The files of a run: measures and what describes them, tables, confusion matrices and trained heads."""

import contextlib
import csv
import glob
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from probe.result_files import METRICS, computed_by, is_measure, over_seeds, write_result
from probe.segmentation.patch_head import save_patch_head
from probe.segmentation.run import BASELINES, ProtocolOutcome, Protocols, SegmentationResult
from probe.segmentation.saved_maps import IMAGES
from probe.segmentation.sets import Sets
from store.format.pretraining import pretraining_fields
from store.shown import csv_cell


def measures_of(sets: Sets, protocols: Protocols, result: SegmentationResult, about: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured, and what describes it. Measures are percent, with mean, standard deviation and values over seeds.

    `miou_grid` compares patch labels with patch labels; `miou_original` pixels of the original images, `miou_512` pixels of the
    view's frame with a shorter side of 512: values at different resolutions don't compare.
    """
    store = sets.training
    features = {"training": store.spec.key, "test": sets.test.spec.key}
    if sets.validation is not None:
        features["validation"] = sets.validation.spec.key
    return {
        "task": "segmentation",
        "encoder": store.attributes["encoder"],
        **pretraining_fields(store.attributes),
        "features": features,
        "data": sets.test.spec.data,
        "block": sets.learnt.source.probed_block,
        "grid": list(store.grid),
        "final_norm": sets.final_norm,
        "n_training": len(sets.learnt),
        "n_test": len(sets.tested),
        "n_training_patches": sets.learnt.n_labelled,
        "n_test_patches": sets.tested.n_labelled,
        "classes": list(sets.classes),
        "shown": result.shown,
        "protocols": {name: _measures_of_protocol(name, outcome, sets, protocols) for name, outcome in result.outcomes.items()},
        "notes": _notes(sets, result),
        **about,
        **computed_by(sets.device),
    }


def _measures_of_protocol(name: str, outcome: ProtocolOutcome, sets: Sets, protocols: Protocols) -> dict[str, Any]:
    per_model, without = zip(*((model.measures(), model.without_each()) for model in outcome.measured), strict=True)
    names = sorted(per_model[0], key=lambda name: name.endswith("_grid"))  # pixels first, as they are compared elsewhere
    content: dict[str, Any] = {
        measure: over_seeds([m[measure] for m in per_model], [m[measure] for m in without]) for measure in names
    }
    content |= {"seeds": list(outcome.seeds), "chosen": outcome.chosen}
    content["selected"] = None if outcome.selection is None else asdict(outcome.selection)
    if name == "linear":
        plan = protocols.linear
        content |= {"recipe": asdict(plan.recipe), "loss_size": protocols.loss_size, "n_views": len(sets.views)}
    elif name not in BASELINES:
        content["protocol"] = asdict(getattr(protocols, name))
    return {**content, "seconds": round(outcome.seconds, 2), "notes": outcome.notes}


def _notes(sets: Sets, result: SegmentationResult) -> list[str]:
    notes = []
    absent = [name for name, n in zip(sets.classes, sets.learnt.counts, strict=True) if not n]
    if absent:
        notes.append(f"no training patch is of {', '.join(absent)}: what is predicted from patches alone never has them")
    absent = [name for name, n in zip(sets.classes, sets.tested.counts, strict=True) if not n]
    if absent:
        notes.append(f"no test patch is of {', '.join(absent)}: they count in miou_grid only where they are predicted")
    if result.shown is not None and result.shown["percent_outside"] > 0:
        notes.append(f"views show a {result.shown['words']}; published numbers are of whole images")
    return notes


def write(
    folder: Path, sets: Sets, protocols: Protocols, result: SegmentationResult, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write all but label maps into an empty folder; returns what is measured, and what describes it."""
    measures = measures_of(sets, protocols, result, about)
    _write_per_class(folder / "per_class.csv", sets, result)
    _write_confusions(folder / "confusion.csv", sets, result)
    _write_heads(folder, sets, result, measures)
    learnt = {name: measured for name, measured in measures["protocols"].items() if name not in BASELINES}
    write_result(folder / METRICS, _without_nan(measures), _without_nan(learnt))
    return measures


def files_in(folder: Path) -> Iterator[Path]:
    """Heads and label maps of a run that was written there; the other files are those of any run."""
    for name in ("linear", "logistic"):
        yield from (file for suffix in ("json", "safetensors") for file in folder.glob(f"{name}/seed*.{suffix}"))
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # no maps, or damaged
        for image in json.loads((folder / "maps" / IMAGES).read_text())["images"]:
            yield from folder.glob(f"maps/*/{glob.escape(Path(image['file']).name)}")
        yield folder / "maps" / IMAGES


def _write_per_class(file: Path, sets: Sets, result: SegmentationResult) -> None:
    """A row for each class: how many patches it has, and its intersection over union by each protocol (mean over seeds)."""
    columns = {
        f"{name} iou_{resolution}": [m.confusions[resolution].iou for m in outcome.measured]
        for name, outcome in result.outcomes.items()
        for resolution in outcome.measured[0].confusions
    }
    with file.open("w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["class", "n_training_patches", "n_test_patches", *columns])
        for i, name in enumerate(sets.classes):
            ious = [float(np.mean([iou[i] for iou in of_models])) for of_models in columns.values()]
            writer.writerow(
                [csv_cell(name), int(sets.learnt.counts[i]), int(sets.tested.counts[i]), *("" if v != v else v for v in ious)]
            )


def _write_confusions(file: Path, sets: Sets, result: SegmentationResult) -> None:
    """Counts of each protocol, seed, resolution and true class by predicted class."""
    with file.open("w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["protocol", "seed", "resolution", "truth", *map(csv_cell, sets.classes)])
        for name, outcome in result.outcomes.items():
            for seed, model in zip(outcome.seeds or ("",), outcome.measured, strict=True):
                for resolution, confusion in model.confusions.items():
                    for i, counts in enumerate(confusion.counts.tolist()):
                        writer.writerow([name, seed, resolution, csv_cell(sets.classes[i]), *counts])


def _write_heads(folder: Path, sets: Sets, result: SegmentationResult, measures: Mapping[str, Any]) -> None:
    """Write the linear heads, one a seed, with their curves, and the one of logistic regression."""
    source = sets.learnt.source
    common = {**source.description, "classes": list(sets.classes)}
    curves = []
    for name in ("linear", "logistic"):
        if name not in result.outcomes:
            continue
        outcome = result.outcomes[name]
        for number, model in enumerate(outcome.models):
            seed = outcome.seeds[number] if outcome.seeds else 0
            results = {k: v["values"][number] for k, v in measures["protocols"][name].items() if "_" in k and is_measure(v)}
            about = {"protocol": name, "seed": seed, "chosen": outcome.chosen, "result": results, **common}
            assert model.head is not None
            save_patch_head(folder / name / f"seed{seed}", model.head.cpu(), about)
        curves += [{"seed": t.member.seed, **entry} for t in outcome.trained for entry in t.curve]
    with (folder / "curves.csv").open("w", newline="") as target:
        writer = csv.DictWriter(target, ["seed", "epoch", "loss"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(curves)


def _without_nan(value: Any) -> Any:
    """Plain values with null for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and value != value else value
