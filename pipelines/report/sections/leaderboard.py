"""Every head on every encoder and data set, the best first."""

from statistics import fmean

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.families import OTHER, SHORT, family_of
from pipelines.report.measured import Probe
from pipelines.report.results import of_data_sets
from pipelines.report.scores import SENTENCE, TITLES, WORDS
from pipelines.report.studies import count
from pipelines.report.tables import NOTHING, difference, named, points, signed, spread, title

DATA_SET = "Data set"
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
    best = {name: max(round(on[name].score.mean, 1) for on in heads.values() if name in on) for name in measures}
    highest = max((round(mean, 1) for mean in means.values()), default=0.0)
    by_mean = has_mean and all(key in means for key, on in heads.items() if first in on)

    def place(key: tuple[str, str]) -> tuple[bool, float, tuple[str, str]]:
        score = means.get(key) if by_mean else heads[key][first].score.mean if first in heads[key] else None
        return score is None, -(score or 0.0), key

    rows = []
    for key in sorted(heads, key=place):
        on, probe = heads[key], next(iter(heads[key].values()))
        mean = means.get(key)
        untrained, family = probe.pretraining.is_untrained, family_of(probe.pretraining)
        cells = [
            named(key[0], untrained),
            NOTHING if family == OTHER else Cell(SHORT[family], family),
            Cell(title(key[1]), key[1]),
            *([NOTHING if mean is None else Cell(f"{mean:.1f}", mean, best=round(mean, 1) == highest)] if has_mean else []),
            *(_score(on.get(name), best[name]) for name in measures),
            NOTHING if key[1] == "cls" else _over_cls(on, heads.get((key[0], "cls"), {})),
            count(max((n for p in on.values() if (n := p.cost.get("parameters")) is not None), default=None)),
        ]
        rows.append(Row(tuple(cells), muted=untrained))
    columns = (
        Column("encoder", "Encoder", "text", filters=True),
        Column("family", "Family", "text", filters=True),
        Column("head", "Head", "text", filters=True),
        *((Column("mean", "Mean", apart=True),) if has_mean else ()),
        *(_column(name, measures, apart=not place and not has_mean) for place, name in enumerate(measures)),
        Column("points_over_cls", "− [cls], points", apart=True),
        Column("parameters", "Parameters of the aggregator"),
    )
    return Table("leaderboard", "Every head on every encoder", _note(measures, has_mean, by_mean), columns, tuple(rows))


def _column(name: str, measures: dict[str, str], apart: bool) -> Column:
    """Of a data set; of several, the reader may choose one."""
    key = f"{measures[name]}_on_{name}" if name else measures[name]
    return Column(key, _titled(name, measures), "spread", apart, of=DATA_SET if len(measures) > 1 else "")


def _titled(name: str, measures: dict[str, str]) -> str:
    """`cifar10`, or `coco, mAP` where data sets have different measures; without its name, what is measured."""
    if len(measures) == 1 or not name:
        return f"{TITLES[measures[name]]}, %"
    return name if len(set(measures.values())) == 1 else f"{name}, {TITLES[measures[name]]}"


def _score(probe: Probe | None, highest: float) -> Cell:
    return NOTHING if probe is None else spread(probe.score, best=round(probe.score.mean, 1) == highest)


def _over_cls(on: OnSets, cls: OnSets) -> Cell:
    """Mean over the data sets on which the encoder was probed with [cls], too; the spread only where that is one."""
    apart = [d for name, probe in on.items() if (d := difference(probe, cls.get(name))) is not None]
    if len(apart) == 1:
        return Cell(points(apart[0]), apart[0].mean)
    mean = fmean(d.mean for d in apart) if apart else None
    return NOTHING if mean is None else Cell(signed(mean), mean)


def _note(measures: dict[str, str], has_mean: bool, by_mean: bool) -> str:
    kinds = dict.fromkeys(measures.values())
    words = [SENTENCE[name] if place == 0 else WORDS[name] for place, name in enumerate(kinds)]
    note = f"{' or '.join(words)} on the test images, %, mean ± standard deviation over seeds. Bold: the highest of a column."
    if has_mean:
        note += " The mean over data sets is given where a head was trained on all."
    if len(measures) > 1:
        note += f" In the order of {'the mean' if by_mean else next(iter(measures))}; heads without it are last."
    return (
        f"{note} − [cls]: how much more than [cls] of the same encoder{', mean over data sets' if len(measures) > 1 else ''}."
    )
