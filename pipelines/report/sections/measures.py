"""Encoders by all that is measured of them: numbers, the ranks that test images allow, and which measures rank them alike."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figures, Look, Section, Table, section_of
from pipelines.report.dense import KINDS as DETECTED
from pipelines.report.dense import PROTOCOLS, learnt, map_title
from pipelines.report.drawing import STYLE, colour, drawn, looks
from pipelines.report.estimate import Estimate, estimate_of, of_measure
from pipelines.report.kinds import LINEAR
from pipelines.report.measured import Entries, Measure, Probe
from pipelines.report.predictors import MEASURES, correlation
from pipelines.report.remarks import TITLES
from pipelines.report.sections.geometry import heading
from pipelines.report.sections.localisation import ABMILP, CLS
from pipelines.report.sections.scores import score_rows
from pipelines.report.tables import DeclaredColumn, cells, each, file_names, number, numbers, table, texts, title

HIGHER, LOWER, NEITHER = 1, -1, 0
BETTER = {HIGHER: "higher", LOWER: "lower", NEITHER: "neither"}
HEADS = ("cls", "abmilp")  # in addition to those without gradient steps, and the best of all
FEWEST = 3  # encoders whose ranks are compared; two rank alike, or the other way round
NOTE = (
    "Each number of each trained encoder, and its rank [best, worst]. Best: behind the encoders that are clearly ahead; worst: "
    "before those that are clearly behind. Clearly: the 95 % interval of the difference, over test images and seeds, is on one "
    "side of 0, of each pair by itself; where none is known, or there was one seed, nothing is clear. Vectors and patches: of "
    "the deepest block, and the kind of vector that most encoders have. Best head: chosen on these images. Data set: a dash "
    "for the page's own. A dash elsewhere: not measured; no rank where neither more nor less is better, or of one encoder."
)
ALIKE = (
    "Spearman's rank correlation of measures over trained encoders, with the sign changed where less is better: 1 where both "
    "rank encoders alike. Brackets: 95 % by Fisher's transformation, of five encoders or more; it takes them for independent "
    "draws, and those of one family are not. A dash: fewer than three encoders have both, or all have one number. Many pairs "
    "are compared: one in twenty intervals lacks 0 by chance."
)
RANKS = "Marks: ranks, 1 is best. Bars: from the best to the worst rank that the test images allow."
ALT = "Ranks of encoders in each measure, with bars from the best to the worst that the test images allow; the table has them."


class Key(NamedTuple):
    """What a row shows: a measure, whether more is better, digits, and which part of an encoder was measured, on which data."""

    measure: str
    better: int = HIGHER
    digits: int = 1
    dataset: str = ""
    of: str = ""
    vector: str = ""


NEUTRAL = ("participation_ratio", "alpha_req", "two_nn", "mle_dimension")
# What is measured, by kinds of results: patterns of names, and rows, whose titles may have what a pattern captures.
MEASURED: Mapping[str, Sequence[tuple[str, Key]]] = {
    "blocks": [(name, Key(f"{words}, %")) for name, words in TITLES.items()],
    "few_shot": [(r"top1_(\d+)shot", Key(r"Top-1 from \1 of each class, %"))],
    "retrieval": [("map", Key("Retrieval of instances, mAP, %"))],
    "correspondence": [("pck_(.+)_image", Key(r"PCK@\1, pairs, %"))],
    "tracking": [("j_and_f", Key("Tracking, J & F, %"))],
    "depth": [("rmse", Key("Depth, RMSE, m", LOWER, 3)), ("mean_angle", Key("Normals, mean angle, degrees", LOWER))],
    "segmentation": [("miou_original", Key("mIoU, pixels, %")), (r"miou_(\d+)", Key(r"mIoU, frame of \1 pixels, %"))],
    "detection": [("ap", Key("AP, %"))],
    "localisation": [("max_box_acc_v2", Key("MaxBoxAccV2, %")), ("max_box_acc", Key("MaxBoxAcc, %"))],
    "geometry": [(name, Key(heading(name), int(name not in NEUTRAL), MEASURES[name][1])) for name in MEASURES],
    "norms": [("share", Key("Outliers among patch tokens, %", NEITHER, 2))],
}
# What they are of in a result, by name, the deepest last; vectors are named where there are any.
PARTS: Mapping[str, Callable[[Entries], Iterable[tuple[str, Entries]]]] = {
    "blocks": lambda one: [(row.protocol, row) for row in one.rows if row.protocol != LINEAR],
    "few_shot": lambda one: [("", vector) for vector in one.vectors],
    "retrieval": lambda one: [(search.protocol, search) for search in one.searches],
    "correspondence": lambda one: [("patch tokens", block) for block in one.blocks],
    "tracking": lambda one: [("patch tokens", block) for block in one.blocks],
    "depth": lambda one: [(LINEAR, one.protocols[LINEAR])],
    "segmentation": lambda one: [(PROTOCOLS.get(name, name), one.protocols[name]) for name in learnt([one])],
    "detection": lambda one: [(DETECTED[kind], Entries(one[kind], seeds=one.seeds)) for kind in DETECTED if one.get(kind)],
    "localisation": lambda one: [(map_title(m), m) for m in one.maps if (m.source, m.name) in (CLS, ABMILP)],
    "geometry": lambda one: [("", vector) for vector in one.vectors],
    "norms": lambda one: [("patch tokens", block) for block in one.blocks],
}


def section(inputs: Inputs) -> Section | None:
    """None with fewer than two trained encoders."""
    dense = [one for some in (inputs.segmentation, inputs.detection) for of_set in some.values() for one in of_set.values()]
    untrained = inputs.untrained | {one.encoder for one in dense if one.pretraining.is_untrained}
    by_name = looks(list(dict.fromkeys([*inputs.encoders, *(one.encoder for one in dense)])), untrained)
    rows = _rows(inputs, [name for name in by_name if name not in untrained])
    shown = {name: look for name, look in by_name.items() if any(name in row.numbers for row in rows)}
    if len(shown) < 2:
        return None
    return section_of("measures", "Encoders by every measure", _table(rows, shown), _figure(rows, shown), _correlations(rows))


def _rows(inputs: Inputs, encoders: Sequence[str]) -> list[Entries]:
    """A row for each measure: its Key, estimates by encoder (`numbers`), and their `ranks`."""
    found: dict[Key, dict[str, Estimate]] = {}
    estimates = (*_estimates_of_heads(inputs), *_estimates_of_scores(inputs), *_estimates_of_results(inputs, encoders))
    for key, encoder, estimate in estimates:
        if encoder in encoders:
            found.setdefault(key, {})[encoder] = estimate
    kept: dict[Key, Key] = {}  # of rows that differ by their vector alone, the one that most encoders have
    for key in sorted(found, key=lambda key: -len(found[key])):
        kept.setdefault(key._replace(vector=""), key)
    rows = [Entries(key._asdict(), numbers=found[key]) for key in found if key in kept.values()]
    return [Entries(row, ranks=ranks(row.numbers, row.better)) for row in rows]


def _estimates_of_heads(inputs: Inputs) -> Iterator[tuple[Key, str, Estimate]]:
    """Heads on the page's own data set; the leaderboard has those on others."""
    by_encoder: dict[str, list[Probe]] = {}
    for probe in inputs.probes.values():
        by_encoder.setdefault(probe.encoder, []).append(probe)
    for encoder, probes in by_encoder.items():
        named = [(title(probe.head), probe) for probe in probes if probe.head in HEADS or "protocol" in probe.recorded]
        for name, probe in (*named, ("best head", max(probes, key=lambda probe: probe.score.mean))):
            yield Key(f"{TITLES[probe.measure]}, %", dataset=inputs.folders.dataset, of=name), encoder, estimate_of(probe)


