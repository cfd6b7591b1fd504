"""Sections of the page in their order. To add one: a file here with `section(inputs)`, and its line in SECTIONS."""

from collections.abc import Callable

from pipelines.report.collect import Inputs
from pipelines.report.content import Section
from pipelines.report.sections import (
    accuracy,
    against,
    by_block,
    cost,
    curves,
    datasets,
    findings,
    localisation,
    open_questions,
    overlays,
    provenance,
    selection,
    statistics,
    variants,
    views,
)

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
    open_questions.section,
    curves.section,
    provenance.section,
)


def sections(inputs: Inputs) -> list[Section]:
    """The sections that have content."""
    return [section for build in SECTIONS if (section := build(inputs)) is not None]
