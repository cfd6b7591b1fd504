"""Heads on test sets that they were not made for: accuracy, what is lost against the first of them, and calibration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Plot

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Section, Table
from pipelines.report.drawing import INK, STYLE, colour, drawn, looks
from pipelines.report.estimate import Estimate, Variation, estimate_of
from pipelines.report.measured import Entries, Measure, Probe
from pipelines.report.reading import files_in, probe_in, read
from pipelines.report.tables import (
    DeclaredColumn,
    differences,
    each,
    encoders,
    file_names,
    heads,
    numbers,
    spreads,
    table,
    texts,
    title,
)

CORRUPTED = re.compile(r"(.+)-([1-5])")  # CORRUPTION-SEVERITY
CALIBRATION = {"nll": ("NLL, nats", 3), "brier": ("Brier", 3), "ece": ("ECE, %", 1), "ece_mass": ("ECE by mass, %", 1)}
NOTE = (
    "Top-1 accuracy, %, mean ± standard deviation over seeds, of heads as they were trained. Gap: points less than on the "
    "first test set, on whose images of the same classes, chosen among the same, where a map names some. 95 %: over test "
    "images and seeds; the same images, corrupted, are compared one by one."
)
ABOUT_CALIBRATION = (
    "NLL: negative log-likelihood. Brier: squared distance of probabilities from the class, 0 to 2. ECE: how far confidence is "
    "from accuracy, in 15 bins of equal width, or of as many images each. At T: logits divided by a temperature, which was "
    "fitted to images that the head was not trained on."
)


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls score` was not run."""
    rows, corrupted = score_rows(inputs)
    if not rows:
        return None
    each_corruption = [_table("scores-corrupted", "Each corruption", corrupted, folded=True)] if corrupted else []
    plain = [row for row in rows if row.bins]
    return Section(
        "scores",
        "Other test sets",
        (_table("scores", "Heads on other test sets", rows), *each_corruption, _calibration_table(rows), _figures(plain)),
    )


def score_rows(inputs: Inputs) -> tuple[list[Entries], list[Entries]]:
    """A row for each test set of each head, the mean of corrupted ones as one; and one for each corrupted one."""
    files = files_in(inputs.folders.scores, "*/*/*/metrics.json")
    probes = [
        probe for file in files if (probe := read(file, "beyondcls score", probe_in)) and probe.encoder in inputs.encoders
    ]
    known = [*inputs.heads, *sorted({probe.head for probe in probes} - set(inputs.heads))]
    by_head: dict[tuple[str, str], list[Entries]] = {}
    for probe in sorted(probes, key=lambda one: (inputs.encoders.index(one.encoder), known.index(one.head), _sort_key(one))):
        by_head.setdefault((probe.encoder, probe.head), []).append(_row(probe))
    rows, corrupted = [], []
    for of_head in by_head.values():
        worse = [row for row in of_head if CORRUPTED.fullmatch(row.test_set)]
        worse = worse if len(worse) > 1 else []
        rows += [row for row in of_head if row not in worse] + ([_mean(worse)] if worse else [])
        corrupted += worse
    return rows, corrupted


def _sort_key(probe: Probe) -> tuple[bool, str]:
    name = _name(probe)
    return name != probe.recorded["scored"]["first"], name


def _name(probe: Probe) -> str:
    return str(probe.folder.parents[1].name)


def _row(probe: Probe) -> Entries:
    accuracy, gap, measures = _pair_seeds(estimate_of(probe), probe), None, probe.measures
    scored = probe.recorded["scored"]
    if "gap" in measures:
        values = [a - b for a, b in zip(probe.score.values, measures["gap"].values, strict=True)]
        of_first = {"n_test": scored["n_reference"], "test_images": scored["reference_images"], "member": "reference"}
        reference = Probe(probe, measures={"top1": _measure(values)}, **of_first)
        gap = accuracy.minus(_pair_seeds(estimate_of(reference), probe))
        same_images = (reference.test_images, reference.n_test) == (probe.test_images, probe.n_test)
        # Of the same images what seeds disagree about is much the same: taking off the sum of both would take off too much.
        gap = replace(gap, std=measures["gap"].std, in_both=0.0 if same_images else gap.in_both)
    bins = {name: probe[name] for name in ("reliability", "tempered_reliability") if name in probe}
    n_choices = scored["n_choices"]
    return Entries(
        probe=probe,
        test_set=_name(probe),
        n=probe.n_test,
        choices=n_choices,
        accuracy=accuracy,
        gap=gap,
        measures=measures,
        bins=bins,
    )


def _measure(values: Sequence[float]) -> Measure:
    return Measure(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, tuple(values))


def _pair_seeds(estimate: Estimate, probe: Probe) -> Estimate:
    """With seeds that are those of its head, whatever the images."""
    seeds = Variation("seeds", f"{probe.encoder} {probe.head}")
    effects = {seeds if source.kind == "seeds" else source: units for source, units in estimate.effects.items()}
    return replace(estimate, effects=effects)