def _estimates_of_scores(inputs: Inputs) -> Iterator[tuple[Key, str, Estimate]]:
    for one in (one for one in score_rows(inputs)[0] if one.probe.head in HEADS):
        about = Key("", dataset=one.test_set, of=title(one.probe.head))
        if one.gap is not None:
            yield about._replace(measure="Top-1 on another test set, %"), one.probe.encoder, one.accuracy
            yield about._replace(measure="Gap to the first test set, points"), one.probe.encoder, one.gap
        ece = of_measure(one.measures["ece"], "", f"{one.probe.encoder} {one.probe.head}")
        yield about._replace(measure="ECE, %", better=LOWER), one.probe.encoder, ece


def _estimates_of_results(inputs: Inputs, encoders: Sequence[str]) -> Iterator[tuple[Key, str, Estimate]]:
    for kind, parts_of in PARTS.items():
        for one in sorted(inputs.results(kind, encoders), key=lambda one: str(one.dataset)):
            images = f"{one.get('data')} ({one.get('n_images', one.get('n_test'))})"
            for of, part in parts_of(one):
                vector, seeds = title(part.get("vector") or part.get("head") or ""), one.encoder if part.get("seeds") else None
                for (name, value), (pattern, key) in product(part.items(), MEASURED[kind]):
                    if isinstance(value, Measure) and (match := re.fullmatch(pattern, name)):
                        shown = key._replace(measure=match.expand(key.measure), dataset=one.dataset, of=of, vector=vector)
                        yield shown, one.encoder, of_measure(value, images, seeds)


