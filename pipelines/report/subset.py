"""Some of the encoders, as in Fig. 10-13, which compare those of one size."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipelines.report.collect import Inputs
from store import BeyondClsError

K = TypeVar("K", str, tuple[str, str])
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
    probes = _of(encoders, {"": inputs.probes}).get("", {})
    if inputs.probes and not probes:
        raise BeyondClsError(f"no head was probed on {', '.join(encoders)}, expected one at least; run `beyondcls probe` first")
    return replace(
        inputs,
        probes=probes,
        attention=_of(encoders, {"": inputs.attention}).get("", {}),
        studies=_of(encoders, inputs.studies),
        datasets=_of(encoders, inputs.datasets),
        segmentation=_of(encoders, inputs.segmentation),
        detection=_of(encoders, inputs.detection),
    )


def _of(encoders: Sequence[str], groups: Mapping[str, Mapping[K, T]]) -> dict[str, dict[K, T]]:
    """Results by data set or study, then by encoder, or encoder and head; groups that have none of these are left out."""
    kept = {
        name: {key: one for key, one in group.items() if (key if isinstance(key, str) else key[0]) in encoders}
        for name, group in groups.items()
    }
    return {name: group for name, group in kept.items() if group}
