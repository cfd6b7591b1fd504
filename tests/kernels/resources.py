"""What compiled kernels need of a GPU, read from their machine code; no GPU is needed for that."""

import re
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def compiled(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    target: int,
    divisible: Collection[str] = (),
    **options: int,
) -> Resources:
    """What a kernel needs on a GPU of capability `target` / 10; arguments as of `machine_code`."""
    made = machine_code(kernel, types, constants, target, divisible, **options)
    said = described(made, "cuobjdump", "--dump-resource-usage")
    match = PER_THREAD.search(said)
    assert match is not None, said
    registers, stack, local = map(int, match.groups())
    return Resources(registers, stack + local, made.metadata.shared)


def machine_code(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    target: int,
    divisible: Collection[str] = (),
    **options: int,
) -> Any:
    """A kernel compiled for a GPU of capability `target` / 10, as Triton's `CompiledKernel`.

    Pointers are to multiples of 16 bytes, as those to a tensor's own memory are when the kernel is launched.
    Only where the interpreter is not in the place of the compiler: in a process without TRITON_INTERPRET.

    Args:
        types: of its arguments that are not constants: "*bf16" of a pointer, "i32", "fp32".
        constants: values of its `tl.constexpr` arguments, by name.
        divisible: other arguments that are multiples of 16, as the launcher finds most strides to be.
        options: num_warps, num_stages.
    """
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    positions = {(i,): constants[name] for i, name in enumerate(kernel.arg_names) if name in constants}
    aligned = (name in divisible or types.get(name, "").startswith("*") for name in kernel.arg_names)
    hints = {(i,): [["tt.divisibility", 16]] for i, is_aligned in enumerate(aligned) if is_aligned}
    source = ASTSource(kernel, signature, positions, hints)
    return compile_kernel(source, target=GPUTarget("cuda", target, 32), options=options)


def described(made: Any, tool: str, flag: str) -> str:
    """What a tool that comes with Triton says of the machine code of a compiled kernel."""
    from triton.backends.nvidia import __file__ as backend

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        command = [str(Path(backend).parent / "bin" / tool), flag, str(cubin)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
