"""Published numbers next to ours (`--against`): which of ours has the encoder, data set, head, protocol and measure of each."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text, section_of
from pipelines.report.estimate import Estimate, estimate_of
from pipelines.report.measured import Entries
from pipelines.report.published.row import PublishedRow
from pipelines.report.results import BEST_EPOCH, TrainedHead, results
from pipelines.report.tables import DeclaredColumn, cells, change, each, heads, numbers, spreads, table, texts
from probe.recipe import PRESETS, settings_of

STEPLESS = ("knn", "logistic", "ridge")  # names in CLOSED; a published number of one is compared with its heads alone
STEPS = "of gradient steps"
WITHIN = {1: "no", -1: "no", 0: "yes", None: None}
NOTE = (
    "Percent, or nats of an entropy; ours: mean ± standard deviation over seeds. Within: the published number is in our 95 "
    "% interval over test images and seeds; a dash where that is unknown. Nothing that a number states of its measurement "
    "differs from ours."
)
OTHERWISE = (
    "Numbers of the same encoder, data set and head that were measured in another way: they are no deviations of one another."
)
BEST = (
    "“best_epoch” in a metric: the epoch that is best on the test images themselves, as some benchmarks publish it; not our "
    "result."
)


class Beside(Entries):
    """A published number, in a `file` of this name, and what it is compared with: ours, or what is lacking.

    Attributes:
        published: its row.
        result: ours of the same encoder, data set, head and metric; None if there is none.
        difference: ours − published, in the unit of the measure, of one that was measured alike. The published number is within
            our interval where this is no sign.
        differences: in what one was measured in another way: what it is, how it was published, and ours.
        lacks: what none of ours has: "encoder", or, of that encoder, "data set", …; its `name`, and the `nearest` of ours.
    """


def section(inputs: Inputs) -> Section | None:
    """Numbers that were measured alike, and otherwise, and those without ours; None where no published numbers were given."""
    if not inputs.against:
        return None
    matches, differing, unmatched = match_published(inputs)
    of_best = any(match.published.metric.endswith(BEST_EPOCH) for match in matches)
    between = (
        cells("difference", "Ours − published", lambda match: change(match.difference), "spread"),
        texts("within", "Within ours", lambda match: WITHIN[match.difference.sign]),
        texts("protocol", "Protocol, published", lambda match: match.published.protocol, apart=True),
        texts("preset", "Preset, ours", lambda match: match.result.preset),
    )
    differs = texts(
        "differs",
        "Differs: published, ours",
        lambda one: "; ".join(f"{what}: {theirs}, {ours}" for what, theirs, ours in one.differences),
        apart=True,
    )
    return section_of(
        "against",
        "Beside published numbers",
        Text("Published numbers that were given:", tuple(in_words(inputs))),
        _comparison_table("against", "Published numbers and ours", f"{NOTE} {BEST}" if of_best else NOTE, matches, *between),
        _comparison_table("against-differing", "Published numbers that were measured otherwise", OTHERWISE, differing, differs),
        _unmatched_table(unmatched),
    )


def match_published(inputs: Inputs) -> tuple[list[Beside], list[Beside], list[Beside]]:
    """Each published number with all of ours that were measured as it was; else with those that were measured otherwise.

    In the order of the files; and those without any of ours.
    """
    ours = results(inputs)
    matches, differing, unmatched = list[Beside](), list[Beside](), list[Beside]()
    for file, rows in inputs.against.items():
        for row in rows:
            left, lacks, name, names = _narrow_down(row, ours)
            pairs = [Beside(file=file, published=row, result=one, differences=tuple(differences(row, one))) for one in left]
            if alike := [pair for pair in pairs if not pair.differences]:
                matches += [Beside(pair, difference=_difference(row, pair.result)) for pair in alike]
            elif not pairs:
                near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
                unmatched.append(Beside(file=file, published=row, lacks=lacks, name=name, nearest="".join(near)))
            else:
                differing += pairs
    return matches, differing, unmatched


def _difference(row: PublishedRow, result: TrainedHead) -> Estimate:
    measure = result.measures[row.metric]
    counts = row.metric == result.probe.measure
    ours = estimate_of(result.probe) if counts else Estimate(measure.mean, measure.std, len(measure.values))
    return replace(ours, mean=ours.mean - row.value)


def differences(row: PublishedRow, result: TrainedHead) -> Iterator[tuple[str, str, str]]:
    """In what one of ours was measured in another way than a published number: what, how that was, and ours.

    What the row does not state, or what ours did not record, is not compared.
    """
    recorded = result.probe.recorded
    for name, value, found in _options(row, result):
        if found is not None and value != found:
            yield name, value, found
    yield from _differing_settings(row, result)
    crops, transform, block = recorded.get("augmentation"), recorded.get("transform"), recorded.get("block")
    stated: dict[str, str | None] = {
        "crops": crops and _format_crops(crops["n_crops"]),
        "n_training": str(result.probe.n_training),
        "resolution": transform and str(transform["input_size"][-1]),
        "frame": transform and f"{transform['crop_mode']} {transform['crop_pct']:g}",
        "block": None if block is None else str(block),
    }
    for name, found in stated.items():
        published = getattr(row, name)
        if published and found is not None and published != found:
            yield name, published, found


def _format_crops(n_crops: int | str) -> str:
    """Crops that training showed, in the words of published rows."""
    return f"stored, {n_crops}" if isinstance(n_crops, int) and n_crops else str(n_crops or "none")


def _has_options(row: PublishedRow, result: TrainedHead) -> bool:
    """Whether all options that a row states are known of one of ours, or some are known to differ."""
    found = [(value, ours) for _, value, ours in _options(row, result)]
    return all(ours is not None for _, ours in found) or any(ours not in (None, value) for value, ours in found)


def _options(row: PublishedRow, result: TrainedHead) -> Iterator[tuple[str, str, str | None]]:
    """Options that a row states, of an aggregator or a protocol without gradient steps, and ours; None if that is not known."""
    recorded = result.probe.recorded
    sources = (recorded.get("all_options"), result.probe.options, recorded.get("protocol"), recorded.get("selected"))
    ours = {name: value for source in reversed(sources) if source for name, value in source.items()}
    for name, value in (pair.split("=", 1) for pair in row.options.split()):
        yield name, value, None if ours.get(name) is None else _text(ours[name])


def _differing_settings(row: PublishedRow, result: TrainedHead) -> Iterator[tuple[str, str, str]]:
    """Settings of a recipe in which ours differs from a published protocol of gradient steps."""
    if not row.protocol or row.protocol in STEPLESS:
        return
    if row.protocol not in PRESETS:
        yield "protocol", row.protocol, result.preset or "another"
        return
    settings = settings_of(row.protocol) | ({"epochs": int(row.epochs)} if row.epochs else {})
    for name, value in settings.items():
        if (ours := result.recipe.get(name, value)) != value:
            yield name, _text(value), _text(ours)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def in_words(inputs: Inputs) -> list[str]:
    """A line for each file: how many of its numbers are compared with one of ours."""
    if not inputs.against:
        return []
    matches, differing, _ = match_published(inputs)
    lines = []
    for file, rows in inputs.against.items():
        n, n_otherwise = numbers_of(file, matches), numbers_of(file, differing)
        lines.append(
            f"{file}: of {len(rows):,} published numbers {n:,} are compared with ours; {n_otherwise:,} were measured otherwise "
            f"(tables/against-differing.csv says how), {len(rows) - n - n_otherwise:,} are not here (against-unmatched.csv)"
        )
    return lines


def numbers_of(file: str, entries: Sequence[Beside]) -> int:
    """How many published numbers of a file are among entries; several of ours can be compared with one."""
    return len({id(entry.published) for entry in entries if entry.file == file})


def _narrow_down(row: PublishedRow, ours: Sequence[TrainedHead]) -> tuple[list[TrainedHead], str, str, Iterable[str]]:
    """Ours that a number compares with; or none, and what none has: which part, its name, and the names that there are."""
    protocol = row.protocol if row.protocol in STEPLESS else ""
    encoders = (lambda r: row.encoder in (r.probe.encoder, r.probe.recorded_encoder), lambda r: [r.probe.encoder])
    parts: list[tuple[str, str, Callable[[TrainedHead], bool] | None, Callable[[TrainedHead], Iterable[str]]]] = [
        ("encoder", row.encoder, *encoders),
        ("data set", row.dataset, lambda r: r.dataset == row.dataset, lambda r: filter(None, [r.dataset])),
        ("head", row.head, None, lambda r: [r.probe.head]),  # which depends on the others that are left
        ("protocol", row.protocol or STEPS, lambda r: r.protocol == protocol, lambda r: [r.protocol or STEPS]),
        ("metric", row.metric, lambda r: row.metric in r.measures, lambda r: r.measures),
    ]
    left = list(ours)
    for part, name, fits, names_of in parts:
        before, left = left, _results_of_head(row, left) if fits is None else [r for r in left if fits(r)]
        if not left:
            return [], part, name, {name for result in before for name in names_of(result)}
    return left, "", "", ()


def _results_of_head(row: PublishedRow, ours: Sequence[TrainedHead]) -> list[TrainedHead]:
    """Ours of this name; in a study, or outside of one, where none has it: those with its aggregator.

    Of several with the aggregator, all if the row has options, in which they may differ; else none: any might be meant.
    """
    named: list[TrainedHead] = []
    for study in dict.fromkeys(r.study for r in ours):
        of_study = [r for r in ours if r.study == study]
        by_name = [r for r in of_study if r.probe.head == row.head]
        by_aggregator = [r for r in of_study if r.probe.aggregator == (row.aggregator or row.head) and _has_options(row, r)]
        named += by_name or (by_aggregator if row.options or len(by_aggregator) == 1 else [])
    return named


def _comparison_table(name: str, heading: str, note: str, rows: Sequence[Beside], *between: DeclaredColumn) -> Table:
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
        spreads("ours", "Ours", lambda pair: pair.result.measures[pair.published.metric], 2),
        between,
        _published_columns("source", "note"),
        group=lambda pair: pair.file,
        muted=lambda pair: pair.result.probe.pretraining.is_untrained,
    )


def _published_columns(*names: str) -> list[DeclaredColumn]:
    """Columns of what published rows say."""
    titles = {"dataset": "Data set"}
    return each(names, lambda name: texts(name, titles.get(name, name.capitalize()), lambda row: getattr(row.published, name)))


def _unmatched_table(unmatched: list[Beside]) -> Table:
    return table(
        "against-unmatched",
        "Published numbers without one of ours",
        "Each number with the first of its names that nothing here has, and the nearest name that there is.",
        unmatched,
        _published_columns("encoder", "dataset", "head", "protocol", "metric"),
        numbers("published", "Published", lambda row: row.published.value),
        texts("lacks", "Not here", lambda row: row.lacks, apart=True),
        texts("nearest", "Nearest here", lambda row: row.nearest),
        _published_columns("source", "note"),
        group=lambda row: row.file,
        folded=True,
    )
