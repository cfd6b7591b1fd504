"""Heads that are in their folders and stay there, as they were trained from what is asked for now."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError

from probe.aggregators import is_custom
from probe.grid import HeadPlan, Member
from probe.passes import Outcome, Passes
from probe.ranks import broadcast_from_first
from probe.record import difference, read_record, request_of, selected_before
from probe.result_files import METRICS, read_result
from probe.results import update_description
from probe.saved import load_with
from probe.select import Selected
from store import BeyondClsError
from store.format.pretraining import pretraining_fields

DAMAGED = (BeyondClsError, OSError, EOFError, ValueError, KeyError, TypeError, IndexError, BadZipFile, SafetensorError)


def heads_in_place(
    plans: Mapping[str, HeadPlan],
    passes: Passes,
    held_out: float,
    folders: Mapping[str, Path],
    about: Mapping[str, Any],
) -> dict[str, tuple[dict[str, Any], Selected]]:
    """Heads of one group that need not be trained again: what is measured and described of each, and its setting.

    Those are heads that were trained for exactly this request, by training as it is now (`probe.record`), whose files are
    complete and can be read. Nothing of them is changed, except what description.json says about the encoder's pretraining if
    the feature set says otherwise by now. For the other heads that are in place, `passes.say` is called with the reason to
    train again. Of several processes the first decides.
    """
    kept = {}
    for name, plan in plans.items():
        folder = folders[name]
        if passes.rank or not (folder / METRICS).is_file():
            continue
        try:
            record = read_record(folder)
            if (why := difference(record, request_of(plan, passes, held_out, about))) is None:
                chosen = selected_before(name, plan, record, passes, held_out)
                stored_outcomes(name, plan, passes, folder, chosen)
                kept[name] = update_description(folder, pretraining_fields(passes.training.store.attributes)), chosen
        except DAMAGED as error:
            why = f"its files are incomplete or damaged ({type(error).__name__}: {error})"
        passes.say(f"{folder}: " + ("kept, it was trained from the same request" if why is None else f"trained again, {why}"))
    return broadcast_from_first(kept)


def stored_outcomes(name: str, plan: HeadPlan, passes: Passes, folder: Path, chosen: Selected) -> list[Outcome]:
    """The trained seeds of a head, as its files have them; the mean of their weights is the first one's.

    Raises:
        BeyondClsError: files are missing or damaged, or not of one run.
        OSError: files are missing or damaged.
        ValueError: files are missing or damaged.
        KeyError: files are missing or damaged.
    """
    measures, aggregator, curves = read_result(folder / METRICS), plan.head.aggregator, dict[int, list[dict[str, float]]]()
    with (folder / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values = {name: int(value) if name == "epoch" else float(value) for name, value in row.items() if name != "seed"}
            curves.setdefault(int(row["seed"]), []).append(values)
    outcomes = []
    for i, seed in enumerate(plan.seeds):
        head, described = load_with(folder / f"trained/seed{seed}", aggregator if is_custom(aggregator) else None)
        passes.use_vectors(head)
        result, curve = described["result"], curves[seed]
        if len(curve) != plan.recipe.epochs:
            raise ValueError(f"curves.csv has {len(curve)} epochs of seed {seed}, expected {plan.recipe.epochs}")
        if differ := [measure for measure, value in result.items() if repr(measures[measure]["values"][i]) != repr(value)]:
            raise ValueError(f"{differ[0]} of seed {seed} is another one in trained/seed{seed}.json than in {METRICS}")
        outcomes.append(Outcome(Member(name, chosen.base_lr, chosen.weight_decay, seed), head, curve, result))
    if "entropy" in measures:
        outcomes[0].weights = torch.from_numpy(_of_each_image(np.load(folder / "trained/weights.npy"), passes, 0))
    if not passes.test.store.multilabel:
        with np.load(folder / "trained/correct.npz", allow_pickle=False) as arrays:
            for outcome, right in zip(outcomes, _of_each_image(arrays["correct"], passes, 1), strict=True):
                outcome.correct = torch.from_numpy(right)
    return outcomes


def _of_each_image(values: np.ndarray, passes: Passes, axis: int) -> np.ndarray:
    if values.ndim != 2 or values.shape[axis] != len(passes.test.rows):
        raise ValueError(f"an array of shape {values.shape} is not of the {len(passes.test.rows):,} test images")
    return values
