"""The ways in which benchmarks.peers has its study done, and what each costs."""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.footprint import Footprint, folder_nbytes, footprint
from benchmarks.study import SPLITS, Study
from probe.result_files import read_result

MORE = 3  # times as many head-runs, for what one adds
COMMAND = "import beyondcls; beyondcls.run()"
ALONE = {"BEYONDCLS_CONFIG": ""}  # no configuration of the user


@dataclass(frozen=True)
class Line:
    """A cost that grows with the number of head-runs."""

    fixed: float
    per_run: float

    def at(self, n_runs: int) -> float:
        return self.fixed + n_runs * self.per_run

    @classmethod
    def through(cls, n_runs: int, cost: float, cost_of_more: float) -> Self:
        """From the costs of n and of `MORE` n head-runs; where noise hides what one adds, that is 0."""
        per_run = max(0.0, (cost_of_more - cost) / ((MORE - 1) * n_runs))
        return cls(cost - n_runs * per_run, per_run)


@dataclass(frozen=True)
class Cost:
    """What a way takes.

    Attributes:
        seconds, cpu_s: by number of head-runs.
        peak_nbytes: of the processes that run at a time.
        disk_nbytes: that it leaves: features, probes.
        top1: percent of the test images, by head, of each seed; only of heads that were trained to the end.
    """

    seconds: Line
    cpu_s: Line
    peak_nbytes: int
    disk_nbytes: int = 0
    top1: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """What is to be done, and where.

    Attributes:
        alone_epochs: trained where each head-run is a process with the encoder or a cache of tokens in front; the others are
            taken to last as long as the last of these.
        together_epochs: likewise where one process trains all head-runs.
    """

    study: Study
    folder: Path
    alone_epochs: int
    together_epochs: int

    def command(self, *arguments: str) -> Footprint:
        """A `beyondcls` command."""
        return footprint([sys.executable, "-c", COMMAND, *arguments], ALONE)

    def plain(self, way: str, study: Study | None = None, epochs: int = 0) -> Footprint:
        """A way of benchmarks.plain_study."""
        described = (study or self.study).to_json()
        return footprint([sys.executable, "-m", "benchmarks.plain_study", way, str(self.folder), described, str(epochs)])


def by_commands(bench: Bench) -> dict[str, Cost]:
    """`beyondcls extract` of both splits, `beyondcls probe`; and that again with more seeds."""
    study, features = bench.study, bench.folder / "features"
    source = ["--encoder", study.encoder, *([] if study.is_trained else ["--random-seed", "0"])]
    runs = [
        bench.command("extract", *source, "--data", f"{study.images}/{split}", "--out", str(features / split))
        for split in SPLITS
    ]
    recipe, heads = study.recipe, [word for head in study.heads for word in ("--head", head)]
    options = ["--epochs", recipe.epochs, "--batch-size", recipe.batch_size, "--base-lr", recipe.base_lr]
    options += ["--warmup-epochs", recipe.warmup_epochs]
    read = ["--features", str(features / "train"), "--test", str(features / "test")]

    def probe(name: str, seeds: Sequence[int]) -> Footprint:
        ends = ["--out", str(bench.folder / name), "--seeds", ",".join(map(str, seeds))]
        return bench.command("probe", *read, *heads, *map(str, options), *ends)

    once = probe("probes", study.seeds)
    nbytes, top1 = folder_nbytes(bench.folder), {}
    for head in study.heads:
        of_head = bench.folder / "probes" / (head if len(study.heads) > 1 else "") / "metrics.json"
        top1[head] = read_result(of_head)["top1"]["values"]
    more = probe("more", more_seeds(study))

    def line(part: Callable[[Footprint], float]) -> Line:
        extraction = sum(map(part, runs))
        return Line.through(study.n_runs, extraction + part(once), extraction + part(more))

    peak = max(run.peak_nbytes for run in (*runs, once))
    return {"commands": Cost(line(lambda run: run.seconds), line(lambda run: run.cpu_s), peak, nbytes, top1)}


def by_python(bench: Bench) -> dict[str, Cost]:
    """The same by functions, in one process, which trains more seeds in the end."""
    study = bench.study
    arguments = [str(bench.folder), study.to_json(), str(len(more_seeds(study)))]
    run = footprint([sys.executable, "-m", "benchmarks.python_study", *arguments])
    once, more = run.printed["probing"]

    def line(total: float, name: str) -> Line:
        return Line.through(study.n_runs, total - more[name], total - once[name])

    kept = sum(folder_nbytes(bench.folder / name) for name in ("features", "probes"))
    lines = line(run.seconds, "seconds"), line(run.cpu_s, "cpu_s")
    return {"python": Cost(*lines, run.peak_nbytes, kept, run.printed["top1"])}


