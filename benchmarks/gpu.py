"""What a GPU is worth to this program, in one command, under ten minutes, without a network.

    python -m benchmarks.gpu [--quick] [--out build/gpu] [--device auto]        # or: make gpu

Nothing is installed. Each part runs in a process of its own, so that one which crashes or hangs leaves the others alone:
`tests` runs all tests that need a GPU, and says which were skipped and why. `extraction` times a ViT-B/16, ViT-L/16 and
ViT-H/14 in bf16 (bare, without statistics, with all, with all by PyTorch's operations, and to the disk); `loader` the way of
tokens to the device, beside a copy from pinned memory; `grid` 32 heads in one run and one by one, and training steps beside the
limit that memory and products set.
Writes gpu.json and gpu.md into --out. Without a GPU it runs small on the CPU: evidence that it works, and of nothing else.
Ratios: `e2e_vs_bare` seconds of the bare bf16 forward pass of a ViT-B/16 / of extraction with all statistics, maps and
writing; `statistics_vs_bare` likewise of the pass alone; `kernel_vs_operations` seconds of that pass by PyTorch's operations /
by the kernel; `loader_vs_copy` the loader's rate / that of the copy; `grid32_vs_solo` as in benchmarks.probe.
The exit status is 1 if a part failed. The last line is JSON.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu_parts import PARTS
from benchmarks.timing import ROOT

SECONDS = {"tests": 180, "extraction": 220, "loader": 60, "grid": 120}  # after which a part is stopped
EXPECTED = {  # of one H100
    "e2e_vs_bare": 0.85,
    "statistics_vs_bare": 0.95,
    "kernel_vs_operations": 1.0,
    "loader_vs_copy": 0.85,
    "grid32_vs_solo": 16.0,
}


@dataclass
class Part:
    """What a part found.

    Attributes:
        ratios: by name, of EXPECTED.
        lines: Markdown, for people.
        failure: empty if all went well.
        seconds: of its process.
    """

    ratios: dict[str, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, as on a CPU: under a minute, and no evidence")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of gpu.json and gpu.md")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given.device == "auto" else given.device
    quick = given.quick or device == "cpu"
    if given.part:
        lines, ratios, failure = PARTS[given.part](torch.device(device), quick)
        print(json.dumps(asdict(Part(ratios, lines, failure))))
        return
    found = {}
    for name in PARTS:
        print(f"{name} …", flush=True)
        found[name] = in_process(name, device, quick)
        print("\n".join(found[name].lines) + (f"\nFAILED: {found[name].failure}" if found[name].failure else ""), flush=True)
    ratios = {name: value for part in found.values() for name, value in part.ratios.items()}
    given.out.mkdir(parents=True, exist_ok=True)
    about = machine(device)
    parts = {name: asdict(part) for name, part in found.items()}
    (given.out / "gpu.json").write_text(json.dumps({"machine": about, "quick": quick, "parts": parts}, indent=1) + "\n")
    (given.out / "gpu.md").write_text(page(about, quick, found, ratios))
    print(f"{given.out / 'gpu.json'}, {given.out / 'gpu.md'}")
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))
    sys.exit(any(part.failure for part in found.values()))


def in_process(name: str, device: str, quick: bool) -> Part:
    """Run a part; what it prints goes to the terminal, but for its last line."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--device", device, *(["--quick"] if quick else [])]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS[name])
    except subprocess.TimeoutExpired:
        return Part(failure=f"stopped after {SECONDS[name]} s", seconds=SECONDS[name])
    seconds = time.perf_counter() - began
    if done.returncode:
        return Part(failure=(done.stderr or done.stdout).strip()[-2000:], seconds=seconds)
    part = Part(**json.loads(done.stdout.splitlines()[-1]))
    part.seconds = seconds
    return part


def machine(device: str) -> dict[str, str]:
    """Where this ran."""
    about = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "commit": commit(),
    }
    if device == "cuda":
        one = torch.cuda.get_device_properties(0)
        memory = f"{one.total_memory / 1e9:.0f} GB"
        return {"gpu": one.name, "capability": f"{one.major}.{one.minor}", "memory": memory, **about}
    return about


def commit() -> str:
    """Of this checkout; empty where there is none."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def page(about: Mapping[str, str], quick: bool, found: Mapping[str, Part], ratios: Mapping[str, float]) -> str:
    """A page of Markdown."""
    lines = [f"# {about.get('gpu', 'No GPU')}", "", ", ".join(f"{name} {value}" for name, value in about.items()), ""]
    if quick:
        lines += ["Small sizes: this shows that the program runs, and says nothing about speed.", ""]
    holds: Callable[[str], str] = lambda name: "" if quick else ("yes" if ratios[name] >= EXPECTED[name] else "**no**")  # noqa: E731
    lines += ["| ratio | measured | expected of an H100 | holds |", "|---|---|---|---|"]
    lines += [f"| {name} | {value:.3g} | ≥ {EXPECTED[name]:g} | {holds(name)} |" for name, value in ratios.items()]
    for name, part in found.items():
        lines += ["", f"## {name.capitalize()} ({part.seconds:.0f} s)", "", *part.lines]
        if part.failure:
            lines += ["", "Failed:", "", *(f"    {line}" for line in part.failure.splitlines())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
