"""Some of the encoders, as in Fig. 10-13, which compare those of one size."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipelines.report.collect import Inputs
from pipelines.report.measured import Probe
from store import BeyondClsError

T = TypeVar("T")


def subset(inputs: Inputs, encoders: Sequence[str]) -> Inputs:
    """The inputs restricted to these encoders.

    Raises:
        BeyondClsError: there are no results of one of them, or none of them was probed.
    """
    dense = [*inputs.segmentation.values(), *inputs.detection.values()]
    known = list(dict.fromkeys([*inputs.encoders, *(name for results in dense for name in results)]))
    for name in encoders:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise BeyondClsError(f"unknown encoder {name!r}; {meant}known: {', '.join(known)} (--encoder)")
    probes = {key: probe for key, probe in inputs.probes.items() if key[0] in encoders}
    if inputs.probes and not probes:
        raise BeyondClsError(f"no head was probed on {', '.join(encoders)}, expected one at least; run `beyondcls probe` first")

    def of_encoders(groups: Mapping[str, Mapping[tuple[str, str], Probe]]) -> dict[str, dict[tuple[str, str], Probe]]:
        kept = {
            name: {key: probe for key, probe in probes_of_group.items() if key[0] in encoders}
            for name, probes_of_group in groups.items()
        }
        return {name: probes_of_group for name, probes_of_group in kept.items() if probes_of_group}

    return replace(
        inputs,
        probes=probes,
        attention={name: attention for name, attention in inputs.attention.items() if name in encoders},
        studies=of_encoders(inputs.studies),
        datasets=of_encoders(inputs.datasets),
        segmentation=_of_encoders(inputs.segmentation, encoders),
        detection=_of_encoders(inputs.detection, encoders),
    )


def _of_encoders(results: Mapping[str, Mapping[str, T]], encoders: Sequence[str]) -> dict[str, dict[str, T]]:
    """Results by data set and encoder; data sets that have none of these are left out."""
    kept = {
        dataset: {name: one for name, one in by_encoder.items() if name in encoders} for dataset, by_encoder in results.items()
    }
    return {dataset: of_dataset for dataset, of_dataset in kept.items() if of_dataset}
