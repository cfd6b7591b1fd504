"""A probe that is in place stays if the present program would train the same: a few steps show it, instead of all."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError

from probe.agreement import LOSS, Agreement
from probe.grid import HeadPlan, Member
from probe.passes import Outcome, Passes
from probe.ranks import broadcast_from_first
from probe.recipe import Recipe
from probe.record import read_record, request_of
from probe.result_files import METRICS
from probe.results import KEPT, measures_of, update_description, write_measures, write_trained
from probe.select import Selected, Tried, best_setting, trials
from probe.stored import first_difference, stored_probe
from store import BeyondClsError
from store.format.pretraining import pretraining_fields

DAMAGED = (BeyondClsError, OSError, EOFError, ValueError, KeyError, TypeError, IndexError, BadZipFile, SafetensorError)


def keep_unchanged(
    plans: Mapping[str, HeadPlan],
    passes: Passes,
    recipe: Recipe,
    held_out: float,
    folders: Mapping[str, Path],
    about: Mapping[str, Any],
) -> dict[str, tuple[dict[str, Any], Selected]]:
    """Heads of one group that need not be trained again: what is measured and described of each, and its setting.

    Those are heads that were trained for exactly this request, whose rehearsed steps agree with the record (`rehearsal`), whose
    stored parameters still have the recorded measures on the test images, and whose files would be written as they are. Nothing
    of them is changed, except what description.json says about the encoder's pretraining if the feature set says otherwise by
    now, and that an earlier version's metrics.json becomes two files; what was compared is written into kept.json beside them.
    For the other heads that are in place, `say` is called with the reason to train again.
    """
    check = _Check(plans, passes, held_out, folders, about)
    chosen = broadcast_from_first(check.in_place() if passes.rank == 0 else {})
    if not chosen:
        return {}
    if any(len(plans[name].settings) > 1 for name in chosen):
        for members, *split in trials(plans, passes, held_out):
            passes.rehearse(members, recipe, chosen, *split)
    settings = {n: (chosen[n].base_lr, chosen[n].weight_decay) if n in chosen else plans[n].settings[0] for n in plans}
    members = [Member(name, *settings[name], seed) for name, plan in plans.items() for seed in plan.seeds]
    passes.rehearse(members, recipe, chosen)
    kept_measures = broadcast_from_first(check.agreeing_heads(chosen, recipe) if passes.rank == 0 else {})
    passes.rehearsed.clear()  # what trains is rehearsed again
    return {name: (measures, chosen[name]) for name, measures in kept_measures.items()}


def stored_outcomes(
    name: str,
    plan: HeadPlan,
    passes: Passes,
    folder: Path,
    chosen: Selected,
    recipe: Recipe,
    agreement: Agreement | None = None,
) -> list[Outcome]:
    """The trained seeds of a head in its folder, measured now, with the measures that are in its files.

    Args:
        agreement: compares both.
    """
    probe, setting = stored_probe(folder, plan), (chosen.base_lr, chosen.weight_decay)
    trained = {Member(name, *setting, seed): (stored.head, stored.curve) for seed, stored in probe.items()}
    by_seed = {outcome.member.seed: outcome for outcome in passes.measure(trained, recipe)}
    for seed, outcome in by_seed.items():
        if agreement is not None:
            agreement.compare_measures(seed, probe[seed].result, outcome.result)
        outcome.result = dict(probe[seed].result)
    return [by_seed[seed] for seed in plan.seeds]


class _Check:
    """The check of one group of heads; the first process makes it for all."""

    def __init__(
        self,
        plans: Mapping[str, HeadPlan],
        passes: Passes,
        held_out: float,
        folders: Mapping[str, Path],
        about: Mapping[str, Any],
    ):
        self.plans, self.passes, self.held_out, self.folders, self.about = plans, passes, held_out, folders, about
        self.records: dict[str, dict[str, Any]] = {}

    def in_place(self) -> dict[str, Selected]:
        """Heads that were trained for exactly this request, with the settings chosen from their grids."""
        chosen = {}
        for name, plan in self.plans.items():
            folder = self.folders[name]
            if not (folder / METRICS).is_file():
                continue
            if (record := read_record(folder)) is None:
                self._say_retrained(
                    name, "nothing is recorded of its first steps: it is older, unfinished, or too short for a check"
                )
            elif differ := _differing_paths(record["request"], request_of(plan, self.passes, self.held_out, self.about)):
                self._say_retrained(name, f"the request differs ({', '.join(differ[:3])})")
            else:
                try:
                    chosen[name] = self._chosen(name, plan, record)
                    self.records[name] = record
                except DAMAGED:
                    self._say_retrained(name, "what is recorded of its first steps is damaged")
        return chosen

    def agreeing_heads(self, chosen: Mapping[str, Selected], recipe: Recipe) -> dict[str, dict[str, Any]]:
        """What is measured and described of the heads that agree."""
        kept_measures = {}
        for name, selected in chosen.items():
            agreement = Agreement()
            try:
                agreement.compare_passes(self.records[name]["passes"], self.passes.rehearsed.get(name, {}))
                differs = agreement.differs or self._what_is_stored(name, selected, recipe, agreement)
            except DAMAGED as error:
                self._say_retrained(name, f"its files are incomplete or damaged ({error})")
                continue
            if differs is not None:
                self._say_retrained(name, f"not as before: {differs}")
                continue
            kept_measures[name] = update_description(
                self.folders[name], pretraining_fields(self.passes.training.store.attributes)
            )
            self._write(name, agreement)
            n = " and ".join(map(str, agreement.steps.values()))
            passes = "pass" if len(agreement.steps) == 1 else "passes"
            self.passes.say(
                f"{self.folders[name]}: kept, {n} steps of its {passes} agree (losses within {agreement.loss:.1e}, {LOSS:g} is "
                "allowed), and so does what it reaches"
            )
        return kept_measures

    def _chosen(self, name: str, plan: HeadPlan, record: Mapping[str, Any]) -> Selected:
        if len(plan.settings) == 1:
            return Selected(*plan.settings[0])
        tried = [Tried(**{**setting, "percent": tuple(setting["percent"])}) for setting in record["tried"]]
        return best_setting(name, plan, tried, self.passes, self.held_out)

    def _what_is_stored(self, name: str, chosen: Selected, recipe: Recipe, agreement: Agreement) -> str | None:
        """The first difference between the stored heads' measures or files and those of now; None if there is none."""
        plan, folder = self.plans[name], self.folders[name]
        outcomes = stored_outcomes(name, plan, self.passes, folder, chosen, recipe, agreement)
        if agreement.differs is not None:
            return agreement.differs
        measures = measures_of(name, plan, self.passes, outcomes, chosen) | dict(self.about)
        with tempfile.TemporaryDirectory() as place:
            write_measures(Path(place), measures)
            write_trained(Path(place), plan, self.passes, outcomes, chosen, self.about)
            return first_difference(folder, Path(place))

    def _write(self, name: str, agreement: Agreement) -> None:
        content = {
            "steps": agreement.steps,
            "largest_difference_of_a_loss": agreement.loss,
            "largest_differences_in_tolerances": agreement.worst,
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
        }
        (self.folders[name] / KEPT).write_text(json.dumps(content, indent=1) + "\n")

    def _say_retrained(self, name: str, why: str) -> None:
        self.passes.say(f"{self.folders[name]}: trained again, {why}")


def _differing_paths(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths such as `recipe.epochs` at which two plain values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [p for n in names for p in _differing_paths(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
