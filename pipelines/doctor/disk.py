"""Free space on the disks of features, DVC's cache, shared feature sets and the disk cache."""

import os
import shutil
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing, local_folder
from store.errors import BeyondClsError
from store.places import is_remote

FULL_BYTES, FULL_SHARE, FULL_FILES = 1e9, 0.05, 0.01


def check(machine: Machine) -> Finding:
    """Less than 1 GB is a problem, or less than 5 % of the disk if that is less than the feature sets here take."""
    from pipelines.store.find import feature_sets, nbytes_of
    from pipelines.store.table import size

    features_nbytes = sum(map(nbytes_of, feature_sets(machine.features))) if machine.features.is_dir() else 0
    observed, remedies, state = [], [], "ok"
    for names in disks(machine):
        prefix = f"{', '.join(names)}: " if len(names) < len(places(machine)) else ""
        folder = existing(places(machine)[names[0]])
        usage, stat = shutil.disk_usage(folder), os.statvfs(folder)
        share = usage.free / usage.total if usage.total else 0
        observed.append(f"{prefix}{size(usage.free)} free ({share:.0%})")
        full = usage.free < FULL_BYTES or (share < FULL_SHARE and usage.free < features_nbytes)
        n_files = stat.f_favail if stat.f_files else None  # some file systems have no limit
        if n_files is not None and n_files < FULL_FILES * stat.f_files:
            observed.append(f"{n_files:,} of {stat.f_files:,} files may still be made there")
            remedies.append(f"remove files from the disk of {folder}, many small ones first")
            state = "problem"
        if full:
            state = "problem"
        elif share < FULL_SHARE or usage.free < features_nbytes:
            state = "problem" if state == "problem" else "note"
        if full or share < FULL_SHARE or usage.free < features_nbytes:
            remedies.append(
                f"on the disk of {folder}: `beyondcls store ls` shows what takes room, `beyondcls store rm` and "
                "`dvc gc -w` free it; --dtype int8 takes half"
            )
    observed.append(f"the feature sets here take {size(features_nbytes)}" if features_nbytes else "no feature sets here yet")
    return Finding("disk", state, "; ".join(observed), "\n".join(dict.fromkeys(remedies)))  # type: ignore[arg-type]


def places(machine: Machine) -> dict[str, Path]:
    """Folders that the program writes to, by purpose; they need not exist."""
    folders = {"features": machine.features}
    try:
        if machine.project is not None:
            folders["DVC's cache"] = machine.project.cache
    except BeyondClsError:
        pass  # the check `dvc` reports it
    if machine.store_root is not None and not is_remote(machine.store_root):
        folders["store.root"] = local_folder(machine.store_root, machine.folder)
    if machine.cache is not None:
        folders["store.cache"] = machine.cache[0]
    return folders


def disks(machine: Machine) -> list[list[str]]:
    """Purposes of the folders, grouped by disk."""
    by_disk: dict[int, list[str]] = {}
    for name, path in places(machine).items():
        by_disk.setdefault(existing(path).stat().st_dev, []).append(name)
    return list(by_disk.values())
