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
    detection,
    findings,
    localisation,
    open_questions,
    overlays,
    provenance,
    segmentation,
    selection,
    statistics,
    variants,
    views,
)
from store import BeyondClsError
from store.errors import unknown

# Each returns its section, or None where nothing of it was computed and it can be left out.
SECTIONS: tuple[Callable[[Inputs], Section | None], ...] = (
    findings.section,
    accuracy.section,
    datasets.section,
    against.section,
    statistics.section,
    by_block.section,
    variants.section,
    cost.section,
    views.section,
    selection.section,
    overlays.section,
    localisation.section,
    segmentation.section,
    detection.section,
    open_questions.section,
    curves.section,
    provenance.section,
)


def sections(inputs: Inputs, only: Sequence[str] = ()) -> list[Section]:
    """The sections that have content.

    Args:
        only: names of some, which are those of their files; all if there are none. Published numbers that were given are shown
            beside them.

    Raises:
        BeyondClsError: an unknown name.
    """
    by_name = {build.__module__.rpartition(".")[2]: build for build in SECTIONS}
    for name in only:
        if name not in by_name:
            raise BeyondClsError(unknown("section of the report", name, by_name))
    shown = [*only, *(["against"] if inputs.against else [])] if only else by_name
    return [section for name, build in by_name.items() if name in shown and (section := build(inputs)) is not None]
