"""Accuracy by block, as `beyondcls blocks` measured it: series over blocks, and their plot."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Look
from pipelines.report.drawing import INK, STYLE, colour, drawn, looks
from pipelines.report.measured import FIRST_HEADS, Measure
from pipelines.report.reading import files_in, measure_of, read
from pipelines.report.scores import AXES
from pipelines.report.tables import plus_minus, title
from probe.result_files import read_result
from store.format.pretraining import Pretraining

OF_VECTORS = ("cls", "average", "encoder-pooling")  # heads that read a vector of an image, no patch tokens
LINEAR = "linear"  # the protocol that a series does not name

Series = Mapping[int, Measure]  # by block


@dataclass(frozen=True)
class ByBlock:
    """One BLOCKS/ENCODER.

    Attributes:
        encoder: the name of the folder.
        measure: "top1", or "map" where images have several labels.
        series: by name ("[cls]", "[cls], knn"), percent.
        nbytes: of an image in one block, by the same names.
        n_test: test images.
        pretraining: of the encoder.
    """

    encoder: str
    measure: str
    series: Mapping[str, Series]
    nbytes: Mapping[str, int]
    n_test: int
    pretraining: Pretraining

    @property
    def last(self) -> int:
        """The deepest block that was measured."""
        return max(block for series in self.series.values() for block in series)


def read_by_block(file: Path) -> ByBlock:
    """The study in a metrics.json.

    Raises:
        BeyondClsError: the file is damaged.
    """
    return read(file, "beyondcls blocks", _by_block)


def by_block(inputs: Inputs) -> dict[str, ByBlock]:
    """Studies by encoder, of those that the report shows, in its order; others are behind these."""
    studies = [read_by_block(file) for file in files_in(inputs.folders.blocks, "*/metrics.json")]
    order = {encoder: place for place, encoder in enumerate(inputs.encoders)}
    return {s.encoder: s for s in sorted(studies, key=lambda s: order.get(s.encoder, len(order))) if s.encoder in order}


def _by_block(file: Path) -> ByBlock:
    content = read_result(file)
    measure, rows = str(content["measure"]), sorted(content["rows"], key=_place)
    series: dict[str, dict[int, Measure]] = {}
    for row in rows:
        series.setdefault(_name(row), {})[int(row["block"])] = measure_of(row[measure])
    nbytes = {_name(row): int(row["bytes_per_image"]) for row in rows}
    return ByBlock(file.parent.name, measure, series, nbytes, int(content["n_test"]), Pretraining.from_dict(content))


def _place(row: Mapping[str, object]) -> tuple[bool, str, int, str, int]:
    """Trained heads come first; of these [cls], average, AbMILP, and others by name; and blocks ascend."""
    head, protocol = str(row["head"]), str(row["protocol"])
    known = FIRST_HEADS.index(head) if head in FIRST_HEADS else len(FIRST_HEADS)
    return protocol != LINEAR, protocol, known, head, int(str(row["block"]))


def _name(row: Mapping[str, object]) -> str:
    """`[cls]`, `average, knn`."""
    return title(str(row["head"])) + ("" if row["protocol"] == LINEAR else f", {row['protocol']}")


def looks_of(studies: Iterable[ByBlock]) -> dict[str, Look]:
    """How each series is drawn, in all plots alike."""
    return looks(list(dict.fromkeys(name for study in studies for name in study.series)))


def figure_of(
    study: ByBlock, name: str, by_name: Mapping[str, Look] | None = None, limits: tuple[float, float] | None = None
) -> Figure:
    """A line over the blocks for each series.

    Args:
        name: of its files.
        by_name: how series are drawn.
        limits: of the axis of accuracies, if plots share them.
    """
    by_name = looks_of([study]) if by_name is None else by_name
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.9), layout="constrained")
        axes = plot.subplots()
        for series_name, series in study.series.items():
            look, blocks = by_name[series_name], list(series)
            means, deviations = [series[b].mean for b in blocks], [series[b].std for b in blocks]
            axes.errorbar(blocks, means, deviations, color=colour(look), linestyle=look.dash, marker=look.marker)
        axes.set_xlabel("block, counted from 0")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(AXES[study.measure])
        if limits is not None:
            axes.set_ylim(*limits)
        axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
    words = "; ".join(
        f"{series_name}: {', '.join(f'{plus_minus(reached)} % in block {block}' for block, reached in series.items())}"
        for series_name, series in study.series.items()
    )
    alt = f"Accuracy of {study.encoder} by block. {words}."
    caption = "Bars: ± one standard deviation over seeds."
    return drawn(plot, name, study.encoder, caption, alt, [by_name[series_name] for series_name in study.series])
