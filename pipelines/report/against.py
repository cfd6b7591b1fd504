"""Published numbers beside ours: which of ours has the encoder, data set, head, protocol and measure of each."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.estimate import Estimate, estimate_of
from pipelines.report.measured import Measure
from pipelines.report.published.row import PublishedRow
from pipelines.report.results import TrainedHead, results
from probe.recipe import PRESETS, settings_of

STEPLESS = ("knn", "logistic", "ridge")  # names in CLOSED; a published number of one is compared with heads of it alone


@dataclass(frozen=True)
class Beside:
    """A published number, in a file of this name, and what is here beside it: ours, or what is lacking.

    Attributes:
        result: of the same encoder, data set, head and metric; None if there is none.
        difference: ours − published, in the unit of the measure, of one that was measured alike.
        differences: in what one was measured in another way: what it is, how it was published, and ours.
        lacks: what none of ours has: "encoder", or, of that encoder, "data set", and so on.
        name: of what is lacking.
        nearest: the nearest name of ours; empty if there is none at all.
    """

    file: str
    published: PublishedRow
    result: TrainedHead | None = None
    difference: Estimate | None = None
    differences: tuple[tuple[str, str, str], ...] = ()
    lacks: str = ""
    name: str = ""
    nearest: str = ""

    @property
    def ours(self) -> Measure:
        """Mean and spread over seeds."""
        assert self.result is not None
        return self.result.measures[self.published.metric]

    @property
    def is_within(self) -> bool | None:
        """Whether the published number is within our interval; None if that is unknown."""
        sign = self.difference and self.difference.sign
        return None if sign is None else sign == 0


def compared(inputs: Inputs) -> tuple[list[Beside], list[Beside], list[Beside]]:
    """Each published number with all of ours that were measured as it was; else with those that were measured otherwise.

    In the order of the files; and those without any of ours.

    Raises:
        BeyondClsError: a record of correct test images does not fit its metrics.
    """
    ours = results(inputs)
    matches, differing, unmatched = list[Beside](), list[Beside](), list[Beside]()
    for file, rows in inputs.against.items():
        for row in rows:
            left, lacks, name, names = _narrowed(row, ours)
            pairs = [(result, tuple(differences(row, result))) for result in left]
            if alike := [result for result, differs in pairs if not differs]:
                matches += [_match(file, row, result) for result in alike]
            elif pairs:
                differing += [Beside(file, row, result, differences=differs) for result, differs in pairs]
            else:
                near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
                unmatched.append(Beside(file, row, lacks=lacks, name=name, nearest=near[0] if near else ""))
    return matches, differing, unmatched


def differences(row: PublishedRow, result: TrainedHead) -> Iterator[tuple[str, str, str]]:
    """In what one of ours was measured in another way than a published number: what, how that was, and ours.

    What the row does not state, or what ours did not record, is not compared.
    """
    recorded = result.probe.recorded
    for name, value, found in _options(row, result):
        if found is not None and value != found:
            yield name, value, found
    yield from _training(row, result)
    crops, transform, block = recorded.get("augmentation"), recorded.get("transform"), recorded.get("block")
    stated: dict[str, str | None] = {
        "crops": crops and _crops(crops["n_crops"]),
        "n_training": str(result.probe.n_training),
        "resolution": transform and str(transform["input_size"][-1]),
        "frame": transform and f"{transform['crop_mode']} {transform['crop_pct']:g}",
        "block": None if block is None else str(block),
    }
    for name, found in stated.items():
        published = getattr(row, name)
        if published and found is not None and published != found:
            yield name, published, found


def _crops(n_crops: int | str) -> str:
    """Crops that training showed, in the words of published rows."""
    return f"stored, {n_crops}" if isinstance(n_crops, int) and n_crops else str(n_crops or "none")


def _is_told_apart(row: PublishedRow, result: TrainedHead) -> bool:
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


def _training(row: PublishedRow, result: TrainedHead) -> Iterator[tuple[str, str, str]]:
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
    """A line for each file: how many of its numbers have one of ours beside them."""
    if not inputs.against:
        return []
    matches, differing, _ = compared(inputs)
    lines = []
    for file, rows in inputs.against.items():
        n, n_otherwise = numbers_of(file, matches), numbers_of(file, differing)
        lines.append(
            f"{file}: of {len(rows):,} published numbers {n:,} are compared with ours; {n_otherwise:,} were measured otherwise "
            f"(tables/against-differing.csv says how), {len(rows) - n - n_otherwise:,} are not here (against-unmatched.csv)"
        )
    return lines


def numbers_of(file: str, entries: Sequence[Beside]) -> int:
    """How many published numbers of a file are among entries; several of ours can be beside one."""
    return len({id(entry.published) for entry in entries if entry.file == file})


def _narrowed(row: PublishedRow, ours: Sequence[TrainedHead]) -> tuple[list[TrainedHead], str, str, Iterable[str]]:
    """Ours that a number compares with; or none, and what none has: which part, its name, and the names that there are."""
    left = [r for r in ours if row.encoder in (r.probe.encoder, r.probe.recorded_encoder)]
    if not left:
        return [], "encoder", row.encoder, {r.probe.encoder for r in ours}
    before, left = left, [r for r in left if r.dataset == row.dataset]
    if not left:
        return [], "data set", row.dataset, {r.dataset for r in before if r.dataset}
    before, left = left, _with_head(row, left)
    if not left:
        return [], "head", row.head, {r.probe.head for r in before}
    protocol = row.protocol if row.protocol in STEPLESS else ""
    before, left = left, [r for r in left if r.protocol == protocol]
    if not left:
        return [], "protocol", row.protocol or "of gradient steps", {r.protocol or "of gradient steps" for r in before}
    before, left = left, [r for r in left if row.metric in r.measures]
    return left, "metric", row.metric, {name for r in before for name in r.measures}


def _with_head(row: PublishedRow, ours: Sequence[TrainedHead]) -> list[TrainedHead]:
    """Ours of this name; in a study, or outside of one, where none has it: those with its aggregator.

    Of several with the aggregator, all if the row has options, in which they may differ; else none: any might be meant.
    """
    named: list[TrainedHead] = []
    for study in dict.fromkeys(r.study for r in ours):
        of_study = [r for r in ours if r.study == study]
        by_name = [r for r in of_study if r.probe.head == row.head]
        by_aggregator = [r for r in of_study if r.probe.aggregator == (row.aggregator or row.head) and _is_told_apart(row, r)]
        named += by_name or (by_aggregator if row.options or len(by_aggregator) == 1 else [])
    return named


def _match(file: str, row: PublishedRow, result: TrainedHead) -> Beside:
    measure = result.measures[row.metric]
    counts = row.metric == result.probe.measure
    ours = estimate_of(result.probe) if counts else Estimate(measure.mean, measure.std, len(measure.values))
    return Beside(file, row, result, replace(ours, mean=ours.mean - row.value))