def ranks(numbers: Mapping[str, Estimate], better: int) -> dict[str, tuple[int, int, int]]:
    """By encoder its rank, from 1 on, and the best and worst that its differences to others allow (NOTE); or nothing."""
    if better == NEITHER or len(numbers) < 2:
        return {}
    ahead, behind = Counter[str](), Counter[str]()  # how many others clearly are
    for pair in combinations(numbers, 2):
        if sign := better * (numbers[pair[0]].minus(numbers[pair[1]]).sign or 0):
            behind[pair[sign < 0]] += 1
            ahead[pair[sign > 0]] += 1
    means = {name: better * estimate.mean for name, estimate in numbers.items()}
    return {
        name: (1 + sum(other > mean for other in means.values()), 1 + ahead[name], len(means) - behind[name])
        for name, mean in means.items()
    }


def _table(rows: Sequence[Entries], shown: Mapping[str, Look]) -> Table:
    names = {encoder: name.replace("-", "_") for encoder, name in file_names("of", list(shown)).items()}

    def cell(row: Entries, encoder: str) -> Cell:
        estimate = row.numbers.get(encoder)
        return replace(number(estimate and estimate.mean, row.digits), best=row.ranks.get(encoder, (0,))[0] == 1)

    def of_encoder(encoder: str) -> list[DeclaredColumn]:
        rank = "{0[0]} [{0[1]}, {0[2]}]".format
        return [
            cells(names[encoder], encoder, lambda row: cell(row, encoder), apart=True),
            texts(f"{names[encoder]}_rank", "Rank", lambda row: row.ranks.get(encoder), rank),
        ]

    return table(
        "measures",
        "Encoders by every measure",
        NOTE,
        rows,
        texts("measure", "Measure", lambda row: row.measure, filters=True),
        texts("of", "Of", lambda row: ", ".join(filter(None, (row.vector, row.of)))),
        texts("dataset", "Data set", lambda row: row.dataset, optional=True),
        texts("better", "Better", lambda row: BETTER[row.better]),
        each(shown, of_encoder),
        muted=lambda row: False,
    )


def _label(row: Entries) -> str:
    return ", ".join(filter(None, (row.measure.removesuffix(", %"), row.vector, row.of, row.dataset)))


def _figure(rows: Sequence[Entries], shown: Mapping[str, Look]) -> Figures | None:
    """A mark and a bar for each encoder in each measure that has ranks."""
    if not (ranked := [row for row in rows if row.ranks]):
        return None
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(6.4, 0.7 + (0.14 + 0.08 * len(shown)) * len(ranked)))
        axes = plot.subplots()
        for (encoder, look), apart in zip(shown.items(), np.linspace(-0.3, 0.3, len(shown)), strict=True):
            places = [(y + apart, *row.ranks[encoder]) for y, row in enumerate(ranked) if encoder in row.ranks]
            y, rank, best, worst = np.array(places).reshape(-1, 4).T
            reach = (rank - best, worst - rank)
            axes.errorbar(rank, y, xerr=reach, color=colour(look), marker=look.marker, linestyle="none", elinewidth=0.9)
        axes.set_yticks(range(len(ranked)), [_label(row) for row in ranked])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="rank", ylim=(len(ranked) - 0.5, -0.5))
    return Figures((drawn(plot, "measures", "Ranks by measure", RANKS, ALT, shown.values()),), tuple(shown.values()))


def _correlations(rows: Sequence[Entries]) -> Table:
    """A row and a column for each measure that enough encoders have."""
    compared = [(place, row) for place, row in enumerate((row for row in rows if len(row.numbers) >= FEWEST), 1)]
    means = {place: {e: (row.better or 1) * one.mean for e, one in row.numbers.items()} for place, row in compared}

    def rho(one: int, other: int) -> Cell:
        found = correlation(means[one], means[other], FEWEST)
        cell = number(found and found[0])
        return replace(cell, text=f"{cell.text} [{found[1]}]") if found and found[1] else cell

    return table(
        "measures-alike",
        "Which measures rank encoders alike",
        ALIKE,
        compared,
        numbers("place", "No.", lambda row: row[0], 0),
        texts("measure", "Measure", lambda row: _label(row[1])),
        each(means, lambda place: cells(f"rho_{place}", str(place), lambda row: rho(row[0], place))),
        muted=lambda row: False,
        folded=True,
    )