def _mean(rows: Sequence[Entries]) -> Entries:
    """The mean over corruptions and severities."""
    corruptions, severities = (sorted({CORRUPTED.fullmatch(row.test_set)[i] for row in rows}) for i in (1, 2))  # type: ignore[index]
    measured = set.intersection(*(set(row.measures) for row in rows))
    measures = {name: _measure(np.mean([row.measures[name].values for row in rows], 0).tolist()) for name in measured}
    name = f"mean of {len(rows)}: {len(corruptions)} corruptions, severities {', '.join(severities)}"
    accuracy = _mean_estimate([row.accuracy for row in rows], measures["top1"])
    gaps = [row.gap for row in rows if row.gap is not None]
    gap = _mean_estimate(gaps, measures["gap"]) if len(gaps) == len(rows) else None
    n = sum(row.n for row in rows)
    return Entries(
        probe=rows[0].probe, test_set=name, n=n, choices=rows[0].choices, accuracy=accuracy, gap=gap, measures=measures, bins={}
    )


def _mean_estimate(of_sets: Sequence[Estimate], measure: Measure) -> Estimate:
    """Test sets are what they are, not a sample: the mean varies with their images and the seeds alone."""
    effects: dict[Variation, Any] = {}
    for one in of_sets:
        for source, units in one.effects.items():
            if source.kind != "images" or all(other.knows_images for other in of_sets):
                effects[source] = effects.get(source, 0) + units / len(of_sets)
    return Estimate(measure.mean, measure.std, of_sets[0].n_seeds, effects)


def _columns() -> tuple[DeclaredColumn, ...]:
    return (
        encoders(lambda row: row.probe, filters=True),
        heads(lambda row: row.probe.head),
        texts("test_set", "Test set", lambda row: row.test_set, filters=True),
    )


def _table(name: str, heading: str, rows: Sequence[Entries], folded: bool = False) -> Table:
    return table(
        name,
        heading,
        NOTE,
        rows,
        *_columns(),
        spreads("top1", "Top-1, %", lambda row: row.probe.score if row.bins else row.accuracy.measure),
        texts("top1_interval", "95 %", lambda row: row.accuracy.interval and row.accuracy.bounds()),
        differences("gap", "Gap", lambda row: row.gap, apart=True, fixed=True),
        numbers("n_test", "Images", lambda row: row.n, 0, apart=True),
        numbers("n_choices", "Classes to choose among", lambda row: row.choices, 0),
        folded=folded,
    )


def _calibration_table(rows: Sequence[Entries]) -> Table:
    tempered = [f"tempered_{name}" for name in CALIBRATION] if any("temperature" in row.measures for row in rows) else []

    def column(name: str) -> DeclaredColumn:
        heading, digits = CALIBRATION[name.removeprefix("tempered_")]
        return spreads(name, f"{heading}{' at T' * (name in tempered)}", lambda row: row.measures.get(name), digits)

    return table(
        "calibration",
        "Whether probabilities are what they say",
        ABOUT_CALIBRATION,
        rows,
        *_columns(),
        each(list(CALIBRATION), column, apart=True),
        each(
            ["temperature"] if tempered else [],
            lambda name: spreads(name, "T", lambda row: row.measures.get(name), 2),
            apart=True,
        ),
        each(tempered, column),
    )


def _figures(rows: Sequence[Entries]) -> Figures:
    """Reliability of the heads of each encoder on each test set, all seeds together."""
    by_plot: dict[str, list[Entries]] = {}
    for row in rows:
        by_plot.setdefault(f"{row.probe.encoder}, {row.test_set}", []).append(row)
    by_head = looks(list(dict.fromkeys(row.probe.head for row in rows)))
    names = file_names("reliability", list(by_plot))
    figures = tuple(_figure(name, names[name], of_plot, by_head) for name, of_plot in by_plot.items())
    return Figures(figures, tuple(by_head.values()))


def _figure(heading: str, name: str, rows: Sequence[Entries], by_head: Mapping[str, Any]) -> Figure:
    kinds = {"reliability": "as trained", "tempered_reliability": "at temperature T"}
    shown = [kind for kind in kinds if any(kind in row.bins for row in rows)]
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(2.4 * len(shown), 2.4))
        for axes, kind in zip(plot.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            axes.plot([0, 100], [0, 100], color=INK, linewidth=0.6, linestyle="dotted")
            for row in (row for row in rows if kind in row.bins):
                bins, look = row.bins[kind], by_head[row.probe.head]
                x, y = (
                    [100 * v for v, n in zip(bins[axis], bins["n"], strict=True) if n] for axis in ("confidence", "accuracy")
                )
                axes.plot(x, y, color=colour(look), linestyle=look.dash, marker=look.marker, linewidth=1.3)
            axes.set(xlim=(0, 100), ylim=(0, 100), xlabel=f"confidence, %, {kinds[kind]}", ylabel="accuracy, %")
    said = [f"{title(row.probe.head)}: ECE {row.measures['ece'].mean:.1f} %" for row in rows]
    alt = f"Accuracy by confidence of {heading}. {'; '.join(said)}."
    return drawn(plot, name, heading, "", alt, [by_head[row.probe.head] for row in rows])
