"""`beyondcls doctor`: whether this machine and this folder are fit for the other commands, and what to do if not."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from store.errors import BeyondClsError

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.doctor.machine import Finding, Machine

Check = Callable[["Machine"], "Iterable[Finding]"]

SECONDS = 60.0  # DVC takes three, or many where Python's files come over a slow network
MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "problem": ("✗", "bold red")}


def main(
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="ask nothing of the network")] = False,
) -> None:
    """Check this machine and this folder, and say what to do. Exit status 1 if there is a problem.

    Installed versions and parts, GPU, memory, disks, DVC, params.yaml, the common store, and where weights come from.
    Nothing is changed; a note is not a problem.
    """
    from pipelines.doctor import CHECKS
    from pipelines.doctor.machine import Machine
    from pipelines.process.terminal import SafeConsole

    findings, console = [], SafeConsole(highlight=False)
    for finding in run(CHECKS, Machine(offline=offline)):
        findings.append(finding)
        if not as_json:
            show(console, finding, max(map(len, CHECKS)))
    counts = {state: sum(f.state == state for f in findings) for state in MARKS}
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console.print(", ".join(f"{n} {state}{'s' if n != 1 and state != 'ok' else ''}" for state, n in counts.items()))
    raise typer.Exit(1 if counts["problem"] else 0)


def run(checks: Mapping[str, Check], machine: "Machine", seconds: float = SECONDS) -> Iterator["Finding"]:
    """Findings of each check as soon as it is done; after `seconds` it is abandoned: even a look at a folder can hang."""
    from pipelines.doctor.machine import Finding

    known = set[str]()  # what stops several checks is a finding of the first
    for name, check in checks.items():
        answer = Future[list[Finding]]()
        Thread(target=lambda n=name, c=check, a=answer: a.set_result(_findings(n, c, machine)), daemon=True).start()
        try:
            findings = answer.result(timeout=seconds)
        except TimeoutError:
            findings = [Finding(name, "problem", f"no answer within {seconds:g} s", "see whether its disk or server is there")]
        yield from (finding for finding in findings if finding.found not in known)
        known |= {finding.found for finding in findings if finding.state == "problem"}


def _findings(name: str, check: Check, machine: "Machine") -> list["Finding"]:
    """Those of a check; a check that fails is a finding too."""
    from pipelines.doctor.machine import Finding

    findings: list[Finding] = []
    try:
        findings += check(machine)
    except BeyondClsError as error:
        findings.append(Finding(name, "problem", str(error)))
    except ModuleNotFoundError as error:
        findings.append(Finding(name, "problem", f"not checked: {error.name} is not installed", f"pip install {error.name}"))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        findings.append(Finding(name, "problem", f"the check itself failed: {reason}", "please report this line"))
    return findings


def show(console: "Console", finding: "Finding", width: int) -> None:
    """A line with a mark, and the remedy indented below."""
    from rich.text import Text

    (mark, style), words = MARKS[finding.state], "" if finding.state == "ok" else f"{finding.state}: "
    line = Text.assemble((f"{mark} {finding.name.ljust(width)}  ", style), (words, style), finding.found)
    for text in (line, *(Text(f"    → {remedy}") for remedy in finding.remedy.splitlines())):
        console.print(text, soft_wrap=True)
