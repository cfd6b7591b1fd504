"""The accuracy table: for the page, for the terminal, as CSV and as Markdown."""

import csv
import io
import math
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from pipelines.report.collect import Inputs, Measure, Probe, is_random

TITLES = {"cls": "[cls]", "average": "average", "abmilp": "AbMILP"}
NUMBERS = ("top1", "top1_std", "top5", "top5_std", "entropy", "ln_T")
COLUMNS = ("encoder", "head", *NUMBERS, "n_seeds", "selected", "command")


@dataclass(frozen=True)
class Cell:
    """One head of one encoder; `best` marks the highest mean of its row, ties (as displayed) included."""

    text: str
    top5: str
    best: bool


@dataclass(frozen=True)
class Row:
    """One encoder. `cells` has a None where a head was not probed; `gain` is AbMILP − [cls] in points."""

    encoder: str
    random: bool
    cells: tuple[Cell | None, ...]
    gain: str
    entropy: str
    ceiling: str


def title(head: str) -> str:
    """A head's name as the paper writes it."""
    return TITLES.get(head, head)


def plus_minus(measure: Measure | None, digits: int = 1) -> str:
    """`43.1 ± 2.5`; without the spread if there was one seed, a dash if there is nothing."""
    if measure is None:
        return "–"
    if len(measure.values) < 2:
        return f"{measure.mean:.{digits}f}"
    return f"{measure.mean:.{digits}f} ± {measure.std:.{digits}f}"


def signed(value: float) -> str:
    """`+2.1`, `−0.4`, `0.0`."""
    rounded = f"{value:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def points(difference: Measure | None) -> str:
    """A difference in points with its sign: `+2.1 ± 2.5`, `−0.4 ± 0.3`."""
    if difference is None:
        return "–"
    text = signed(difference.mean)
    return text if len(difference.values) < 2 else f"{text} ± {difference.std:.1f}"


def difference(one: Probe | None, other: Probe | None) -> Measure | None:
    """Top-1 of `one` − `other`, points; the spread is the root of the summed variances over seeds.

    `values` has as many entries as both have seeds, and one if either has one: then there is no spread.
    """
    if one is None or other is None:
        return None
    a, b = one.measures["top1"], other.measures["top1"]
    n = min(len(a.values), len(b.values))
    return Measure(a.mean - b.mean, math.hypot(a.std, b.std) if n > 1 else 0.0, (math.nan,) * n)


def gain(inputs: Inputs, encoder: str) -> Measure | None:
    """AbMILP − [cls] of one encoder, points; None where either was not probed."""
    return difference(inputs.probes.get((encoder, "abmilp")), inputs.probes.get((encoder, "cls")))


def ceiling(probe: Probe | None) -> float | None:
    """ln T, nats: the entropy of uniform weights over T patches."""
    return math.log(probe.n_tokens) if probe is not None and probe.n_tokens else None


def accuracy_rows(inputs: Inputs) -> list[Row]:
    """A row for each encoder that was probed; cells in the order of `inputs.heads`."""
    return [_row(inputs, encoder) for encoder in inputs.encoders if inputs.of(encoder)]


def _row(inputs: Inputs, encoder: str) -> Row:
    best = max(round(probe.measures["top1"].mean, 1) for probe in inputs.of(encoder))
    cells: list[Cell | None] = []
    for head in inputs.heads:
        probe = inputs.probes.get((encoder, head))
        if probe is None:
            cells.append(None)
            continue
        top1, top5 = probe.measures["top1"], probe.measures.get("top5")
        cells.append(Cell(plus_minus(top1), plus_minus(top5), round(top1.mean, 1) == best))
    abmilp = inputs.probes.get((encoder, "abmilp"))
    limit = ceiling(abmilp)
    entropy = plus_minus(abmilp.measures.get("entropy") if abmilp else None, 2)
    text = "–" if limit is None else f"{limit:.2f}"
    return Row(encoder, is_random(encoder), tuple(cells), points(gain(inputs, encoder)), entropy, text)


def records(inputs: Inputs) -> list[dict[str, str]]:
    """One record per encoder and head, in full precision; empty where a head has no such measure."""
    return [_record(probe) for encoder in inputs.encoders for probe in inputs.of(encoder)]


def _record(probe: Probe) -> dict[str, str]:
    top1, top5, entropy = (probe.measures.get(name) for name in ("top1", "top5", "entropy"))
    limit = ceiling(probe) if entropy else None
    numbers = [
        *((m.mean, m.std) if m else (None, None) for m in (top1, top5)),
        (entropy.mean if entropy else None, limit),
    ]
    texts = ["" if number is None else repr(number) for pair in numbers for number in pair]
    values = [probe.encoder, probe.head, *texts, str(len(probe.seeds)), probe.selected, probe.command]
    return dict(zip(COLUMNS, values, strict=True))


def to_csv(inputs: Inputs) -> str:
    """table.csv: accuracies in percent, entropies in nats."""
    target = io.StringIO()
    writer = csv.DictWriter(target, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(inputs))
    return target.getvalue()


def to_markdown(inputs: Inputs) -> str:
    """table.md: the same, rounded to two digits."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(NUMBERS) + 1) + "---|---|"]
    for record in records(inputs):
        shown = [_plain(record["encoder"]), _plain(record["head"])]
        shown += [f"{float(record[name]):.2f}" if record[name] else "" for name in NUMBERS]
        shown += [record["n_seeds"], _plain(record["selected"]), f"`{_plain(record['command'])}`" if record["command"] else ""]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """A name that a Markdown table shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def to_terminal(inputs: Inputs) -> Table:
    """The accuracy table for rich. Names are plain text: `[cls]` is no markup."""
    table = Table(title="Top-1 accuracy, %, mean ± std over seeds", title_justify="left", title_style="bold")
    table.add_column("encoder", overflow="fold", min_width=12)
    for name in [*map(title, inputs.heads), "AbMILP − [cls]"]:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in accuracy_rows(inputs):
        cells = [Text(cell.text, "bold" if cell.best else "") if cell else Text("–") for cell in row.cells]
        name = f"{row.encoder} (random twin)" if row.random else row.encoder
        table.add_row(Text(name), *cells, Text(row.gain))
    return table
