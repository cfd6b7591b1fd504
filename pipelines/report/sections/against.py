"""Published numbers beside ours (`--against`), and those that nothing here compares with."""

from collections import Counter
from collections.abc import Sequence

from pipelines.report.against import Beside, compared, in_words
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Section, Table, Text
from pipelines.report.results import BEST_EPOCH
from pipelines.report.tables import Declared, cells, each, heads, numbers, points, spreads, table, texts

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


def _matched(matches: list[Beside]) -> Table:
    def change(match: Beside) -> Cell:
        assert match.difference is not None
        std = match.difference.std if match.difference.n_seeds > 1 else None
        return Cell(points(match.difference), match.difference.mean, std)

    between = (
        cells("difference", "Ours − published", change, "spread"),
        cells("within", "Within ours", lambda match: Cell(WITHIN[match.is_within]), "text"),
        texts("protocol", "Protocol, published", lambda match: match.published.protocol, apart=True),
        texts("preset", "Preset, ours", lambda match: match.result.preset),
    )
    note = f"{NOTE} {BEST}" if any(m.published.metric.endswith(BEST_EPOCH) for m in matches) else NOTE
    return _both("against", "Published numbers and ours", note, matches, *between)


def _otherwise(differing: list[Beside]) -> Table:
    def differs(one: Beside) -> str:
        return "; ".join(f"{what}: {theirs}, {ours}" for what, theirs, ours in one.differences)

    column = texts("differs", "Differs: published, ours", differs, apart=True)
    return _both("against-differing", "Published numbers that were measured otherwise", OTHERWISE, differing, column)


def _both(name: str, heading: str, note: str, rows: Sequence[Beside], *between: Declared) -> Table:
    """Names and both numbers; `between` these and the source."""
    return table(
        name,
        heading,
        note,
        rows,
        texts("encoder", "Encoder", lambda pair: pair.result.probe.encoder),
        texts("dataset", "Data set", lambda pair: pair.result.dataset),
        texts("study", "Study", lambda pair: pair.result.study),
        heads(lambda pair: pair.result.probe.head),
        texts("metric", "Metric", lambda pair: pair.published.metric),
        numbers("published", "Published", lambda pair: pair.published.value, apart=True),
        spreads("ours", "Ours", lambda pair: pair.ours, 2),
        between,
        _published("source", "note"),
        group=lambda pair: pair.file,
        muted=lambda pair: pair.result.probe.pretraining.is_untrained,
    )


def _published(*names: str) -> list[Declared]:
    """Columns of what published rows say."""
    titles = {"dataset": "Data set"}
    return each(names, lambda name: texts(name, titles.get(name, name.capitalize()), lambda row: getattr(row.published, name)))


def _notice(unmatched: list[Beside]) -> Text:
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


def _without_ours(unmatched: list[Beside]) -> Table:
    return table(
        "against-unmatched",
        "Published numbers without one of ours",
        "Each number with the first of its names that nothing here has, and the nearest name that there is.",
        unmatched,
        _published("encoder", "dataset", "head", "protocol", "metric"),
        numbers("published", "Published", lambda row: row.published.value),
        texts("lacks", "Not here", lambda row: row.lacks, apart=True),
        texts("nearest", "Nearest here", lambda row: row.nearest),
        _published("source", "note"),
        group=lambda row: row.file,
        folded=True,
    )
