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
        Column("encoder", "Encoder", "text"),
        Column("dataset", "Data set", "text"),
        Column("study", "Study", "text"),
        Column("head", "Head", "text"),
        Column("metric", "Metric", "text"),
        Column("published", "Published", apart=True),
        Column("ours", "Ours", "spread"),
        Column("difference", "Ours − published", "spread"),
        Column("within", "Within ours", "text"),
        Column("protocol", "Protocol, published", "text", apart=True),
        Column("preset", "Preset, ours", "text"),
        Column("source", "Source", "text"),
        Column("note", "Note", "text"),
    )
    note = f"{NOTE} {BEST}" if any(m.published.metric.endswith(BEST_EPOCH) for m in matches) else NOTE
    return Table("against", "Published numbers and ours", note, columns, tuple(map(_match_row, matches)))


def _match_row(match: Match) -> Row:
    row, probe, difference = match.published, match.result.probe, match.difference.measure
    has_spread = match.difference.n_seeds > 1
    cells = (
        _text(probe.encoder),
        _text(match.result.dataset),
        _text(match.result.study),
        Cell(title(probe.head), probe.head),
        _text(row.metric),
        number(row.value, 2),
        spread(match.ours, 2),
        Cell(points(difference), difference.mean, difference.std if has_spread else None),
        Cell(WITHIN[match.is_within]),
        _text(row.protocol),
        _text(match.result.preset),
        _text(row.source),
        _text(row.note),
    )
    return Row(cells, match.file, probe.pretraining.is_untrained)


def _otherwise(differing: list[Differing]) -> Table:
    columns = (
        *(Column(name, name.capitalize(), "text") for name in ("encoder", "dataset", "study", "head", "metric")),
        Column("published", "Published", apart=True),
        Column("ours", "Ours", "spread"),
        Column("differs", "Differs: published, ours", "text", apart=True),
        Column("source", "Source", "text"),
        Column("note", "Note", "text"),
    )
    rows = []
    for entry in differing:
        row, probe = entry.published, entry.result.probe
        names = (probe.encoder, entry.result.dataset, entry.result.study, probe.head, row.metric)
        differs = "; ".join(f"{what}: {published}, {ours}" for what, published, ours in entry.differences)
        cells = (*map(_text, names), number(row.value, 2), spread(entry.ours, 2), *map(_text, (differs, row.source, row.note)))
        rows.append(Row(cells, entry.file, probe.pretraining.is_untrained))
    return Table("against-differing", "Published numbers that were measured otherwise", OTHERWISE, columns, tuple(rows))


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
    titles = {"encoder": "Encoder", "dataset": "Data set", "head": "Head", "protocol": "Protocol", "metric": "Metric"}
    columns = (
        *(Column(name, shown, "text") for name, shown in titles.items()),
        Column("published", "Published"),
        Column("lacks", "Not here", "text", apart=True),
        Column("nearest", "Nearest here", "text"),
        Column("source", "Source", "text"),
        Column("note", "Note", "text"),
    )
    rows = []
    for entry in unmatched:
        row = entry.published
        names = [_text(getattr(row, name)) for name in titles]
        cells = (*names, number(row.value, 2), _text(entry.lacks), _text(entry.nearest), _text(row.source), _text(row.note))
        rows.append(Row(cells, entry.file))
    note = "Each number with the first of its names that nothing here has, and the nearest name that there is."
    return Table("against-unmatched", "Published numbers without one of ours", note, columns, tuple(rows), folded=True)


def _text(text: str) -> Cell:
    return Cell(text, text) if text else NOTHING
