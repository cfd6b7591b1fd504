"""What vectors tell without a head, and which of these numbers, or of attention's, go with the gain of AbMILP over [cls]."""

import math
from collections.abc import Iterator, Mapping

from scipy.special import ndtri
from scipy.stats import spearmanr

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Section, Table, Text
from pipelines.report.dense import result_of, trained_first
from pipelines.report.estimate import LEVEL, of_measure
from pipelines.report.measured import Entries, Measure
from pipelines.report.reading import files_in
from pipelines.report.tables import NOTHING, Declared, cells, each, encoders, numbers, table, texts, title

# Titles of measures, and digits that are shown.
MEASURES = {
    "rankme": ("RankMe", 1),
    "participation_ratio": ("participation ratio", 1),
    "alpha_req": ("α-ReQ", 2),
    "two_nn": ("TwoNN dimension", 1),
    "mle_dimension": ("MLE dimension", 1),
    "lidar": ("LiDAR", 1),
    "cluster_nmi": ("clusters, NMI", 3),
    "cluster_ari": ("clusters, ARI", 3),
    "retrieval_map": ("retrieval mAP, %", 1),
    "recall_at_1": ("recall at 1, %", 1),
    "recall_at_10": ("recall at 10, %", 1),
}
FEWEST = 5  # encoders of which ranks say anything
ABOUT = "Vectors of test images by themselves: no head is trained, and labels serve the last five measures alone."
NOTE = (
    "RankMe and participation ratio: directions that vectors use. α-ReQ: how fast the spectrum falls. Dimensions: of the "
    "manifold around each image. LiDAR: directions in which images differ more than their views. Brackets: 95 % over test "
    "images."
)
GOES_WITH = (
    "Spearman's rank correlation, over the trained encoders of the page, of each number (of the deepest block) with what "
    "AbMILP reaches beyond [cls], in points. 95 %: by Fisher's transformation, which takes encoders for independent draws; "
    "those of one family are not, so it is too short. Many numbers are tried: one in twenty intervals lacks 0 by chance."
)


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls geometry` was not run.

    Raises:
        BeyondClsError: a file is damaged.
    """
    measured = (result_of(file, "geometry") for file in files_in(inputs.folders.geometry, "*/metrics.json"))
    results = trained_first(one for one in measured if one.encoder in inputs.encoders)
    if not results:
        return None
    blocks = (Text(ABOUT), _deepest(results), _every_block(results), _predictors(inputs, results))
    return Section("geometry", "Without a head", tuple(block for block in blocks if not isinstance(block, Table) or block.rows))


def _deepest(results: list[Entries]) -> Table:
    rows = [(one, vector) for one in results for vector in _of_deepest(one)]
    return table("geometry", "Vectors of the deepest block", NOTE, rows, *_columns(rows))


def _every_block(results: list[Entries]) -> Table:
    rows = [(one, vector) for one in results for vector in one.vectors]
    rows = rows if any(len(one.vectors) > len(_of_deepest(one)) for one in results) else []
    block = numbers("block", "Block", lambda row: row[1].block, 0)
    return table("geometry-blocks", "Vectors of every block", NOTE, rows, *_columns(rows, block), folded=True)


def _columns(rows: list[tuple[Entries, Entries]], *others: Declared) -> Iterator[Declared]:
    yield encoders(lambda row: row[0])
    yield texts("vector", "Vector", lambda row: title(row[1].vector))
    yield from others
    measured = [name for name in MEASURES if any(name in vector for _, vector in rows)]
    yield from each(measured, lambda name: cells(name, _heading(name), lambda row: _cell(row[1].get(name), name)))


def _heading(name: str) -> str:
    words = MEASURES[name][0]
    return words[0].upper() + words[1:] if words[0].isascii() else words


def _cell(measure: Measure | None, name: str) -> Cell:
    """`59.0 [57.8, 60.2]`."""
    if measure is None:
        return NOTHING
    digits, interval = MEASURES[name][1], of_measure(measure, "", None).interval
    between = "" if interval is None else f" [{', '.join(f'{bound:.{digits}f}' for bound in interval)}]"
    return Cell(f"{measure.mean:.{digits}f}{between}", measure.mean)


def _of_deepest(one: Entries) -> list[Entries]:
    """The last vector of each kind."""
    return list({vector.vector: vector for vector in one.vectors}.values())


def _predictors(inputs: Inputs, results: list[Entries]) -> Table:
    """A row for each number that enough encoders have; none with fewer than FEWEST encoders."""
    gains = {
        encoder: probe.score.mean - inputs.probes[encoder, "cls"].score.mean
        for (encoder, head), probe in inputs.probes.items()
        if head == "abmilp" and (encoder, "cls") in inputs.probes and encoder not in inputs.untrained
    }
    by_number: dict[tuple[str, str], dict[str, float]] = {}
    for one in results:
        for vector in _of_deepest(one):
            for name in MEASURES:
                if name in vector:
                    by_number.setdefault((title(vector.vector), MEASURES[name][0]), {})[one.encoder] = vector[name].mean
    for encoder, attention in inputs.attention.items():
        for name, values in attention.statistics.items():
            by_number.setdefault(("attention", attention.declared.get(name, (name,))[0]), {})[encoder] = values[-1][0]
    rows = [(*number, found) for number, values in by_number.items() if (found := _correlation(values, gains))]
    return table(
        "geometry-gains",
        "What goes with the gain of AbMILP",
        GOES_WITH,
        rows,
        texts("of", "Of", lambda row: row[0]),
        texts("number", "Number", lambda row: row[1]),
        numbers("rho", "ρ with the gain", lambda row: row[2][0]),
        texts("interval", "95 %", lambda row: row[2][1]),
        numbers("encoders", "Encoders", lambda row: row[2][2], 0),
        muted=lambda row: False,
    )


def _correlation(values: Mapping[str, float], gains: Mapping[str, float]) -> tuple[float, str, int] | None:
    """Spearman's ρ, its interval, and of how many encoders; None of fewer than FEWEST, or where all values are one.

    Source: Fieller, Hartley and Pearson 1957, Tests for rank correlation coefficients: artanh ρ varies by 1.06 / (n - 3).
    """
    shared = [encoder for encoder in gains if encoder in values]
    n = len(shared)
    of_shared = [[of[encoder] for encoder in shared] for of in (values, gains)]
    if n < FEWEST or any(len(set(numbers)) < 2 for numbers in of_shared):
        return None
    rho = float(spearmanr(*of_shared).statistic)
    if abs(rho) >= 1:
        return rho, "", n
    reach = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(1.06 / (n - 3))
    low, high = (math.tanh(math.atanh(rho) + side * reach) for side in (-1, 1))
    return rho, f"{low:.2f} to {high:.2f}".replace("-", "−"), n
