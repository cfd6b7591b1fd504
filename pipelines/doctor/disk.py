"""Room where features, DVC's cache, common feature sets and the disk cache lie."""

import os
import shutil
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.here import Here, existing, is_address, local_folder
from store.errors import BeyondClsError

FULL_BYTES, FULL_SHARE, FULL_FILES = 1e9, 0.05, 0.01


def check(here: Here) -> Finding:
    """Less than 1 GB is a problem, or less than 5 % of the disk that would not hold as much as the feature sets here take."""
    from pipelines.store.find import feature_sets, nbytes_of
    from pipelines.store.table import size

    taken = sum(map(nbytes_of, feature_sets(here.features))) if here.features.is_dir() else 0
    found, remedies, state = [], [], "ok"
    for names in disks(here):
        where = f"{', '.join(names)}: " if len(names) < len(places(here)) else ""
        folder = existing(places(here)[names[0]])
        usage, stat = shutil.disk_usage(folder), os.statvfs(folder)
        share = usage.free / usage.total if usage.total else 0
        found.append(f"{where}{size(usage.free)} free ({share:.0%})")
        full = usage.free < FULL_BYTES or (share < FULL_SHARE and usage.free < taken)
        n_files = stat.f_favail if stat.f_files else None  # some file systems have no limit
        if n_files is not None and n_files < FULL_FILES * stat.f_files:
            found.append(f"{n_files:,} of {stat.f_files:,} files may still be made there")
            remedies.append(f"remove files from the disk of {folder}, many small ones first")
            state = "problem"
        if full:
            state = "problem"
        elif share < FULL_SHARE or usage.free < taken:
            state = "problem" if state == "problem" else "note"
        if full or share < FULL_SHARE or usage.free < taken:
            remedies.append(
                f"on the disk of {folder}: `beyondcls store ls` shows what takes room, `beyondcls store rm` and "
                "`dvc gc -w` free it; --dtype int8 takes half"
            )
    found.append(f"the feature sets here take {size(taken)}" if taken else "no feature sets here yet")
    return Finding("disk", state, "; ".join(found), "\n".join(dict.fromkeys(remedies)))  # type: ignore[arg-type]


def places(here: Here) -> dict[str, Path]:
    """Folders that the program writes to, by what they are for; they need not be there."""
    found = {"features": here.features}
    try:
        if here.project is not None:
            found["DVC's cache"] = here.project.cache
    except BeyondClsError:
        pass  # the check `dvc` says it
    if here.store_root is not None and not is_address(here.store_root):
        found["store.root"] = local_folder(here.store_root, here.folder)
    if here.cache is not None:
        found["store.cache"] = here.cache[0]
    return found


def disks(here: Here) -> list[list[str]]:
    """What the folders are for, those on one disk together."""
    by_disk: dict[int, list[str]] = {}
    for name, path in places(here).items():
        by_disk.setdefault(existing(path).stat().st_dev, []).append(name)
    return list(by_disk.values())
