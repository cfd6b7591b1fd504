"""The folder or bucket that machines and projects share (`store.root`): which it is, and whether it can be used."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from pipelines.doctor.deadline import SECONDS, within
from pipelines.doctor.file_system import PREFIX
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import PARAMS, Machine, existing, local_folder
from store.places import is_remote

CHECK = "correct it in the file that names it, or check the network and your credentials"


def check(machine: Machine) -> Finding | None:
    """The root is listed, and a folder is also written to; nothing is left there."""
    from pipelines.sharing.places import user_store

    user = user_store()  # raises if something is wrong there; params.yaml has its own check
    root = machine.store_root
    if root is None:
        if user.root is None:
            return None
        observed = f"none: feature sets are in features/, as {PARAMS} says, and not at {user.root} ({user.source})"
        return Finding("store.root", "ok", observed)
    finding = _examined(root, machine)
    return replace(finding, found=f"{finding.found} (from {machine.places.source})")


def _examined(root: str, machine: Machine) -> Finding:
    if not is_remote(root):
        folder = local_folder(root, machine.folder)
        try:
            return within(SECONDS, lambda: _folder(folder))
        except TimeoutError as error:
            return Finding("store.root", "problem", f"{folder}: {error}", "mount it again: its server is away")
    if machine.offline:
        return Finding("store.root", "note", f"{root} was not looked at", "leave out --offline")
    return _remote(root)


def _folder(folder: Path) -> Finding:
    if folder.exists() and not folder.is_dir():
        return Finding("store.root", "problem", f"{folder} is not a folder", "name a folder under store.root")
    if not folder.exists():
        observed = f"there is no folder {folder} yet"
        if os.access(existing(folder), os.W_OK):
            return Finding(
                "store.root", "note", observed, "mount it, if it is another machine's; else the first extraction makes it"
            )
        return Finding("store.root", "problem", f"{observed}, and you may not make it", "mount or make it, or name another")
    try:
        with os.scandir(folder) as listed:
            n = sum(1 for _ in listed)
    except OSError as error:
        return Finding("store.root", "problem", f"{folder} cannot be read ({error.strerror})", "ask its owner for access")
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder):
            pass
    except OSError as error:
        observed = f"{folder} (entries: {n:,}) cannot be written to ({error.strerror})"
        return Finding("store.root", "note", observed, "probing works; to extract, ask its owner for access")
    return Finding("store.root", "ok", f"{folder} (entries: {n:,}) can be read and written to")


def _remote(root: str) -> Finding:
    import fsspec  # type: ignore[import-untyped]

    protocol = root.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        remedy = "pip install 'beyondcls[s3]'" if protocol == "s3" else str(error)
        return Finding("store.root", "problem", f"{root} needs a package that is not installed here", remedy)
    except ValueError:
        expected = "a folder, s3://bucket/folder, or another protocol of fsspec"
        return Finding(
            "store.root",
            "problem",
            f"{root} has an unknown protocol, expected {expected}",
            "correct it in the file that names it",
        )

    def names(address: str) -> list[str]:
        file_system, path = fsspec.core.url_to_fs(address)
        return file_system.ls(path, detail=False)

    bucket = "/".join(root.split("/")[:3])
    try:
        return Finding("store.root", "ok", f"{root} can be listed (entries: {len(within(SECONDS, lambda: names(root))):,})")
    except FileNotFoundError:
        pass
    except TimeoutError as error:
        return Finding("store.root", "problem", f"{root}: {error}", CHECK)
    except Exception as error:  # each service has its own errors
        return Finding("store.root", "problem", f"{root} cannot be listed: {type(error).__name__}: {error}", CHECK)
    try:
        within(SECONDS / 2, lambda: names(bucket))
    except FileNotFoundError:
        return Finding("store.root", "problem", f"{root} cannot be listed: there is no {bucket}", f"make it; or {CHECK}")
    except Exception:  # some users may list only folders below
        return Finding("store.root", "note", f"{root}: nothing there, and {bucket} cannot be listed", CHECK)
    return Finding("store.root", "ok", f"{root}: nothing there yet")
