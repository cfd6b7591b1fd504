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
from probe.segmentation.evaluate import GRID, MEASURES
from probe.segmentation.linear import write_curves
from probe.segmentation.patch_head import save_patch_head
from probe.segmentation.run import BASELINES, ProtocolOutcome, Protocols, SegmentationResult
from probe.segmentation.saved_maps import IMAGES
from probe.segmentation.sets import Sets
from store.format.pretraining import pretraining_fields
from store.shown import csv_cell

HEADS = ("linear", "logistic")  # protocols whose heads are kept


def _measures_of_protocol(name: str, outcome: ProtocolOutcome, sets: Sets, protocols: Protocols) -> dict[str, Any]:
    models, content = outcome.measured, dict[str, Any]()
    for resolution in sorted(models[0], key=lambda r: r == GRID):  # pixels first, as they are compared elsewhere
        for measure in MEASURES:
            without = [[getattr(others, measure) for others in model[resolution].without_each()] for model in models]
            values = [getattr(model[resolution], measure) for model in models]
            content[f"{measure}_{resolution}"] = over_seeds(values, without)
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
    for which, patches, so in (
        ("training", sets.learnt, "what is predicted from patches alone never has them"),
        ("test", sets.tested, "they count in miou_grid only where they are predicted"),
    ):
        if absent := [name for name, n in zip(sets.classes, patches.counts, strict=True) if not n]:
            notes.append(f"no {which} patch is of {', '.join(absent)}: {so}")
    if result.shown is not None and result.shown["percent_outside"] > 0:
        notes.append(f"views show a {result.shown['words']}; published numbers are of whole images")
    return notes


def write(
    folder: Path, sets: Sets, protocols: Protocols, result: SegmentationResult, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write all but label maps into an empty folder; returns what is measured, and what describes it.

    Measures are percent, with mean, standard deviation and values over seeds. `miou_grid` compares patch labels with patch
    labels; `miou_original` pixels of the original images, `miou_512` pixels of the view's frame with a shorter side of 512:
    values at different resolutions don't compare.
    """
    stores = {"training": sets.training, "test": sets.test, "validation": sets.validation}
    measured = {name: _measures_of_protocol(name, outcome, sets, protocols) for name, outcome in result.outcomes.items()}
    measures = {
        "task": "segmentation",
        "encoder": sets.training.attributes["encoder"],
        **pretraining_fields(sets.training.attributes),
        "features": {name: store.spec.key for name, store in stores.items() if store is not None},
        "data": sets.test.spec.data,
        "block": sets.learnt.source.probed_block,
        "grid": list(sets.training.grid),
        "final_norm": sets.final_norm,
        "n_training": len(sets.learnt),
        "n_test": len(sets.tested),
        "n_training_patches": sets.learnt.n_labelled,
        "n_test_patches": sets.tested.n_labelled,
        "classes": list(sets.classes),
        "shown": result.shown,
        "protocols": measured,
        "notes": _notes(sets, result),
        **about,
        **computed_by(sets.device),
    }
    _write_per_class(folder / "per_class.csv", sets, result)
    _write_confusions(folder / "confusion.csv", sets, result)
    _write_heads(folder, sets, result, measures)
    learnt = {name: of_protocol for name, of_protocol in measured.items() if name not in BASELINES}
    write_result(folder / METRICS, _without_nan(measures), _without_nan(learnt))
    return measures


def files_in(folder: Path) -> Iterator[Path]:
    """Heads and label maps of a run that was written there; the other files are those of any run."""
    for name in HEADS:
        yield from (file for suffix in ("json", "safetensors") for file in folder.glob(f"{name}/seed*.{suffix}"))
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # no maps, or damaged
        for image in json.loads((folder / "maps" / IMAGES).read_text())["images"]:
            yield from folder.glob(f"maps/*/{glob.escape(Path(image['file']).name)}")
        yield folder / "maps" / IMAGES


def _write_per_class(file: Path, sets: Sets, result: SegmentationResult) -> None:
    """A row for each class: how many patches it has, and its intersection over union by each protocol (mean over seeds)."""
    columns = {
        f"{name} iou_{resolution}": [m[resolution].iou for m in outcome.measured]
        for name, outcome in result.outcomes.items()
        for resolution in outcome.measured[0]
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
                for resolution, confusion in model.items():
                    for i, counts in enumerate(confusion.counts.tolist()):
                        writer.writerow([name, seed, resolution, csv_cell(sets.classes[i]), *counts])


def _write_heads(folder: Path, sets: Sets, result: SegmentationResult, measures: Mapping[str, Any]) -> None:
    """Write the linear heads, one a seed, with their curves, and the one of logistic regression."""
    common = {**sets.learnt.source.description, "classes": list(sets.classes)}
    for name in HEADS:
        if (outcome := result.outcomes.get(name)) is None:
            continue
        for number, model in enumerate(outcome.models):
            seed = outcome.seeds[number] if outcome.seeds else 0
            results = {k: v["values"][number] for k, v in measures["protocols"][name].items() if is_measure(v)}
            about = {"protocol": name, "seed": seed, "chosen": outcome.chosen, "result": results, **common}
            assert model.head is not None
            save_patch_head(folder / name / f"seed{seed}", model.head.cpu(), about)
    write_curves(folder / "curves.csv", [one for outcome in result.outcomes.values() for one in outcome.trained])


def _without_nan(value: Any) -> Any:
    """Plain values with null for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and value != value else value
