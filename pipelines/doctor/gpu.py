"""Whether torch sees a GPU here, and if not, why."""

import os
import re
import warnings
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

ROOT = Path("/")
TOO_LITTLE = 0.1  # of a GPU's memory
COSTS = "everything works without a GPU; extraction takes far longer (`beyondcls plan` says how long here), probing somewhat"


def check(machine: Machine) -> Finding:
    """A GPU that is in the machine but that torch cannot use is a problem; no GPU at all is a note."""
    import torch

    build = torch.version.cuda or getattr(torch.version, "hip", None)
    in_machine = (ROOT / "dev/nvidia0").exists()
    reason, usable = _usable()
    if usable:
        return _described(torch.version.cuda is not None)
    if in_machine and build is None:
        observed = f"there is a GPU{_driver()}, but torch {torch.__version__} was built without CUDA"
        return Finding(
            "gpu",
            "problem",
            observed,
            "pip install --force-reinstall torch (from the default package index, or as torch's own page says)",
        )
    hidden = next((n for n in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if os.environ.get(n) in ("", "-1")), None)
    if hidden:
        return Finding("gpu", "note", f"{hidden}={os.environ[hidden]} hides GPUs from torch", f"unset {hidden}; {COSTS}")
    if in_machine:
        observed = f"there is a GPU{_driver()}, but torch {torch.__version__} (CUDA {build}) cannot use it{reason}"
        remedy = f"update the driver to one for CUDA {build}, or install a torch built for the driver you have"
        return Finding("gpu", "problem", observed, remedy)
    built = f"built for CUDA {build}" if build else "built without CUDA"
    return Finding("gpu", "note", f"none; torch {torch.__version__}, {built}", COSTS)


def _usable() -> tuple[str, bool]:
    """Why torch cannot use a GPU, if it gives a reason; and whether it can."""
    import torch

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    reason = "".join(f": {str(w.message).splitlines()[0]}" for w in warned[:1])
    return reason, available


def _described(is_cuda: bool) -> Finding:
    """The GPUs that torch sees, after each has added two numbers: some builds have no code for a GPU."""
    import torch

    from pipelines.store.table import size

    lines, full = [], []
    for i in range(torch.cuda.device_count()):
        try:
            free, total = torch.cuda.mem_get_info(i)
            torch.ones(1, device=f"cuda:{i}").add(1).item()
        except RuntimeError as error:
            name, reason = torch.cuda.get_device_name(i), str(error).splitlines()[0]
            remedy = (
                "wait for who uses it, or choose another with CUDA_VISIBLE_DEVICES"
                if "memory" in reason or "busy" in reason
                else "install a torch that was built for this GPU"
            )
            return Finding("gpu", "problem", f"cuda:{i}, {name}, does not compute: {reason}", remedy)
        # bfloat16 is emulated, slowly, before the generation of capability 8.
        bf16 = "bf16" if not is_cuda or torch.cuda.get_device_capability(i)[0] >= 8 else "no bf16: use --amp fp16"
        lines.append(f"{torch.cuda.get_device_name(i)}, {size(free)} of {size(total)} free, {bf16}")
        if free < TOO_LITTLE * total:
            full.append(f"cuda:{i}")
    shown = "; ".join(f"{lines.count(line)} x {line}" if lines.count(line) > 1 else line for line in dict.fromkeys(lines))
    shown += f" (torch for CUDA {torch.version.cuda}{_driver(', ')})" if is_cuda else ""
    remedy = f"others use {', '.join(full)}: `nvidia-smi` shows who; choose another with CUDA_VISIBLE_DEVICES" if full else ""
    return Finding("gpu", "note" if full else "ok", shown, remedy)


def _driver(before: str = " with ") -> str:
    """The version of NVIDIA's driver, in words; empty without one."""
    file = ROOT / "proc/driver/nvidia/version"
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read_text()) if file.is_file() else None
    return f"{before}driver {match[1]}" if match else ""
