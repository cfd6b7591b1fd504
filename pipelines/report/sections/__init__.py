"""Sections of the page in their order. To add one: a file here with `section(inputs)`, and its line in SECTIONS."""

from collections.abc import Callable, Sequence

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
    open_questions,
    overlays,
    provenance,
    scores,
    segmentation,
    selection,
    statistics,
    summary,
    variants,
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
    variants.section,
    views.section,
    selection.section,
    localisation.section,
    segmentation.section,
    depth.section,
    detection.section,
    open_questions.section,
    curves.section,
    provenance.section,
)


def sections(inputs: Inputs, only: Sequence[str] = ()) -> list[Section]:
    """The sections that have content.

    Args:
        only: names of sections, which are those of their files; all if empty. Published numbers that were given are shown
            with them.

    Raises:
        BeyondClsError: an unknown name.
    """
    check_names(only)
    by_name = _by_name()
    shown = [*only, *(["against"] if inputs.against else [])] if only else by_name
    return [section for name, build in by_name.items() if name in shown and (section := build(inputs)) is not None]


def check_names(names: Sequence[str]) -> None:
    """Whether there are such sections."""
    for name in names:
        if name not in _by_name():
            raise BeyondClsError(unknown("section of the report", name, _by_name()))


def _by_name() -> dict[str, Build]:
    return {build.__module__.rpartition(".")[2]: build for build in SECTIONS}
