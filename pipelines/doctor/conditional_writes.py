"""Whether several tasks can write straight to a `store.root` in an object store: it must refuse to write what is there."""

import uuid

from pipelines.doctor.deadline import SECONDS, within
from pipelines.doctor.file_system import PREFIX
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from store.places import is_remote

NAME = "store.root writes"
THROUGH_DISK = "sets are written to features/.upload first, and sent from there; several tasks need that folder in common"


def check(machine: Machine) -> Finding | None:
    """A file is written twice, each time on condition that there is none, and removed. Some services ignore the condition."""
    root = machine.store_root
    if root is None or not is_remote(root):
        return None
    if machine.offline:
        return Finding(NAME, "note", f"nothing was written to {root}", "leave out --offline")
    try:
        return within(SECONDS, lambda: _examined(root))
    except TimeoutError as error:
        return Finding(NAME, "note", f"{root}: {error}", "see store.root")


def _examined(root: str) -> Finding:
    from store import StoreError
    from store.places.object_store import ObjectStore, honours_condition

    try:
        place = ObjectStore(root)
        if not place.can_create:
            return Finding(NAME, "note", f"{root} has no conditional writing that fsspec knows of", THROUGH_DISK)
        if honours_condition(place, f"{PREFIX}{uuid.uuid4().hex}"):
            return Finding(NAME, "ok", f"{root} refuses to write what is there: several tasks can write sets straight to it")
    except StoreError as error:
        return Finding(NAME, "note", str(error).partition(";")[0], "probing works; to extract, ask its owner for access")
    return Finding(NAME, "note", f"{root} ignores the condition of a write (If-None-Match: *)", THROUGH_DISK)
