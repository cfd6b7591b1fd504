"""A probe that is in place stays, if the program as it is now would train the same: a few steps tell, in place of all."""

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
from probe.passes import Passes
from probe.ranks import from_first
from probe.recipe import Recipe
from probe.record import read_record, request_of
from probe.results import KEPT, measures_of, with_pretraining, write_measures, write_trained
from probe.select import Selected, best, candidates, parts
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
    """Heads of one group that need not be trained again: the content of their metrics.json, and what was chosen for them.

    Those are heads that are in place for exactly what is asked for now, some of whose steps are what they were (`rehearsal`),
    whose stored parameters reach on the test images what they reached, and whose files would be written as they are. Nothing of
    them is touched, but for what metrics.json says of the encoder's training where the feature set says something else by now;
    what was compared is written into kept.json beside them. Of others that are in place it is said why they train again.
    """
    check = _Check(plans, passes, held_out, folders, about)
    chosen = from_first(check.in_place() if passes.rank == 0 else {})
    if not chosen:
        return {}
    if any(len(plans[name].settings) > 1 for name in chosen):
        passes.rehearse(candidates(plans), recipe, chosen, *parts(passes, held_out))
    settings = {n: (chosen[n].base_lr, chosen[n].weight_decay) if n in chosen else plans[n].settings[0] for n in plans}
    members = [Member(name, *settings[name], seed) for name, plan in plans.items() for seed in plan.seeds]
    passes.rehearse(members, recipe, chosen)
    kept = from_first(check.kept(chosen, recipe) if passes.rank == 0 else {})
    passes.rehearsed.clear()  # what trains is rehearsed again
    return {name: (measures, chosen[name]) for name, measures in kept.items()}


class _Check:
    """Of the heads of one group; the first process makes it for all."""

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
        """Heads that are there for just what is asked for, with what is chosen of their grids."""
        chosen = {}
        for name, plan in self.plans.items():
            folder = self.folders[name]
            if not (folder / "metrics.json").is_file():
                continue
            if (record := read_record(folder)) is None:
                self._again(name, "nothing is recorded of its first steps: it is older, unfinished, or too short for a check")
            elif differ := _paths(record["request"], request_of(plan, self.passes, self.held_out, self.about)):
                self._again(name, f"it is asked for otherwise ({', '.join(differ[:3])})")
            else:
                try:
                    chosen[name] = self._chosen(name, plan, record)
                    self.records[name] = record
                except DAMAGED:
                    self._again(name, "what is recorded of its first steps is damaged")
        return chosen

    def kept(self, chosen: Mapping[str, Selected], recipe: Recipe) -> dict[str, dict[str, Any]]:
        """The content of metrics.json of heads that agree."""
        kept = {}
        for name, selected in chosen.items():
            agreement = Agreement()
            try:
                agreement.compare_passes(self.records[name]["passes"], self.passes.rehearsed.get(name, {}))
                differs = agreement.differs or self._what_is_stored(name, selected, recipe, agreement)
            except DAMAGED as error:
                self._again(name, f"its files are incomplete or damaged ({error})")
                continue
            if differs is not None:
                self._again(name, f"not as before: {differs}")
                continue
            kept[name] = with_pretraining(self.folders[name], pretraining_fields(self.passes.training.store.attributes))
            self._write(name, agreement)
            n = " and ".join(map(str, agreement.steps.values()))
            passes = "pass" if len(agreement.steps) == 1 else "passes"
            self.passes.say(
                f"{self.folders[name]}: kept, {n} steps of its {passes} agree (losses within {agreement.loss:.1e}, {LOSS:g} is "
                "allowed), and so does what it reaches"
            )
        return kept

    def _chosen(self, name: str, plan: HeadPlan, record: Mapping[str, Any]) -> Selected:
        if len(plan.settings) == 1:
            return Selected(*plan.settings[0])
        held = parts(self.passes, self.held_out)[1]
        return best(name, plan, record["percent"], self.passes, self.held_out, len(held))

    def _what_is_stored(self, name: str, chosen: Selected, recipe: Recipe, agreement: Agreement) -> str | None:
        """What is not as it would be now of the stored heads' measures, or of the files; None where all is."""
        plan, folder = self.plans[name], self.folders[name]
        probe = stored_probe(folder, plan)
        trained = {Member(name, chosen.base_lr, chosen.weight_decay, s): (of.head, of.curve) for s, of in probe.items()}
        by_seed = {outcome.member.seed: outcome for outcome in self.passes.measure(trained, recipe)}
        outcomes = [by_seed[seed] for seed in plan.seeds]
        for outcome in outcomes:
            seed = outcome.member.seed
            agreement.compare_measures(seed, probe[seed].result, outcome.result)
            outcome.result = probe[seed].result
        if agreement.differs is not None:
            return agreement.differs
        measures = measures_of(name, plan, self.passes, outcomes, chosen) | dict(self.about)
        with tempfile.TemporaryDirectory() as place:
            write_measures(Path(place), measures)
            write_trained(Path(place), plan, self.passes, outcomes, chosen, self.about)
            return first_difference(folder, Path(place))

    def _write(self, name: str, agreement: Agreement) -> None:
        said = {
            "steps": agreement.steps,
            "largest_difference_of_a_loss": agreement.loss,
            "largest_differences_in_tolerances": agreement.worst,
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
        }
        (self.folders[name] / KEPT).write_text(json.dumps(said, indent=1) + "\n")

    def _again(self, name: str, why: str) -> None:
        self.passes.say(f"{self.folders[name]}: trained again, {why}")


def _paths(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two plain values differ, as `recipe.epochs`."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [path for n in names for path in _paths(one.get(n), other.get(n), f"{at}.{n}" if at else n)]
    return [] if one == other else [at]
