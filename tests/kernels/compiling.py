"""Kernels compiled in a process of their own, in which Triton's compiler has not given way to its interpreter.

`python -m tests.kernels.compiling MODULE …` compiles what `MODULE.cases()` lists, for every target, and prints a line of JSON.
"""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.kernels.resources import TARGETS, Resources, compiled

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """A kernel with the types and constants with which it is launched on `targets`; arguments as of `resources.compiled`."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    divisible: tuple[str, ...] = ()
    targets: tuple[int, ...] = TARGETS


def resources_of(*modules: str) -> list[dict[tuple[str, int], Resources]]:
    """What the cases of each module need, by name and target."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.compiling", *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    by_module = map(json.loads, done.stdout.splitlines())
    return [{(name, target): Resources(**needs) for name, target, needs in listed} for listed in by_module]


if __name__ == "__main__":
    for module in sys.argv[1:]:
        listed: list[Case] = importlib.import_module(module).cases()
        needs = [
            (
                case.name,
                target,
                asdict(compiled(case.kernel, case.types, case.constants, target, case.divisible, **case.options)),
            )
            for case in listed
            for target in case.targets
        ]
        print(json.dumps(needs))
