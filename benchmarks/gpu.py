"""What a GPU is worth to this program, in one command, under ten minutes, without a network.

    python -m benchmarks.gpu [--quick] [--out build/gpu] [--device auto] [--seconds 570] [PART …]        # or: make gpu

Nothing is installed. It needs torch, timm, numpy, zarr, jaxtyping, psutil and xxhash, and for `tests` pytest; a part that lacks
a package names it. Each part runs in processes of its own, which end with its share of the time, and all with --seconds;
gpu.json and gpu.md in --out have what was found after each part, also of one that was stopped or killed.
`extraction` times a ViT-B/16, ViT-L/16 and ViT-H/14 in bf16: bare, without statistics, with all (replayed, and started one by
one) and with all by PyTorch's operations, of images on the device; and the whole way, into memory and onto the disk, with the
shares of its stages. `profile` shows which operations three batches consist of; `loader` times the way of tokens to the device
beside a copy from pinned memory; `grid` 32 heads in one run and one by one, and training steps beside the limit that memory and
products set; `tests` runs all tests that need a GPU, and says which were skipped and why.
Without a GPU it runs small on the CPU: evidence that it works, and of nothing else.
Ratios: `statistics_vs_bare` seconds of the bare forward pass of a ViT-B/16 / of that with tokens, statistics and maps as they
are stored; `e2e_vs_bare` likewise of extraction onto the disk, `memory_vs_bare` into memory; `kernel_vs_operations` seconds by
PyTorch's operations / by the kernel; `loader_vs_copy` the rate at which tokens are streamed from the page cache / that of the
copy, `resident_vs_copy` likewise from memory; `grid32_vs_solo` as in benchmarks.probe.
The exit status is 1 if a part failed. The last line is JSON.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, conclude

SECONDS = {"extraction": 300, "profile": 40, "loader": 60, "grid": 100, "tests": 240}  # after which a part is stopped
LIMIT_S = 570  # of all together
GOALS = {  # of one H100
    "statistics_vs_bare": 0.95,
    "e2e_vs_bare": 0.85,
    "memory_vs_bare": 0.85,
    "kernel_vs_operations": 1.0,
    "loader_vs_copy": 0.9,
    "resident_vs_copy": 0.9,
    "grid32_vs_solo": 10.0,
}
PACKAGES = ("torch", "timm", "numpy", "zarr", "triton", "pytest")


@dataclass
class Part:
    """What a part found.

    Attributes:
        ratios: by name, of GOALS.
        lines: Markdown, for people.
        failure: empty if all went well.
        seconds: of its process.
    """

    ratios: dict[str, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


class Findings:
    """What a running part finds, in a file at once, as it may be stopped at any time."""

    def __init__(self, file: Path | None = None):
        self.part, self._file = Part(), file

    def say(self, *lines: str) -> None:
        """Add lines of Markdown."""
        self.part.lines += lines
        self._write()

    def measured(self, name: str, ratio: float) -> None:
        self.part.ratios[name] = ratio
        self._write()

    def failed(self, why: str) -> None:
        self.part.failure = why
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            put(self._file, json.dumps(asdict(self.part)))


def put(file: Path, text: str) -> None:
    """Write a file at once, as this process may be stopped at any time."""
    beside = file.with_name(f"{file.name}.partial")
    beside.write_text(text)
    beside.replace(file)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(SECONDS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, as on a CPU: under a minute, and no evidence")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of gpu.json and gpu.md")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, cpu, or auto")
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="after which all ends")
    parser.add_argument("--findings", type=Path, help=argparse.SUPPRESS)  # of a part, in a process of its own
    given = parser.parse_args(argv)
    if unknown := set(given.parts) - SECONDS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(SECONDS)}")
    if given.findings:
        run_part(given.parts[0], given.device, given.quick, Findings(given.findings))
        return
    ends = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    about = machine(given.device)
    device = about["device"]
    quick = given.quick or device == "cpu"
    found: dict[str, Part] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    for name in given.parts or SECONDS:
        print(f"{name} …", flush=True)
        found[name] = in_process(name, device, quick, given.out.resolve(), min(SECONDS[name], ends - time.monotonic()))
        print("\n".join(found[name].lines) + (f"\nFAILED: {found[name].failure}" if found[name].failure else ""), flush=True)
        write(given.out, about, quick, found)
    print(f"{given.out / 'gpu.json'}, {given.out / 'gpu.md'}")
    conclude(ratios_of(found), not quick)
    sys.exit(any(part.failure for part in found.values()))


def run_part(name: str, device: str, quick: bool, findings: Findings) -> None:
    """A part, in this process."""
    try:
        import torch

        from benchmarks.gpu_parts import PARTS

        PARTS[name](torch.device(device), quick, findings)
    except ModuleNotFoundError as error:
        findings.failed(f"{error.name} is not installed: pip install {error.name}")


def in_process(name: str, device: str, quick: bool, out: Path, seconds: float) -> Part:
    """Run a part and all that it starts, for so long at most; what it prints is in OUT/NAME.log."""
    if seconds <= 1:
        return Part(failure="no time was left")
    findings, log = out / f"{name}.json", out / f"{name}.log"
    findings.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--device", device, "--findings", str(findings)]
    began = time.monotonic()
    failure = ""
    with log.open("w") as printed:
        process = subprocess.Popen(
            [*command, *(["--quick"] if quick else [])], cwd=ROOT, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            status = process.wait(seconds)
            if status:
                tail = log.read_text(errors="replace").strip()[-2000:]
                failure = f"{tail}\nended with status {status}".strip()
        except subprocess.TimeoutExpired:
            failure = f"stopped after {seconds:.0f} s"
        finally:  # what it started may go on
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    part = Part(**json.loads(findings.read_text())) if findings.is_file() else Part()
    findings.unlink(missing_ok=True)
    part.failure, part.seconds = part.failure or failure, time.monotonic() - began
    return part


def machine(device: str) -> dict[str, str]:
    """Where this runs, and with what; `device` is the one that is used."""
    about = {"device": device, "python": platform.python_version(), "processor": platform.machine(), "commit": commit()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            about[name] = version(name)
    try:
        import torch
    except ImportError as error:
        return about | {"device": "cpu", "torch": f"cannot be imported: {error}"}
    if device == "auto":
        about["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if about["device"].startswith("cuda"):
        one = torch.cuda.get_device_properties(about["device"])
        memory = f"{one.total_memory / 1e9:.0f} GB"
        about |= {"gpu": one.name, "capability": f"{one.major}.{one.minor}", "memory": memory, "cuda": str(torch.version.cuda)}
    return about


def commit() -> str:
    """Of this checkout; empty where there is none, or no git."""
    with suppress(OSError):
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()
    return ""


def ratios_of(found: Mapping[str, Part]) -> dict[str, float]:
    return {name: value for part in found.values() for name, value in part.ratios.items()}


def write(out: Path, about: Mapping[str, str], quick: bool, found: Mapping[str, Part]) -> None:
    """gpu.json and gpu.md, of what was found so far."""
    answer: dict[str, Any] = {"machine": about, "quick": quick, "parts": {name: asdict(part) for name, part in found.items()}}
    put(out / "gpu.json", json.dumps(answer, indent=1) + "\n")
    put(out / "gpu.md", page(about, quick, found))


def page(about: Mapping[str, str], quick: bool, found: Mapping[str, Part]) -> str:
    """A page of Markdown."""
    ratios = ratios_of(found)
    lines = [f"# {about.get('gpu', 'No GPU')}", "", ", ".join(f"{name} {value}" for name, value in about.items()), ""]
    if quick:
        lines += ["Small sizes: this shows that the program runs, and says nothing about speed.", ""]
    holds: Callable[[str], str] = lambda name: "" if quick else ("yes" if ratios[name] >= GOALS[name] else "**no**")  # noqa: E731
    lines += ["| ratio | measured | goal, of an H100 | holds |", "|---|---|---|---|"]
    lines += [f"| {name} | {value:.3g} | ≥ {GOALS[name]:g} | {holds(name)} |" for name, value in ratios.items()]
    for name, part in found.items():
        lines += ["", f"## {name.capitalize()} ({part.seconds:.0f} s)", "", *part.lines]
        if part.failure:
            lines += ["", "Failed:", "", *(f"    {line}" for line in part.failure.splitlines())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
