"""A project that is planned: its works, and what they would be otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.params import section
from pipelines.parameters.recipes import all_recipes, of_study
from pipelines.parameters.studies import PLACES
from pipelines.planning.encoders import Encoders
from pipelines.planning.extractions import extractions
from pipelines.planning.machine import Machine
from pipelines.planning.runs import runs
from pipelines.planning.sizes import Sizes
from pipelines.planning.trainings import LeftOut, Rate, trainings
from pipelines.planning.work import Work
from probe.aggregators import AGGREGATORS, is_custom, make_aggregator
from probe.grid import HeadSpec
from probe.rates import HeadRate, measure_head
from store import BeyondClsError


@dataclass(frozen=True)
class Project:
    """All that its costs follow from.

    Attributes:
        params: the parameter file.
        given: options of the command line, for all extractions.
        rate: how long a head takes.
    """

    params: Mapping[str, Any]
    given: Mapping[str, Any]
    encoders: Encoders
    sizes: Mapping[str, Sizes]
    machine: Machine
    rate: Rate

    def works(self) -> tuple[list[Work], LeftOut]:
        """All works, and what they leave out.

        Raises:
            BeyondClsError: unknown names, or invalid values.
        """
        left_out = LeftOut()
        extracted = list(extractions(self.params, self.given, self.encoders, self.sizes, self.machine))
        asked = runs(self.params, self.given, self.encoders, self.sizes)
        return [*extracted, *trainings(asked, self.sizes, self.machine, self.rate, left_out)], left_out

    def narrow(self) -> "Project":
        """The same with tokens in int8."""
        return replace(self, encoders=self.encoders.narrow())

    def without_crops(self) -> "Project":
        """The same with the evaluation crop alone."""
        return replace(self, given={**self.given, "views": 1})


def check_project(params: Mapping[str, Any], file: object) -> None:
    """Refuse a parameter file that describes no project, before anything is measured.

    Raises:
        BeyondClsError: no encoders or data sets, unknown names, or invalid values.
    """
    encoders = section(params, "encoders")
    if not encoders:
        raise BeyondClsError(f"{file} has no encoders, expected one or more by name; add e.g. encoders: {{mae-b16: {{}}}}")
    if not datasets_of(params):
        raise BeyondClsError(f"{file} has no datasets, expected one or more names; add e.g. datasets: [cifar10]")
    heads = {name: asked for name, asked in all_recipes(params) if name.startswith("probes/")}
    for place in PLACES:
        for study in section(params, place):
            joined = section(params, place, study).get("joined")
            if joined is not None and joined not in encoders:
                raise BeyondClsError(f"{place}.{study}.joined is {joined!r}, expected one of encoders: {', '.join(encoders)}")
            heads |= of_study(params, study)
    for asked in heads.values():
        if asked["aggregator"] not in AGGREGATORS and not is_custom(asked["aggregator"]):
            make_aggregator(asked["aggregator"], 1)  # says so


@dataclass
class MeasuredRates:
    """Rates of heads on a device; heads alike are measured once."""

    device: torch.device
    known: dict[Any, HeadRate] = field(default_factory=dict)

    def __call__(
        self, spec: HeadSpec, shapes: Mapping[str, tuple[int, ...]], n_members: int, n_classes: int, multilabel: bool
    ) -> HeadRate:
        key = (str(spec.to_dict()), tuple(sorted(shapes.items())), n_members, n_classes, multilabel)
        if key not in self.known:
            self.known[key] = measure_head(spec, shapes, n_members, n_classes, multilabel, self.device)
        return self.known[key]
