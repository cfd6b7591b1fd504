"""The cores and instructions of the CPU, and whether torch uses them."""

import math
import os
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

ROOT = Path("/")


def check(machine: Machine) -> Finding:
    """Fewer threads than cores leave cores idle; more hold one another up."""
    import torch

    from store import onednn

    n_cores, n_threads = cores(), torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    fast = ", float32 products by oneDNN" if onednn.is_faster() else ""
    observed = f"cores for this process: {n_cores}, threads of torch: {n_threads}; {capability}{fast}"
    variable = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if os.environ.get(name)), None)
    origin = f" ({variable}={os.environ[variable]})" if variable else ""
    if n_threads > n_cores:
        return Finding("cpu", "note", observed + origin, f"export OMP_NUM_THREADS={n_cores}: more threads hold one another up")
    if n_threads < n_cores and variable:
        export = f"export OMP_NUM_THREADS={n_cores}"
        remedy = f"{export}, divided by the number of processes if there are several, as under torchrun"
        return Finding("cpu", "note", observed + origin, remedy)
    if capability == "AVX512" and not torch.backends.mkldnn.is_available():
        remedy = "this torch lacks oneDNN: install that of the default package index, which extracts faster on this CPU"
        return Finding("cpu", "note", observed, remedy)
    return Finding("cpu", "ok", observed)


def cores() -> int:
    """Cores that this process may use: schedulers bind it to some, containers limit their time."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return n if quota is None else max(1, min(n, math.ceil(quota)))


def _quota() -> float | None:
    """Cores' worth of time that a control group (version 1 or 2) allows; None without a limit."""
    mount = ROOT / "sys/fs/cgroup"
    try:
        if (mount / "cpu.max").is_file():
            quota, period = (mount / "cpu.max").read_text().split()
        else:
            quota, period = (((mount / "cpu" / f"cpu.cfs_{n}_us").read_text()) for n in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max", or no such files
        return None
