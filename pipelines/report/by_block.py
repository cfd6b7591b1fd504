"""Accuracy by block, as `beyondcls blocks` measured it: series over blocks, and their plot."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Look
from pipelines.report.dense import result_of
from pipelines.report.drawing import STYLE, WIDTH, colour, drawn, looks
from pipelines.report.measured import FIRST_HEADS, Entries, Measure
from pipelines.report.reading import files_in, read
from pipelines.report.remarks import AXES
from pipelines.report.tables import plus_minus, title

LINEAR = "linear"  # the protocol that a series does not name

Series = Mapping[int, Measure]  # by block


def read_by_block(file: Path) -> Entries:
    """The study in a metrics.json: its entries, and `series` by name ("[cls]", "[cls], knn"), percent; `nbytes` of an image.

    Raises:
        BeyondClsError: the file is damaged.
    """

    def build(file: Path) -> Entries:
        series = dict[str, dict[int, Measure]]()
        for row in rows:
            measured = row[study.measure]
            if not isinstance(measured, Measure):
                raise ValueError(f"{study.measure} of block {row.block} is no number over seeds")
            series.setdefault(_name(row), {})[int(row.block)] = measured
        return Entries(study, series=series, nbytes={_name(row): int(row.bytes_per_image) for row in rows})

    study = result_of(file, "blocks")
    rows = sorted(study.rows, key=_place)
    return read(file, "beyondcls blocks", build)


def by_block(inputs: Inputs) -> list[Entries]:
    """Studies of the encoders that the report shows, in its order."""
    studies = {study.encoder: study for study in map(read_by_block, files_in(inputs.folders.blocks, "*/metrics.json"))}
    return [studies[encoder] for encoder in inputs.encoders if encoder in studies]


def _place(row: Entries) -> tuple[bool, str, int, str, int]:
    """Trained heads come first; of these [cls], average, AbMILP, and others by name; and blocks ascend."""
    known = FIRST_HEADS.index(row.head) if row.head in FIRST_HEADS else len(FIRST_HEADS)
    return row.protocol != LINEAR, row.protocol, known, row.head, int(row.block)


def _name(row: Entries) -> str:
    """`[cls]`, `average, knn`."""
    return title(row.head) + ("" if row.protocol == LINEAR else f", {row.protocol}")


def looks_of(studies: Iterable[Entries]) -> dict[str, Look]:
    """How each series is drawn, in all plots alike."""
    return looks(list(dict.fromkeys(name for study in studies for name in study.series)))


def figure_of(
    study: Entries, name: str, by_name: Mapping[str, Look] | None = None, limits: tuple[float, float] | None = None
) -> Figure:
    """A line over the blocks for each series.

    Args:
        name: of its files.
        by_name: how series are drawn.
        limits: of the axis of accuracies, if plots share them.
    """
    by_name = looks_of([study]) if by_name is None else by_name
    words = "; ".join(
        f"{series_name}: {', '.join(f'{plus_minus(reached)} % in block {block}' for block, reached in series.items())}"
        for series_name, series in study.series.items()
    )
    alt = f"Accuracy of {study.encoder} by block. {words}."
    caption = "Bars: ± one standard deviation over seeds."

    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(WIDTH[0], 2.9))
        axes = plot.subplots()
        for series_name, series in study.series.items():
            look, means, deviations = by_name[series_name], *zip(*((m.mean, m.std) for m in series.values()), strict=True)
            axes.errorbar(list(series), means, deviations, color=colour(look), linestyle=look.dash, marker=look.marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="block, counted from 0", ylabel=AXES[study.measure], ylim=limits)
    return drawn(plot, name, study.encoder, caption, alt, [by_name[series_name] for series_name in study.series])
