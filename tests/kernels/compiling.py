"""What compiled kernels need of a GPU, read from their machine code; no GPU is needed for that.

`python -m tests.kernels.compiling MODULE …` compiles what `MODULE.cases()` lists, for every target, and prints a line of JSON:
in a process of its own, in which Triton's compiler has not given way to its interpreter.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (80, 90, 100)  # A100, H100, B200
SHARED_NBYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # that a block can have
PER_THREAD = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True)
class Resources:
    """Of one kernel.

    Attributes:
        registers: of each thread; 255 at most.
        spilled: bytes of each thread's local memory, where registers did not suffice.
        shared: bytes of shared memory of each block.
    """

    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Case:
    """A kernel with the types and constants with which it is launched.

    Attributes:
        types: of its arguments that are not constants: "*bf16" of a pointer, "i32", "fp32". Pointers are to multiples of 16
            bytes, as those to a tensor's own memory are.
        constants: values of its `tl.constexpr` arguments, by name.
        options: num_warps, num_stages.
        divisible: other arguments that are multiples of 16, as the launcher finds most strides to be.
        targets: capabilities of GPUs, times 10.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    divisible: tuple[str, ...] = ()
    targets: tuple[int, ...] = TARGETS

    def compiled(self, target: int) -> Any:
        """For a GPU of capability `target` / 10, as Triton's `CompiledKernel`."""
        from triton import compile as compile_kernel
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names, types = self.kernel.arg_names, self.types
        signature = {name: types.get(name, "constexpr") for name in names}
        positions = {(i,): self.constants[name] for i, name in enumerate(names) if name in self.constants}
        aligned = (name in self.divisible or types.get(name, "").startswith("*") for name in names)
        hints = {(i,): [["tt.divisibility", 16]] for i, is_aligned in enumerate(aligned) if is_aligned}
        source = ASTSource(self.kernel, signature, positions, hints)
        return compile_kernel(source, target=GPUTarget("cuda", target, 32), options=self.options)

    def resources(self, target: int) -> Resources:
        made = self.compiled(target)
        said = described(made, "cuobjdump", "--dump-resource-usage")
        match = PER_THREAD.search(said)
        assert match is not None, said
        registers, stack, local = map(int, match.groups())
        return Resources(registers, stack + local, made.metadata.shared)


def described(made: Any, tool: str, flag: str) -> str:
    """What a tool that comes with Triton says of the machine code of a compiled kernel."""
    from triton.backends.nvidia import __file__ as backend

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        command = [str(Path(backend).parent / "bin" / tool), flag, str(cubin)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
        cases = importlib.import_module(module).cases()
        print(json.dumps([(case.name, target, asdict(case.resources(target))) for case in cases for target in case.targets]))
