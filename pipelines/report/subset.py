"""Some of the encoders, as in Fig. 10-13, which compare those of one size."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.report.collect import Inputs
from pipelines.report.measured import Probe
from store import BeyondClsError


def subset(inputs: Inputs, encoders: Sequence[str]) -> Inputs:
    """The inputs restricted to these encoders.

    Raises:
        BeyondClsError: there are no results of one of them, or none of them was probed.
    """
    for name in encoders:
        if name not in inputs.encoders:
            near = difflib.get_close_matches(name, inputs.encoders, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise BeyondClsError(f"unknown encoder {name!r}; {meant}known: {', '.join(inputs.encoders)} (--encoder)")
    probes = {key: probe for key, probe in inputs.probes.items() if key[0] in encoders}
    if not probes:
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
    )
