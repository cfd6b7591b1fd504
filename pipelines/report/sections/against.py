"""Published numbers beside ours (`--against`), and those that nothing here compares with."""

from collections import Counter

from pipelines.report.against import Differing, Match, Unmatched, compared, in_words
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Row, Section, Table, Text
from pipelines.report.results import BEST_EPOCH
from pipelines.report.tables import NOTHING, number, points, spread, title

WITHIN = {True: "yes", False: "no", None: "–"}
NOTE = (
    "Percent, or nats of an entropy; ours: mean ± standard deviation over seeds. Within: the published number is inside of our "
    "95 % interval over test images and seeds; a dash where that is unknown. Nothing that a number states of its measurement "
    "differs from ours."
)
OTHERWISE = (
    "Numbers of the same encoder, data set and head that were measured in another way: they stand side by side and are no "
    "deviations of one another."
)
BEST = (
    "A metric that ends in “best_epoch” is that of the epoch in which a head is best on the test images, as some benchmarks "
    "publish it: it was chosen on the images that it is measured on, and is not our result, which is the last epoch's."
)


def section(inputs: Inputs) -> Section | None:
    """Both tables; None where no published numbers were given.

    Raises:
        BeyondClsError: a record of correct test images does not fit its metrics.
    """
    if not inputs.against:
        return None
    matches, differing, unmatched = compared(inputs)
    blocks: list[Block] = [Text("Published numbers that were given:", tuple(in_words(inputs)))]
    if matches:
        blocks.append(_matched(matches))
    if differing:
        blocks.append(_otherwise(differing))
    if unmatched:
        blocks += [_notice(unmatched), _without_ours(unmatched)]
    return Section("against", "Beside published numbers", tuple(blocks))


def _matched(matches: list[Match]) -> Table:
    columns = (
        *_names("encoder", "dataset", "study", "head", "metric"),
        Column("published", "Published", apart=True),
        Column("ours", "Ours", "spread"),
        Column("difference", "Ours − published", "spread"),
        Column("within", "Within ours", "text"),
        Column("protocol", "Protocol, published", "text", apart=True),
        Column("preset", "Preset, ours", "text"),
        *_names("source", "note"),
    )
    note = f"{NOTE} {BEST}" if any(m.published.metric.endswith(BEST_EPOCH) for m in matches) else NOTE
    rows = []
    for match in matches:
        difference = match.difference.measure
        std = difference.std if match.difference.n_seeds > 1 else None
        change = (Cell(points(difference), difference.mean, std), Cell(WITHIN[match.is_within]))
        rows.append(_row(match, *change, *map(_text, (match.published.protocol, match.result.preset))))
    return Table("against", "Published numbers and ours", note, columns, tuple(rows))


def _otherwise(differing: list[Differing]) -> Table:
    columns = (
        *_names("encoder", "dataset", "study", "head", "metric"),
        Column("published", "Published", apart=True),
        Column("ours", "Ours", "spread"),
        Column("differs", "Differs: published, ours", "text", apart=True),
        *_names("source", "note"),
    )
    rows = [
        _row(one, _text("; ".join(f"{what}: {theirs}, {ours}" for what, theirs, ours in one.differences))) for one in differing
    ]
    return Table("against-differing", "Published numbers that were measured otherwise", OTHERWISE, columns, tuple(rows))


def _row(pair: Match | Differing, *between: Cell) -> Row:
    """Its names and both numbers; `between` these and the source."""
    row, probe, result = pair.published, pair.result.probe, pair.result
    names = (*map(_text, (probe.encoder, result.dataset, result.study)), Cell(title(probe.head), probe.head), _text(row.metric))
    cells = (*names, number(row.value, 2), spread(pair.ours, 2), *between, _text(row.source), _text(row.note))
    return Row(cells, pair.file, probe.pretraining.is_untrained)


def _notice(unmatched: list[Unmatched]) -> Text:
    """What is lacking here, with the number of rows and the nearest name."""
    counts = Counter((entry.file, entry.lacks, entry.name, entry.nearest) for entry in unmatched)
    by_part: dict[tuple[str, str], list[str]] = {}
    for (file, lacks, name, nearest), n in counts.items():
        numbers = f"{n} number{'s' * (n > 1)}"
        by_part.setdefault((file, lacks), []).append(
            f"{name} ({numbers}, nearest {nearest})" if nearest else f"{name} ({numbers})"
        )
    items = tuple(f"{file}, no such {lacks}: {', '.join(names)}" for (file, lacks), names in by_part.items())
    return Text(f"{len(unmatched):,} published numbers have none of ours beside them:", items, "notice")


def _without_ours(unmatched: list[Unmatched]) -> Table:
    names = ("encoder", "dataset", "head", "protocol", "metric")
    columns = (
        *_names(*names),
        Column("published", "Published"),
        Column("lacks", "Not here", "text", apart=True),
        Column("nearest", "Nearest here", "text"),
        *_names("source", "note"),
    )
    rows = []
    for entry in unmatched:
        row = entry.published
        cells = [_text(getattr(row, name)) for name in names]
        rows.append(
            Row((*cells, number(row.value, 2), *map(_text, (entry.lacks, entry.nearest, row.source, row.note))), entry.file)
        )
    note = "Each number with the first of its names that nothing here has, and the nearest name that there is."
    return Table("against-unmatched", "Published numbers without one of ours", note, columns, tuple(rows), folded=True)


def _names(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "Data set" if name == "dataset" else name.capitalize(), "text") for name in names)


def _text(text: str) -> Cell:
    return Cell(text, text) if text else NOTHING
