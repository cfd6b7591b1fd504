"""Every head on every encoder and data set, the best first."""

from statistics import fmean

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Section, Table
from pipelines.report.estimate import difference
from pipelines.report.families import OTHER, SHORT, family_of
from pipelines.report.measured import Entries, Probe
from pipelines.report.remarks import TITLES
from pipelines.report.results import of_data_sets
from pipelines.report.sections.studies import count
from pipelines.report.tables import NOTHING, DeclaredColumn, cells, each, encoders, numbers, points, signed, spreads, table
from pipelines.report.tables import heads as heads_of

DATA_SET = "Data set"
NOTE = (
    "Top-1 accuracy, or mean average precision of images with several labels, on the test images, %, mean ± standard deviation "
    "over seeds. Bold: the highest of a column. Mean: over data sets, where a head has all. In the order of the mean "
    "where all heads have it, else of the first data set; heads without it are last. − [cls]: how much more than [cls] of the "
    "same encoder, mean over data sets."
)
OnSets = dict[str, Probe]  # of one encoder and head, by data set


def section(inputs: Inputs) -> Section | None:
    """None without probes."""
    return Section("leaderboard", "Leaderboard", (leaderboard(inputs),)) if inputs.probes else None


def leaderboard(inputs: Inputs) -> Table:
    """A row for each encoder and head: the mean over data sets if there are several, then each; from the highest on.

    The order is that of the mean, or of the page's data set where heads of that were not trained on all.
    """
    heads: dict[tuple[str, str], OnSets] = {}
    measures: dict[str, str] = {}
    for row in of_data_sets(inputs):
        heads.setdefault((row.probe.encoder, row.probe.head), {}).setdefault(row.dataset, row.probe)
        measures.setdefault(row.dataset, row.probe.measure)
    has_mean, first = len(measures) > 1 and len(set(measures.values())) == 1, next(iter(measures))
    means = {key: fmean(p.score.mean for p in on.values()) for key, on in heads.items() if len(on) == len(measures)}
    by_mean = has_mean and all(key in means for key, on in heads.items() if first in on)

    def place(key: tuple[str, str]) -> tuple[bool, float, tuple[str, str]]:
        score = means.get(key) if by_mean else heads[key][first].score.mean if first in heads[key] else None
        return score is None, -(score or 0.0), key

    def of_set(name: str) -> DeclaredColumn:
        column = f"{measures[name]}_on_{name}" if name else measures[name]
        of = DATA_SET if len(measures) > 1 else ""  # of several, the reader may choose one
        return spreads(column, _heading(name, measures), lambda row: (p := row.on.get(name)) and p.score, best="column", of=of)

    rows = []
    for encoder, head in sorted(heads, key=place):
        on = heads[encoder, head]
        counts = [n for probe in on.values() if (n := probe.cost.get("parameters")) is not None]
        over_cls = NOTHING if head == "cls" else _gain_over_cls(on, heads.get((encoder, "cls"), {}))
        about = {"head": head, "mean": means.get((encoder, head)), "over_cls": over_cls}
        rows.append(Entries(about, on=on, one=next(iter(on.values())), parameters=max(counts, default=None)))
    return table(
        "leaderboard",
        "Every head on every encoder",
        NOTE,
        rows,
        encoders(lambda row: row.one, filters=True),
        cells("family", "Family", lambda row: _family(row.one), "text", filters=True),
        heads_of(filters=True),
        [numbers("mean", "Mean", lambda row: row.mean, 1, best="column", apart=True)] if has_mean else [],
        each(measures, of_set, apart=not has_mean),
        cells("points_over_cls", "− [cls], points", lambda row: row.over_cls, apart=True),
        cells("parameters", "Parameters of the aggregator", lambda row: count(row.parameters)),
    )


def _family(probe: Probe) -> Cell:
    name = family_of(probe.pretraining)
    return NOTHING if name == OTHER else Cell(SHORT[name], name)


def _heading(name: str, measures: dict[str, str]) -> str:
    """`cifar10`, or `coco, mAP` where data sets have different measures; without its name, what is measured."""
    if len(measures) == 1 or not name:
        return f"{TITLES[measures[name]]}, %"
    return name if len(set(measures.values())) == 1 else f"{name}, {TITLES[measures[name]]}"


def _gain_over_cls(on: OnSets, cls: OnSets) -> Cell:
    """Mean over the data sets on which the encoder was probed with [cls], too; the spread only where that is one."""
    apart = [d for name, probe in on.items() if (d := difference(probe, cls.get(name))) is not None]
    if len(apart) == 1:
        return Cell(points(apart[0]), apart[0].mean)
    mean = fmean(d.mean for d in apart) if apart else None
    return NOTHING if mean is None else Cell(signed(mean), mean)