def more_seeds(study: Study) -> range:
    """`MORE` times as many."""
    return range(MORE * len(study.seeds))


def by_loop(bench: Bench) -> dict[str, Cost]:
    """A plain training loop with the encoder in front: a run for each head and seed, or all on the same forward pass."""
    return {"loop": alone(bench, "images"), "loop-together": together(bench, "images")}


def by_h5(bench: Bench) -> dict[str, Cost]:
    """The same over patch tokens in an HDF5 file."""
    cached = bench.plain("h5-cache")
    return {"h5": alone(bench, "h5", cached), "h5-together": together(bench, "h5", cached)}


def by_script(bench: Bench) -> dict[str, Cost]:
    """A run of [cls] as MAE's main_linprobe has it."""
    study = replace(bench.study, heads=("cls",), seeds=bench.study.seeds[:1])
    run = bench.plain("script", study, bench.alone_epochs)
    seconds, cpu_s = whole(run, study.epochs)
    return {"script": Cost(Line(0, seconds), Line(0, cpu_s), run.peak_nbytes, top1=to_the_end(run, study))}


def by_sklearn(bench: Bench) -> dict[str, Cost]:
    """Logistic regression on cached [cls] and average patches; a fit is a head-run."""
    cached, run = bench.plain("npy"), bench.plain("sklearn")

    def line(part: str) -> Line:
        fits = [fit[part] for fit in run.printed["epochs"]]
        return Line(getattr(cached, part) + getattr(run, part) - sum(fits), statistics.mean(fits))

    peak, top1 = max(cached.peak_nbytes, run.peak_nbytes), run.printed["top1"]
    return {"sklearn": Cost(line("seconds"), line("cpu_s"), peak, folder_nbytes(bench.folder), top1)}


def alone(bench: Bench, way: str, cached: Footprint | None = None) -> Cost:
    """Each head-run a process of its own; measured for one seed of each head."""
    study = bench.study
    studies = [replace(study, heads=(head,), seeds=study.seeds[:1]) for head in study.heads]
    runs = [bench.plain(way, one, bench.alone_epochs) for one in studies]
    seconds, cpu_s = zip(*(whole(run, study.epochs) for run in runs), strict=True)
    top1 = {head: values for run in runs for head, values in to_the_end(run, study).items()}
    fixed = (cached.seconds, cached.cpu_s) if cached else (0.0, 0.0)
    lines = Line(fixed[0], statistics.mean(seconds)), Line(fixed[1], statistics.mean(cpu_s))
    return Cost(*lines, *_peak_and_disk(bench, [*runs, *([cached] if cached else [])]), top1)


def together(bench: Bench, way: str, cached: Footprint | None = None) -> Cost:
    """All head-runs in one process; one adds what its steps take."""
    study = bench.study
    run = bench.plain(way, study, bench.together_epochs)
    seconds, cpu_s = whole(run, study.epochs)
    if cached:
        seconds, cpu_s = seconds + cached.seconds, cpu_s + cached.cpu_s

    def line(total: float, part: str) -> Line:
        of_heads = study.epochs * typical(run.printed["epochs"], part)
        return Line(total - of_heads, of_heads / study.n_runs)

    lines = line(seconds, "heads_s"), line(cpu_s, "heads_cpu_s")
    return Cost(*lines, *_peak_and_disk(bench, [run, *([cached] if cached else [])]), to_the_end(run, study))


def _peak_and_disk(bench: Bench, runs: Sequence[Footprint]) -> tuple[int, int]:
    return max(run.peak_nbytes for run in runs), folder_nbytes(bench.folder)


def whole(run: Footprint, n_epochs: int) -> tuple[float, float]:
    """Seconds and CPU seconds of a process with all epochs: what it took, and a typical epoch for each that is missing."""
    ended = run.printed["epochs"]
    missing = n_epochs - len(ended)
    return run.seconds + missing * typical(ended, "seconds"), run.cpu_s + missing * typical(ended, "cpu_s")


def typical(epochs: Sequence[dict[str, Any]], part: str) -> float:
    """Median over epochs, without the first, in which workers start, if there are others."""
    return statistics.median(epoch[part] for epoch in epochs[1:] or epochs)


def to_the_end(run: Footprint, study: Study) -> dict[str, list[float]]:
    """What was measured of heads that were trained for all epochs."""
    return run.printed["top1"] if len(run.printed["epochs"]) == study.epochs else {}


WAYS: tuple[Callable[[Bench], dict[str, Cost]], ...] = (by_commands, by_python, by_loop, by_script, by_sklearn, by_h5)
