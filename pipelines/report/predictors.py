"""Which numbers, of vectors, attention and norms, go with what aggregators gain over [cls]: over encoders, and over blocks."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.special import ndtri, stdtrit
from scipy.stats import spearmanr

from pipelines.report.collect import Inputs
from pipelines.report.content import Table
from pipelines.report.estimate import LEVEL
from pipelines.report.kinds import LINEAR
from pipelines.report.measured import Entries
from pipelines.report.sections.by_block import by_block
from pipelines.report.tables import DeclaredColumn, numbers, table, texts, title

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
FEWEST = 5  # encoders, or blocks of one, of which ranks say anything
FEWEST_RHOS = 3  # of which an interval of the mean is shown
WITHIN = (
    "Spearman's rank correlation, over the blocks of an encoder, of each number with what the aggregator reaches beyond [cls] "
    "on that block, in points; mean over trained encoders with five such blocks or more. Points: blocks of all these encoders. "
    "95 %: Student's t, with encoders as the units, of three or more; neighbouring blocks are too alike to be units. It shows "
    "at most that both change in the same blocks, as all does that grows with depth (the first row), not that one brings about "
    "the other; few encoders, or ones of one family, do not speak for others. Many numbers are tried: one in twenty intervals "
    "lacks 0 by chance."
)
GOES_WITH = (
    "Spearman's rank correlation, over the trained encoders of the page, of each number (of the deepest block) with what "
    "AbMILP reaches beyond [cls], in points. 95 %: by Fisher's transformation, which takes encoders for independent draws; "
    "those of one family are not, so it is too short. Many numbers are tried: one in twenty intervals lacks 0 by chance."
)

Numbers = dict[tuple[str, str], dict[str, dict[int | None, float]]]


def numbers_of(inputs: Inputs, results: list[Entries], norms: list[Entries]) -> Numbers:
    """What may correlate with gains, by what it describes and its name; of each encoder by block, the deepest last."""
    tried: Numbers = {}

    def add(of: str, name: str, encoder: str, by_block: Iterable[tuple[int | None, float]]) -> None:
        tried.setdefault((of, name), {}).setdefault(encoder, {}).update(by_block)

    for one in results:
        for vector in one.vectors:
            for name in (name for name in MEASURES if name in vector):
                add(title(vector.vector), MEASURES[name][0], one.encoder, [(vector.block, vector[name].mean)])
    for encoder, attention in inputs.attention.items():
        for name, values in attention.statistics.items():
            add("attention", attention.declared.get(name, (name,))[0], encoder, enumerate(value[0] for value in values))
    for one in norms:
        add("patch tokens", "outliers, %", one.encoder, ((block.block, block.share.mean) for block in one.blocks))
    return tried


def over_encoders(inputs: Inputs, tried: Numbers) -> Table:
    """A row for each number that enough encoders have; none with fewer than FEWEST encoders."""
    gains = {
        encoder: probe.score.mean - inputs.probes[encoder, "cls"].score.mean
        for (encoder, head), probe in inputs.probes.items()
        if head == "abmilp" and (encoder, "cls") in inputs.probes and encoder not in inputs.untrained
    }
    rows = []
    for number, values in tried.items():
        deepest = {encoder: list(of_blocks.values())[-1] for encoder, of_blocks in values.items()}
        if found := correlation(deepest, gains):
            rows.append(Entries(of=number[0], number=number[1], rho=found[0], interval=found[1], encoders=found[2]))
    return table(
        "geometry-gains", "What goes with the gain of AbMILP", GOES_WITH, rows, _correlation_columns(), muted=lambda row: False
    )


def over_blocks(inputs: Inputs, tried: Numbers) -> Table:
    """A row for each aggregator and number of which enough blocks of an encoder are known."""
    reached: dict[str, dict[str, dict[int, float]]] = {}  # by aggregator, encoder and block
    for study in (study for study in by_block(inputs) if study.encoder not in inputs.untrained):
        for row in (row for row in study.rows if row.protocol == LINEAR):
            reached.setdefault(row.head, {}).setdefault(study.encoder, {})[row.block] = row[study.measure].mean
    of_cls, rows = reached.pop("cls", {}), []
    tried = {("block", "its number"): {encoder: {b: float(b) for b in by_name} for encoder, by_name in of_cls.items()}, **tried}
    for head, of_encoders in reached.items():
        for (of, number), values in tried.items():
            rhos, points = [], 0
            for encoder, by_name in of_encoders.items():
                parts = (of_cls.get(encoder, {}), values.get(encoder, {}))
                blocks = [block for block in by_name if all(block in part for part in parts)]
                gains = [by_name[block] - parts[0][block] for block in blocks]
                if (rho := _rho([parts[1][block] for block in blocks], gains)) is not None:
                    rhos.append(rho)
                    points += len(blocks)
            if rhos:
                about = {"head": head, "of": of, "number": number, "encoders": len(rhos), "points": points}
                rows.append(Entries(about, rho=float(np.mean(rhos)), interval=_format_interval(rhos)))
    return table(
        "geometry-gains-by-block",
        "What goes with gains from block to block",
        WITHIN,
        rows,
        texts("head", "Aggregator", lambda row: title(row.head)),
        _correlation_columns(),
        numbers("points", "Points", lambda row: row.points, 0),
        muted=lambda row: False,
    )


def _correlation_columns() -> list[DeclaredColumn]:
    return [
        texts("of", "Of", lambda row: row.of),
        texts("number", "Number", lambda row: row.number),
        numbers("rho", "ρ with the gain", lambda row: row.rho),
        texts("interval", "95 %", lambda row: row.interval),
        numbers("encoders", "Encoders", lambda row: row.encoders, 0),
    ]


def _rho(values: Sequence[float], gains: Sequence[float], fewest: int = FEWEST) -> float | None:
    """Spearman's; None of fewer than `fewest`, or where all values are one."""
    if len(values) < fewest or any(len(set(numbers)) < 2 for numbers in (values, gains)):
        return None
    return float(spearmanr(values, gains).statistic)


def _format_interval(rhos: Sequence[float]) -> str:
    """The interval of their mean by Student's t; nothing of fewer than FEWEST_RHOS, or where they do not vary."""
    if len(rhos) < FEWEST_RHOS or not (error := float(np.std(rhos, ddof=1)) / math.sqrt(len(rhos))):
        return ""
    reach = error * float(stdtrit(len(rhos) - 1, (1 + LEVEL) / 2))
    return _format_bounds(max(-1.0, float(np.mean(rhos)) - reach), min(1.0, float(np.mean(rhos)) + reach))


def correlation(
    values: Mapping[str, float], others: Mapping[str, float], fewest: int = FEWEST
) -> tuple[float, str, int] | None:
    """Spearman's ρ, its interval (of FEWEST encoders or more), and of how many encoders; None as `_rho`.

    Source: Fieller, Hartley and Pearson 1957, Tests for rank correlation coefficients: artanh ρ varies by 1.06 / (n - 3).
    """
    shared = [encoder for encoder in others if encoder in values]
    rho = _rho([values[encoder] for encoder in shared], [others[encoder] for encoder in shared], fewest)
    if rho is None or len(shared) < FEWEST or math.isclose(abs(rho), 1):  # of which there is no interval
        return None if rho is None else (rho, "", len(shared))
    reach = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(1.06 / (len(shared) - 3))
    return rho, _format_bounds(*(math.tanh(math.atanh(rho) + side * reach) for side in (-1, 1))), len(shared)


def _format_bounds(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}".replace("-", "−")
