"""How many small breaks of the program the tests notice: a random sample of operators, constants, branches and calls.

    python -m benchmarks.mutants [--quick] [--places 100] [--seed 0] [--out mutants] [--again OTHER/mutants.json]

Copies the tree, runs the suite once with coverage by test, breaks one place after another (as many in each package) and runs
the tests that reach it: those of the same name as the file first, then from the quickest on, at most `--budget` seconds of
them. A place that runs at import, or in another process only, goes by all tests that reach its file, or by those of its
package. `OUT/mutants.json` says what became of each. `--again` takes the places of another run, found again in this tree by
their source, and says which of those that were caught there survive here. The last line is JSON: the share that was caught.
Needs pytest-cov.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue

from benchmarks.places import Place, Span, broken, places_in
from benchmarks.timing import ROOT

PACKAGES = ("extract", "probe", "store", "pipelines")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Suite:
    """What one run of all tests recorded.

    Attributes:
        seconds: of each test, by its node id, with setup and teardown.
        reached: tests by file of the program and line.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def near(self, file: str, line: int) -> list[str]:
        """Tests that reach a line, or else its file, or else those in the folder of its package; the likeliest first."""
        by_line = self.reached.get(file, {})
        tests = by_line.get(line) or {test for tests in by_line.values() for test in tests}
        if not tests:
            folder = f"tests/{Path(file).parts[0]}/"
            tests = {test for test in self.seconds if test.startswith((folder, "tests/machines/"))}
        stem = Path(file).stem.strip("_")
        return sorted(tests, key=lambda test: (stem not in test.split("::")[0], self.seconds.get(test, 0.0), test))

    def within(self, tests: Iterable[str], budget: float) -> list[str]:
        """The first tests that together take at most `budget` seconds; at least one."""
        chosen: list[str] = []
        spent = 0.0
        for test in tests:
            spent += self.seconds.get(test, 0.0)
            if chosen and spent > budget:
                break
            chosen.append(test)
        return chosen


