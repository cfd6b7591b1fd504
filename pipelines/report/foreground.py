"""How much of the weight of heads and of attention falls on objects: the paper's claim, measured on label maps."""

from collections.abc import Sequence

from pipelines.report.content import Block, Cell, Column, Row, Table, Text
from pipelines.report.estimate import Estimate, difference, of_measure
from pipelines.report.segmented import OnForeground, Segmented
from pipelines.report.tables import (
    NOTHING,
    change,
    interval_beside,
    named,
    number,
    spread,
    title,
    with_best,
    with_interval,
    with_known_intervals,
)

CLAIM = (
    "The paper says that [cls] of masked models gathers from all patches nearly alike, and that selective aggregation "
    "(AbMILP) highlights the relevant ones."
)
CLS, ABMILP = ("attention", "cls"), ("probe", "abmilp")


def foreground_blocks(dataset: str, name: str, results: Sequence[Segmented]) -> list[Block]:
    """A table by encoder, and one of every map; nothing where no weights were compared."""
    compared = [one for one in results if one.foreground]
    if not compared:
        return []
    blocks: list[Block] = []
    if len({one.foreground_classes for one in compared}) > 1:
        blocks.append(
            Text("The foreground is not of the same classes for all encoders; rows are not comparable.", kind="notice")
        )
    return [*blocks, _summary(dataset, name, compared), _every_map(dataset, name, compared)]


def _summary(dataset: str, name: str, compared: Sequence[Segmented]) -> Table:
    heads = dict.fromkeys(key for one in compared for key in one.foreground if key[0] == "probe")
    keys = [CLS, *sorted(heads, key=lambda key: (key[1] != "abmilp", key))]
    keys = [key for key in keys if any(key in one.foreground for one in compared)]
    columns = [Column("encoder", "Encoder", "text"), Column("area", "Area")]
    for measure, words in (("share", "weight"), ("gain", "× area")):
        for i, (source, head) in enumerate(keys):
            of_map = "[cls], mean" if source == "attention" else title(head)
            columns.append(Column(f"{source}_{head}_{measure}", f"{of_map}, {words}", "spread", apart=i == 0))
    if has_abmilp := ABMILP in keys:
        columns.append(Column("abmilp_gain_interval", "AbMILP, × area, 95 %", "text"))
        columns.append(Column("abmilp_against_area", "AbMILP − area", "spread", apart=True))
        columns += interval_beside(Column("abmilp_against_cls", "AbMILP − [cls], mean", "spread")) if CLS in keys else ()
    columns += [Column("foreground", "Foreground", "text", apart=True), Column("n_images", "Images")]
    rows = []
    for one in compared:
        maps = [one.foreground.get(key) for key in keys]
        area = next(iter(one.foreground.values())).area
        cells = [named(one.encoder, one.pretraining.is_untrained), number(area, 1)]
        cells += with_best(m.share if m else None for m in maps)
        cells += [spread(m.gain if m else None, 2) for m in maps]
        if has_abmilp:
            abmilp, cls = (_estimate(one, "share", key) for key in (ABMILP, CLS))
            gain = _estimate(one, "gain", ABMILP)
            cells.append(Cell(gain.bounds(2), gain.bounds(3)) if gain and gain.interval else NOTHING)
            cells.append(change(difference(abmilp, Estimate(area, 0.0, 0))))
            cells += with_interval(difference(abmilp, cls)) if CLS in keys else ()
        classes = ", ".join(one.foreground_classes) or "all objects"
        cells += [Cell(classes, classes), number(one.n_foreground, 0)]
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    note = (
        "Of the weight that goes to patches, percent that falls on the foreground, of test images that show any. "
        "Bold: the highest of a row; ±: the standard deviation over seeds of heads. Area: the foreground's share of the "
        "image, which is what equal weights put there. × area: mean over images of weight by area; 1 is what equal weights "
        f"have. AbMILP minus others: points. 95 %: over test images and seeds. {CLAIM}"
    )
    table = Table(f"{name}-foreground", f"{dataset}: weight on the foreground", note, tuple(columns), tuple(rows))
    return with_known_intervals(table)


def _estimate(one: Segmented, measure: str, key: tuple[str, str]) -> Estimate | None:
    """Of a map's share or gain; those of attention are the same for all seeds."""
    if (of_map := one.foreground.get(key)) is None:
        return None
    seeds = key[1] if key[0] == "probe" else None
    return of_measure(getattr(of_map, measure), f"{one.data}, foreground", seeds)


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
