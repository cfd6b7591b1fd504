"""Sections of the page in their order. To add one: a file here with `section(inputs)`, and its line in SECTIONS."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.report.collect import Inputs
from pipelines.report.content import Section
from pipelines.report.sections import (
    accuracy,
    against,
    by_block,
    cost,
    curves,
    datasets,
    depth,
    detection,
    few_shot,
    findings,
    geometry,
    leaderboard,
    localisation,
    measures,
    overlays,
    provenance,
    scores,
    segmentation,
    selection,
    statistics,
    studies,
    summary,
    views,
)
from store import BeyondClsError
from store.errors import unknown

Build = Callable[[Inputs], Section | None]

# Each returns its section, or None where none of its results was computed and it can be left out.
# A BeyondClsError names a file that is damaged.
SECTIONS: tuple[Build, ...] = (
    summary.section,
    leaderboard.section,
    measures.section,
    cost.section,
    by_block.section,
    geometry.section,
    few_shot.section,
    statistics.section,
    overlays.section,
    findings.section,
    accuracy.section,
    datasets.section,
    scores.section,
    against.section,
    studies.section,
    views.section,
    selection.section,
    localisation.section,
    segmentation.section,
    depth.section,
    detection.section,
    curves.section,
    provenance.section,
)


def sections(inputs: Inputs, only: Sequence[str] = ()) -> list[Section]:
    """The sections that have content.

    Args:
        only: names of sections, which are those of their files, and of studies; all if empty. Published numbers that were given
            are shown with them.

    Raises:
        BeyondClsError: an unknown name.
    """
    by_name = {build.__module__.rpartition(".")[2]: build for build in SECTIONS}
    named = [name for name in only if name not in by_name]
    if missing := [name for name in named if name not in inputs.studies]:
        raise BeyondClsError(unknown("section of the report", missing[0], [*by_name, *inputs.studies]))
    studied = replace(inputs, studies={name: inputs.studies[name] for name in named}) if named else inputs
    shown = {*only, *["against"] * bool(inputs.against), *["studies"] * bool(named)} if only else set(by_name)
    builds: dict[str, Build] = {**by_name, "studies": lambda _: studies.section(studied)}
    return [section for name, build in builds.items() if name in shown and (section := build(inputs)) is not None]
