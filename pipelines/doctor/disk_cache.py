"""The disk cache of what is read from an object store (`store.cache` of params.yaml): whether its disk can hold it."""

import os
import shutil

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing


def check(machine: Machine) -> Finding | None:
    """Files that are already in it count as free space for it."""
    from pipelines.store.find import nbytes_of
    from pipelines.store.table import size

    if machine.cache is None:
        return None
    folder, nbytes = machine.cache
    above = existing(folder)
    if not os.access(above, os.W_OK):
        remedy = "name a folder of yours under store.cache in params.yaml"
        return Finding("store.cache", "problem", f"{folder} cannot be written to", remedy)
    used = nbytes_of(folder) if folder.is_dir() else 0
    room = shutil.disk_usage(above).free + used
    observed = f"{folder}: {size(used)} of {size(nbytes)}"
    if room < nbytes:
        remedy = f"give store.cache.gb less than {room / 1e9:.0f}, or a folder on another disk"
        return Finding("store.cache", "note", f"{observed}, but its disk has room for {size(room)} only", remedy)
    return Finding("store.cache", "ok", observed)
