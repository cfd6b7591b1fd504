"""`beyondcls doctor`: whether this machine and this folder are fit for the other commands, and what to do if not."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.doctor.finding import Finding
    from pipelines.doctor.machine import Machine

Check = Callable[["Machine"], "Finding | None"]

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "problem": ("✗", "bold red")}


def main(
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="ask nothing of the network")] = False,
) -> None:
    """Check this machine and this folder, and say what to do. Exit status 1 if there is a problem.

    Installed versions and parts, GPU, CPU, memory, disks, DVC, params.yaml, the common store, and where weights come from.
    Nothing is changed; a note is not a problem.
    """
    from pipelines.doctor import CHECKS, NETWORK
    from pipelines.doctor.machine import Machine
    from pipelines.process.console import SafeConsole

    findings, console, machine = [], SafeConsole(highlight=False), Machine(offline=offline)
    for finding in run(CHECKS, machine, NETWORK):
        findings.append(finding)
        if not as_json:
            show(console, finding, max(map(len, CHECKS)))
    counts = {state: sum(f.state == state for f in findings) for state in MARKS}
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console.print(", ".join(f"{n} {state}{'s' if n != 1 and state != 'ok' else ''}" for state, n in counts.items()))
    raise typer.Exit(1 if counts["problem"] else 0)


def run(checks: Mapping[str, Check], machine: "Machine", network: Sequence[str] = ()) -> Iterator["Finding"]:
    """Findings in the order of the checks, each as soon as it is known.

    Args:
        network: names of checks that wait for the network; they start first, all at once.
    """
    slow_checks = [name for name in network if name in checks]
    # Not in parallel with the others: importing torch blocks every thread, and an answer would seem late.
    with ThreadPoolExecutor(max(1, len(slow_checks))) as pool:
        answers = dict(zip(slow_checks, pool.map(lambda name: _run(name, checks[name], machine), slow_checks), strict=True))
    for name, check in checks.items():
        finding = answers[name] if name in answers else _run(name, check, machine)
        if finding is not None:
            yield finding


def _run(name: str, check: Check, machine: "Machine") -> "Finding | None":
    """The finding of a check; a check that fails is a finding too."""
    from pipelines.doctor.finding import Finding
    from store.errors import BeyondClsError

    try:
        return check(machine)
    except BeyondClsError as error:
        return Finding(name, "problem", str(error))
    except ModuleNotFoundError as error:
        return Finding(name, "problem", f"not checked: {error.name} is not installed", f"pip install {error.name}")
    except Exception as error:
        reason = " ".join(str(error).split())
        return Finding(name, "problem", f"the check itself failed: {type(error).__name__}: {reason}", "please report this line")


def show(console: "Console", finding: "Finding", width: int) -> None:
    """A line with a mark, and the remedy indented below."""
    from rich.text import Text

    mark, style = MARKS[finding.state]
    words = "" if finding.state == "ok" else f"{finding.state}: "
    line = Text.assemble((f"{mark} {finding.name.ljust(width)}  ", style), (words, style), finding.found)
    console.print(line, soft_wrap=True)
    for remedy in finding.remedy.splitlines():
        console.print(Text(f"    → {remedy}"), soft_wrap=True)
