"""Fig. 7: whether aggregators choose the same patches, as heat maps and as a table."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Plot
from matplotlib.patches import Rectangle

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figure, Figures, Table
from pipelines.report.drawing import INK, STYLE, drawn
from pipelines.report.measured import in_order
from pipelines.report.reading import files_in, read
from pipelines.report.tables import cells, encoders, file_names, numbers, texts, title
from pipelines.report.tables import table as declared

ALT = "Divergences between the weights of heads, p in rows and q in columns. The numbers are in the table below."
LONGEST = 24  # characters of a name in a figure
SHADE = (0.03, 0.4)  # opacity of 0 and of the highest value: numbers stay legible on it
CELL = (0.42, 0.27)  # inches
READING = (
    "KL(p || q) in nats between weights, p in rows and q in columns, mean over the test images; darker is higher, on one scale "
    "for all encoders. ∞: infinite for more than half of the images, as q gives no weight to patches that p weights; a star: "
    "for some, which are left out of the mean."
)


@dataclass(frozen=True)
class Pair:
    """A row of divergence.csv: KL(p || q) in nats; `mean` and `std` are None where it is infinite for all images."""

    p: str
    q: str
    mean: float | None
    std: float | None
    n_images: int
    n_infinite: int

    @property
    def shown(self) -> str:
        """`0.21`; `∞` where it is infinite for most images, a star where it is for some."""
        if (value := self.typical) is None:
            return "∞"
        return f"{value:.2f}{'*' if self.n_infinite else ''}"

    @property
    def typical(self) -> float | None:
        """The mean, unless it is one over less than half of the images."""
        return None if 2 * self.n_infinite > self.n_images else self.mean


def divergences(inputs: Inputs) -> dict[str, list[Pair]]:
    """Pairs by encoder, the encoders of the page first."""
    files = {file.parent.name: file for file in files_in(inputs.folders.divergence, "*/divergence.csv")}
    rank = {encoder: number for number, encoder in enumerate(inputs.encoders)}
    order = sorted(files, key=lambda name: (rank.get(name, len(rank)), name))
    by_encoder = {encoder: read(files[encoder], "beyondcls divergence", _pairs) for encoder in order}
    return {encoder: pairs for encoder, pairs in by_encoder.items() if pairs}


def _pairs(file: Path) -> list[Pair]:
    with file.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    return [
        Pair(row["from"], row["to"], _finite(row["mean"]), _finite(row["std"]), int(row["n_images"]), int(row["n_infinite"]))
        for row in rows
    ]


def _finite(text: str) -> float | None:
    """None where all images are infinite.

    Raises:
        ValueError: not a finite number.
    """
    if text and not math.isfinite(float(text)):
        raise ValueError(f"{text!r} is not a finite number")
    return float(text) if text else None


def heads_of(pairs: list[Pair]) -> list[str]:
    """Names of the heads, those of FIRST_HEADS first."""
    return in_order(head for pair in pairs for head in (pair.p, pair.q))


def heat_maps(divergences: Mapping[str, list[Pair]]) -> list[Figures]:
    """A heat map for each encoder, one below the other, as they are wide; all share one scale of shades."""
    highest = max((pair.typical or 0.0 for pairs in divergences.values() for pair in pairs), default=0.0)
    files = file_names("divergence", list(divergences))
    return [Figures((_heat_map(files[encoder], encoder, pairs, highest),)) for encoder, pairs in divergences.items()]


def _heat_map(file: str, encoder: str, pairs: list[Pair], highest: float) -> Figure:
    heads, by_pair = heads_of(pairs), {(pair.p, pair.q): pair for pair in pairs}
    names = [f"{i}  {_short(title(head))}" for i, head in enumerate(heads, 1)]
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        width = CELL[0] * len(heads) + 0.08 * max(map(len, names)) + 0.3
        figure = Plot(figsize=(width, CELL[1] * len(heads) + 0.6))
        axes = figure.subplots()
        for row, p in enumerate(heads):
            for column, q in enumerate(heads):
                pair = by_pair.get((p, q))
                value = None if pair is None else pair.typical
                if value is not None:
                    opacity = SHADE[0] + (SHADE[1] - SHADE[0]) * (value / highest if highest else 0.0)
                    axes.add_patch(Rectangle((column, row), 0.96, 0.94, facecolor=INK, alpha=opacity, linewidth=0))
                text = "·" if p == q else "–" if pair is None else pair.shown
                axes.text(column + 0.48, row + 0.49, text, ha="center", va="center", fontsize=7.5)
        axes.set(xlim=(0, len(heads)), ylim=(len(heads), 0), xlabel="q: number of the row", ylabel="p")
        axes.set_xticks([i + 0.48 for i in range(len(heads))], [str(i + 1) for i in range(len(heads))])
        axes.set_yticks([i + 0.48 for i in range(len(heads))], names)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return drawn(figure, file, encoder, "As Fig. 7 of the paper.", ALT)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def table(divergences: Mapping[str, list[Pair]]) -> Table:
    """Every pair of every encoder."""
    note = (
        "Mean ± std over the images of which it is finite; it is infinite where q gives no weight to a patch that p weights. "
        "Weights are means over seeds."
    )
    return declared(
        "divergence",
        "Divergence between the weights of heads",
        note,
        [(encoder, pair) for encoder, pairs in divergences.items() for pair in pairs],
        encoders(lambda row: row[0]),
        texts("from", "p", lambda row: row[1].p, title),
        texts("to", "q", lambda row: row[1].q, title),
        cells("kl", "KL(p || q), nats", lambda row: _mean_and_std(row[1]), "spread"),
        numbers("n_images", "Images", lambda row: row[1].n_images, 0, apart=True),
        numbers("n_infinite", "Of these infinite", lambda row: row[1].n_infinite, 0),
        folded=True,
    )


def _mean_and_std(pair: Pair) -> Cell:
    if pair.mean is None or pair.std is None:
        return Cell("∞")
    return Cell(f"{pair.mean:.3f} ± {pair.std:.3f}", pair.mean, pair.std)
