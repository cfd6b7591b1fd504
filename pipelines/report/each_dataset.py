"""Blocks of a section on dense tasks, data set by data set."""

from collections.abc import Callable, Mapping, Sequence

from pipelines.report.content import Block, Heading
from pipelines.report.dense import D, trained_first
from pipelines.report.tables import file_names


def each_dataset(
    section: str, by_name: Mapping[str, Mapping[str, D]], blocks_of: Callable[[str, str, list[D]], Sequence[Block]]
) -> list[Block]:
    """Blocks of all data sets, each under its name where there are several.

    Args:
        by_name: results by data set and encoder.
        blocks_of: of a data set: its name, what names of its files begin with, its results in the order of the page.
    """
    names = file_names(section, list(by_name))
    blocks: list[Block] = []
    for dataset, results in by_name.items():
        if len(by_name) > 1:
            blocks.append(Heading(dataset))
        blocks += blocks_of(dataset, names[dataset], trained_first(results))
    return blocks
