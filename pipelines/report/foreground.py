"""How much of the weight of heads and of attention falls on objects: the paper's claim, measured on label maps."""

import math
from collections.abc import Sequence

from pipelines.report.content import Block, Cell, Column, Row, Table, Text
from pipelines.report.measured import Measure
from pipelines.report.segmented import OnForeground, Segmented
from pipelines.report.tables import listed, named, number, spread, title, unbroken, unbroken_mean

CLAIM = (
    "The paper says that [cls] of masked models gathers from all patches nearly alike, and that selective aggregation "
    "(AbMILP) highlights the relevant ones."
)


def foreground_blocks(dataset: str, name: str, results: Sequence[Segmented]) -> list[Block]:
    """The claim in numbers, a table by encoder, and one of every map; nothing where no weights were compared."""
    compared = [one for one in results if one.foreground]
    if not compared:
        return []
    blocks: list[Block] = [Text(sentence, kind="finding") for sentence in _findings(dataset, compared)]
    if len({one.foreground_classes for one in compared}) > 1:
        blocks.append(
            Text("The foreground is not of the same classes for all encoders; rows are not comparable.", kind="notice")
        )
    return [*blocks, _summary(dataset, name, compared), _every_map(dataset, name, compared)]


def _findings(dataset: str, compared: Sequence[Segmented]) -> list[str]:
    """AbMILP's weights beside mean [cls] attention and equal weights."""
    sentences = []
    for one in compared:
        cls, abmilp = (one.foreground.get(key) for key in (("attention", "cls"), ("probe", "abmilp")))
        if abmilp is None:
            continue
        against = f"{unbroken(_apart(abmilp.share, _exact(abmilp.area)))} against equal weights"
        if cls is not None:
            against = f"{unbroken(_apart(abmilp.share, cls.share))} against mean [cls] attention, {against}"
        beside = f", mean [cls] attention {unbroken_mean(cls.share)} %" if cls else ""
        sentences.append(
            f"on {one.encoder}, AbMILP puts {unbroken_mean(abmilp.share)} % of its weight there{beside}, and equal weights "
            f"would put {abmilp.area:.1f} %; in points, AbMILP is at {against}"
        )
    if not sentences:
        return []
    of_classes = listed(list(compared[0].foreground_classes)) if compared[0].foreground_classes else "all objects"
    return [f"{CLAIM} On {dataset}, with {of_classes} as what is relevant: {'; '.join(sentences)}."]


def _summary(dataset: str, name: str, compared: Sequence[Segmented]) -> Table:
    heads = dict.fromkeys(key for one in compared for key in one.foreground if key[0] == "probe")
    keys = [("attention", "cls"), *sorted(heads, key=lambda key: (key[1] != "abmilp", key))]
    keys = [key for key in keys if any(key in one.foreground for one in compared)]
    columns = [Column("encoder", "Encoder", "text"), Column("area", "Area")]
    for measure, words in (("share", "weight"), ("gain", "× area")):
        for i, (source, head) in enumerate(keys):
            of_map = "[cls], mean" if source == "attention" else title(head)
            columns.append(Column(f"{source}_{head}_{measure}", f"{of_map}, {words}", "spread", apart=i == 0))
    rows = []
    for one in compared:
        maps = [one.foreground.get(key) for key in keys]
        highest = max((round(m.share.mean, 1) for m in maps if m), default=None)
        cells = [named(one.encoder, one.pretraining.is_untrained), number(next(iter(one.foreground.values())).area, 1)]
        cells += [spread(m.share if m else None, best=m is not None and round(m.share.mean, 1) == highest) for m in maps]
        cells += [spread(m.gain if m else None, 2) for m in maps]
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    n = " or ".join(f"{n:,}" for n in sorted({one.n_foreground for one in compared}))
    note = (
        f"Of the weight that goes to patches, percent that falls on the foreground; {n} test images that show any. Area: the "
        "foreground's share of the image, which is what equal weights put there. × area: mean over images of weight by area; 1 "
        "is what equal weights have. Heads: mean ± standard deviation over seeds. Bold: the highest of a row."
    )
    return Table(f"{name}-foreground", f"{dataset}: weight on the foreground", note, tuple(columns), tuple(rows))


def _every_map(dataset: str, name: str, compared: Sequence[Segmented]) -> Table:
    columns = (
        Column("encoder", "Encoder", "text"),
        Column("map", "Map", "text"),
        Column("weight", "Weight on the foreground", "spread"),
        Column("area", "Area"),
        Column("gain", "× area", "spread"),
    )
    rows = [
        Row(
            (
                named(one.encoder, one.pretraining.is_untrained),
                Cell(_name(m), _name(m)),
                spread(m.share),
                number(m.area, 1),
                spread(m.gain, 2),
            )
        )
        for one in compared
        for m in one.foreground.values()
    ]
    note = "As above, of every map that was compared. Heads: mean ± standard deviation over seeds."
    shown = f"{dataset}: weight on the foreground, every map"
    return Table(f"{name}-foreground-maps", shown, note, columns, tuple(rows), folded=True)


def _name(one: OnForeground) -> str:
    if one.source == "probe":
        return title(one.name)
    if one.name.startswith("cls-head-"):
        return f"[cls], attention head {one.name.removeprefix('cls-head-')}"
    return {"cls": "[cls], mean", "centre-patch": "centre patch, mean"}.get(one.name, one.name)


def _exact(value: float) -> Measure:
    return Measure(value, 0.0, (value,))


def _apart(one: Measure, other: Measure) -> Measure:
    """`one` − `other`; the spread is that over the seeds of those that have several."""
    n = max(len(one.values), len(other.values))
    return Measure(one.mean - other.mean, math.hypot(one.std, other.std), (math.nan,) * n)
