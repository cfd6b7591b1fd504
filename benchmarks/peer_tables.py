"""What benchmarks.peers measured, as Markdown."""

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

from benchmarks.peer_ways import MORE, Cost, Line
from benchmarks.study import Study
from pipelines.report.measured import Measure
from pipelines.report.tables import plus_minus, title
from probe.result_files import over_seeds
from quickstart.readme import paragraph, with_block
from store import BeyondClsError

OURS, LOOP = "commands", "loop"
TITLES = {
    "commands": "`beyondcls extract`, `beyondcls probe`",
    "python": "the same from Python, one script",
    "loop": "PyTorch loop, encoder in front, a run each",
    "loop-together": "the same, all on one forward pass",
    "script": "as MAE’s script, a run each ([cls] alone)",
    "sklearn": "scikit-learn on .npy ([cls], average)",
    "h5": "PyTorch loop on an HDF5 cache, a run each",
    "h5-together": "the same, all in one pass",
}
SAME_RECIPE = ("python", "loop", "loop-together", "h5", "h5-together")
CACHED = ("commands", "python", "sklearn", "h5", "h5-together")
TIMES = (1, MORE, 30)
Round = Mapping[str, Cost]


def tables(study: Study, counts: tuple[int, int], rounds: Sequence[Round], quick: bool = False) -> str:
    """What was done and where, costs, accuracies."""
    parts = [paragraph(*_about(study, counts, len(rounds), quick)), costs(study, rounds)]
    if any(cost.top1 for cost in rounds[0].values()) and study.is_trained:
        parts += [accuracies(study, rounds[0]), paragraph(*agreement(study, rounds[0]))]
    return "\n\n".join(parts)


def page_with(page: Path, encoder: str, text: str) -> str:
    """The page with these tables between the markers of the encoder.

    Raises:
        BeyondClsError: there is no such page, or it has no such markers.
    """
    if not page.is_file():
        raise BeyondClsError(f"there is no page {str(page)!r} for the tables; give one with markers, e.g. docs/peers.md")
    return with_block(str(page), page.read_text(encoding="utf-8"), f"peers, {encoder}", text)


def _about(study: Study, counts: tuple[int, int], n_rounds: int, quick: bool) -> list[str]:
    heads, capability = ", ".join(map(title, study.heads)), torch.backends.cpu.get_cpu_capability()
    said = [
        f"{date.today().isoformat()}, {torch.get_num_threads()} threads on {os.cpu_count()} cores ({capability}), torch",
        f"{torch.__version__}: {study.encoder}, {counts[0]:,} training and {counts[1]:,} test images,",
        f"{study.n_runs} head-runs ({heads}; {len(study.seeds)} seeds each), epochs: {study.epochs},",
        f"rounds: {n_rounds}{' (medians are shown)' if n_rounds > 1 else ''}.",
    ]
    return ["Small sizes: this shows that it runs, and says nothing about speed.", *said] if quick else said


def costs(study: Study, rounds: Sequence[Round]) -> str:
    """A row for each way. Where two ways are compared, their costs are the medians that the table shows."""
    n = study.n_runs
    columns = ["", "once", "each head-run", *(f"{times * n} head-runs" for times in TIMES), f"CPU, {n}", "memory", "disk"]
    columns += ["cache ahead of a loop from", "this program ahead from"]
    rows = [columns, ["---"] * len(columns)]
    lines = {name: median_line([costs[name].seconds for costs in rounds]) for name in rounds[0]}
    for name, text in TITLES.items():
        every = [costs[name] for costs in rounds]
        median: Callable[[Callable[[Cost], float]], float] = lambda part, every=every: statistics.median(map(part, every))  # type: ignore[misc]  # noqa: E731
        cells = [text, duration(lines[name].fixed), duration(lines[name].per_run)]
        cells += [duration(lines[name].at(times * n)) for times in TIMES]
        cells += [duration(median_line([cost.cpu_s for cost in every]).at(n))]
        cells += [size(median(lambda cost: cost.peak_nbytes)), size(median(lambda cost: cost.disk_nbytes))]
        cells += [shown(ahead_from(lines[name], lines[LOOP])) if name in CACHED else ""]
        cells += [shown(ahead_from(lines[OURS], lines[name])) if name != OURS else ""]
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def median_line(lines: Sequence[Line]) -> Line:
    return Line(*(statistics.median(getattr(line, part) for line in lines) for part in ("fixed", "per_run")))


def ahead_from(one: Line, other: Line) -> int | None:
    """The number of head-runs from which `one` costs less than `other`, and stays ahead; None if there is none."""
    if one.per_run > other.per_run or (one.per_run == other.per_run and one.fixed >= other.fixed):
        return None
    if one.fixed < other.fixed:
        return 1
    return math.floor((one.fixed - other.fixed) / (other.per_run - one.per_run)) + 1


def shown(n: int | None) -> str:
    return "–" if n is None else f"{n:,}"


def duration(seconds: float) -> str:
    """`0.21 s`, `34 s`, `12 min`, `5.2 h`: two digits or more."""
    for value, unit in ((seconds, "s"), (seconds / 60, "min")):
        if abs(value) < 100:
            return f"{value:.{2 if abs(value) < 1 else 1 if abs(value) < 10 else 0}f} {unit}"
    return f"{seconds / 3600:.1f} h"


def size(nbytes: float) -> str:
    """`0`, `12 MB`, `1.4 GB`."""
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.1f} GB"
    return f"{nbytes / 1e6:.1f} MB" if nbytes else "0"


def accuracies(study: Study, first: Round) -> str:
    """Top-1 in percent, mean ± standard deviation over seeds, of the ways that were trained to the end."""
    names = [name for name in TITLES if first[name].top1]
    rows = [["top-1, %", *(TITLES[name] for name in names)], ["---"] * (1 + len(names))]
    for head in study.heads:
        rows.append([title(head), *(plus_minus(measured(first[name], head)) for name in names)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def measured(cost: Cost, head: str) -> Measure | None:
    """Over seeds; None for a head that was not trained to the end in this way."""
    values = cost.top1.get(head)
    if values is None:
        return None
    over = over_seeds(values)
    return Measure(over["mean"], over["std"], tuple(over["values"]))


def agreement(study: Study, first: Round) -> list[str]:
    """How far apart the accuracies of the same recipe are, beside their spread over seeds."""
    ours = {head: measured(first[OURS], head) for head in study.heads}
    apart = [
        (abs(theirs.mean - one.mean), f"{title(head)}, {name}")
        for head, one in ours.items()
        for name in SAME_RECIPE
        if one is not None and (theirs := measured(first[name], head)) is not None and len(theirs.values) == len(one.values)
    ]
    largest, where = max(apart)
    spread = max(one.std for one in ours.values() if one is not None)
    return [
        f"Where the recipe is the same, means differ from those of this program by {largest:.2f} points at most ({where});",
        f"its seeds spread by up to {spread:.2f}.",
    ]