@dataclass(frozen=True)
class Outcome:
    """What became of one break: "caught", "survived", or "gone" where this tree has no such place."""

    place: Place
    line: int
    outcome: str
    by: str = ""
    n_tests: int = 0
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 places of the attention statistics, under a minute")
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("mutants"))
    parser.add_argument("--again", type=Path, help="mutants.json of another run, whose places are broken again")
    parser.add_argument("--budget", type=float, default=90, help="seconds of tests for each place")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    below = ("extract/attention",) if given.quick else PACKAGES
    tests = ("tests/extract/attention",) if given.quick else ("tests",)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="beyondcls-mutants-") as folder:
        trees = [_copied(Path(folder) / str(worker)) for worker in range(given.workers)]
        suite = _measured(trees[0], given.out, tests, below, given.workers)
        places = _again(given.again, trees[0]) if given.again else _drawn(trees[0], below, given)
        outcomes = _all_broken(places, trees, suite, given.budget)
    (given.out / "mutants.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    counts = Counter(outcome.outcome for outcome in outcomes)
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    if given.again:
        _compared(given.again, outcomes)
    print(json.dumps({"caught_of_breaks": round(counts["caught"] / max(1, counts["caught"] + counts["survived"]), 3)}))


def _copied(tree: Path) -> Path:
    """A clone with the files that git tracks as they are now."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    changed = subprocess.run(
        ["git", "diff", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    for name in changed.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        else:
            (tree / name).unlink()
    return tree


def _environment(tree: Path) -> dict[str, str]:
    paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _measured(tree: Path, out: Path, tests: Sequence[str], below: Sequence[str], workers: int) -> Suite:
    """One run of the suite; read from OUT if an earlier run left it there. Tests that fail unbroken are left out."""
    covered, times = out.resolve() / "coverage.json", out.resolve() / "junit.xml"
    if not covered.is_file():
        command = [*PYTEST, "-n", str(workers), "--dist", "loadfile", f"--junitxml={times}", "-o", "junit_family=xunit1"]
        command += [*(f"--cov={name}" for name in below), "--cov-context=test", "--cov-report=", *tests]
        done = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True)
        print(done.stdout[-4000:], done.stderr[-2000:], flush=True)
        command = [sys.executable, "-m", "coverage", "json", "--show-contexts", "-q", "-o", str(covered)]
        subprocess.run(command, cwd=tree, env=_environment(tree), check=True)
    return _read(covered, times)


def _read(covered: Path, times: Path) -> Suite:
    suite = Suite()
    tests_of_file: dict[str, set[str]] = defaultdict(set)
    for case in ElementTree.parse(times).iter("testcase"):
        *folders, last = case.attrib["classname"].split(".")
        file = Path(case.attrib["file"])
        classes = [part for part in [*folders, last][len(file.parts) :] if part]
        test = "::".join([file.as_posix(), *classes, case.attrib["name"]])
        if case.find("failure") is not None or case.find("error") is not None or case.find("skipped") is not None:
            continue
        suite.seconds[test] = float(case.attrib["time"])
        tests_of_file[file.as_posix()].add(test)
    for name, content in json.loads(covered.read_text())["files"].items():
        lines = suite.reached.setdefault(name, {})
        for line, contexts in content["contexts"].items():
            for context in filter(None, contexts):
                test, _, phase = context.rpartition("|")
                # Code of a shared fixture is attributed to the test that ran first, on behalf of all tests of the file.
                reaching = {test} if phase == "run" else tests_of_file[test.split("::")[0]]
                lines.setdefault(int(line), set()).update(reaching & suite.seconds.keys())
    return suite


def _drawn(tree: Path, below: Sequence[str], given: argparse.Namespace) -> list[tuple[Place, Span | None]]:
    """The same number of places from each package."""
    drawn: list[tuple[Place, Span | None]] = []
    n = (4 if given.quick else given.places) // len(below)
    for package in below:
        files = sorted((tree / package).rglob("*.py"))
        places = [item for file in files for item in places_in(tree, file).items()]
        drawn += random.Random(f"{given.seed} {package}").sample(places, n)
    return drawn


def _again(outcomes: Path, tree: Path) -> list[tuple[Place, Span | None]]:
    """The places of another run in this tree, also where a function has moved to another file."""
    spans = {
        p: s for name in PACKAGES for file in sorted((tree / name).rglob("*.py")) for p, s in places_in(tree, file).items()
    }
    moved = {(p.scope, p.kind, p.before, p.after, p.ordinal): p for p in spans}
    places: list[tuple[Place, Span | None]] = []
    for outcome in json.loads(outcomes.read_text()):
        place = Place(**outcome["place"])
        if place not in spans:
            place = moved.get((place.scope, place.kind, place.before, place.after, place.ordinal), place)
        places.append((place, spans.get(place)))
    return places


def _all_broken(
    places: Sequence[tuple[Place, Span | None]], trees: Sequence[Path], suite: Suite, budget: float
) -> list[Outcome]:
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(item: tuple[Place, Span | None]) -> Outcome:
        place, span = item
        if span is None:
            return Outcome(place, 0, "gone")
        tree = free.get()
        try:
            outcome = _one_broken(tree, place, span, suite, budget)
        finally:
            free.put(tree)
        shown = f"{place.before!r} -> {place.after!r}" if len(place.before) < 60 else place.kind
        print(f"{outcome.outcome:8} {place.file}:{span.line} {shown}  {outcome.by} ({outcome.seconds:.0f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, places))


def _one_broken(tree: Path, place: Place, span: Span, suite: Suite, budget: float) -> Outcome:
    file = tree / place.file
    whole = file.read_bytes()
    tests = suite.within(suite.near(place.file, span.line), budget)
    chosen = tree / "chosen-tests"
    chosen.write_text("\n".join(tests))
    began = time.monotonic()
    try:
        file.write_bytes(broken(whole, place, span))
        limit = 120 + 10 * sum(suite.seconds.get(test, 0.0) for test in tests)  # endless loops are caught
        done = subprocess.run(
            [*PYTEST, "-x", f"@{chosen}"], cwd=tree, env=_environment(tree), capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return Outcome(place, span.line, "caught", "time", len(tests), time.monotonic() - began)
    finally:
        file.write_bytes(whole)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = failed[0].split(" - ")[0].split(maxsplit=1)[-1] if failed else f"exit {done.returncode}" if done.returncode else ""
    outcome = "caught" if done.returncode else "survived"
    return Outcome(place, span.line, outcome, by, len(tests), time.monotonic() - began)


def _compared(before: Path, outcomes: Sequence[Outcome]) -> None:
    """Say which breaks another run caught and this one does not, and the other way round."""
    for was, now in zip(json.loads(before.read_text()), outcomes, strict=True):
        if was["outcome"] != now.outcome:
            at = f"{now.place.file}:{now.line}"
            print(f"{was['outcome']} there, {now.outcome} here: {at} {now.place.before!r} -> {now.place.after!r} {was['by']}")


if __name__ == "__main__":
    main()
