"""Memory that this process may still use."""

import psutil

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

LITTLE = 2e9  # torch with a ViT-B and one batch takes about as much


def check(machine: Machine) -> Finding:
    """Free memory within the limit of control groups: containers and schedulers end a process that takes more."""
    import torch

    from pipelines.store.table import size
    from store.loading.placement import MEMORY_SHARE, free_memory

    free, memory = free_memory(torch.device("cpu")), psutil.virtual_memory()
    limited = "; a container or scheduler sets the limit" if free < 0.95 * memory.available else ""
    observed = f"{size(free)} free, the machine has {size(memory.total)}{limited}"
    observed += f"; tokens up to {size(MEMORY_SHARE * free)} are trained on from memory, more are streamed"
    if free < LITTLE:
        remedy = "ask for more memory, end other programs, or give a smaller --batch-size and fewer --workers"
        return Finding("memory", "note", observed, remedy)
    return Finding("memory", "ok", observed)
