"""Where an extraction goes if feature sets have a shared root, and what stays in its place: a stub, a receipt, and by whom."""

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pipelines.sharing.places import PROJECT, Places, receipt_of
from store import FeatureStore, StoreError
from store.environment import versions_of
from store.format.unfinished import holds_only, is_stub, write_stub
from store.moving.receipt import CHECK, Receipt
from store.moving.transfer import upload
from store.places import LocalFolder, is_remote, place_at
from store.places.disk import write_file
from store.places.object_store import ObjectStore, honours_condition
from store.writing.claims import BusyError, alone
from store.writing.publishing import discard, staging_of

if TYPE_CHECKING:
    from extract.sample import SampleCheck

PACKAGES = ("torch", "timm", "torchvision", "pillow", "numpy", "beyondcls")  # whose versions may change what is computed
SCRATCH = ".upload"  # next to the sets: DVC empties the output folders of a stage before it runs the stage again


def destination(places: Places, out: Path, key: str, takes_over: bool = False) -> Path | str | FeatureStore:
    """The set, if it is already at the root; else the folder or the address to write it to.

    That is at the root; but a folder on this machine, to be uploaded from there, if the root is an object store that writes no
    file only where there is none, or the set takes over shards, or was begun in that folder or at the root.

    Args:
        takes_over: whether there is another set to take shards from.

    Raises:
        StoreError: `out` holds more than a stub; or the root cannot be reached.
    """
    _check_vacant(places, out)
    typer.echo(f"{out}: the set goes to {places.shown}")
    if (stored := _finished_set(places, out, key)) is not None:
        typer.echo(f"nothing to extract: {stored.where} is this very set")
        return stored
    address, scratch = places.address(out.name, key), scratch_of(out, key)
    if not is_remote(address):
        return Path(address)
    begun = scratch.is_dir() or staging_of(scratch, key).is_dir() or place_at(address).content("zarr.json") is not None
    return address if not (takes_over or begun) and writes_conditionally(places, scratch.parent) else scratch


def _check_vacant(places: Places, out: Path) -> None:
    """See that a stub can be left."""
    if not is_stub(out) and not holds_only(out):
        raise StoreError(
            f"{out} holds files, but feature sets go to {places.shown}, and only stubs stay here; put it there with "
            f"`beyondcls store push {out}`, or remove it first; or let the sets of this project stay here: "
            f"`store: {{ root: {PROJECT} }}` in the parameter file"
        )


def writes_conditionally(places: Places, folder: Path) -> bool:
    """Whether tasks can write straight to a root in an object store; says so if they cannot.

    Args:
        folder: what they use instead, for the message.

    Raises:
        StoreError: nobody can write there.
    """
    assert places.root is not None
    place = ObjectStore(places.root)
    if place.can_create and honours_condition(place, f".beyondcls-{uuid.uuid4().hex}"):
        return True
    typer.echo(
        f"note: {places.shown} has no writing of a file only where there is none: the set is written to {folder} first, and "
        "sent from there; several tasks must have that folder in common",
        err=True,
    )
    return False


def _finished_set(places: Places, out: Path, key: str) -> FeatureStore | None:
    """The set of a key at the root; None if it is not there, or incomplete and to be sent again."""
    try:
        return places.find(out.name, key, Receipt.from_store)  # of all arrays, or none
    except StoreError as error:
        address = places.address(out.name, key)
        if place_at(address).content("zarr.json") is not None:
            if not is_remote(address):
                raise StoreError(f"{error}; `beyondcls store verify {address}` says how to mend it") from error
            typer.echo(f"note: {error}\nit is extracted again, and what is missing there is sent", err=True)
        return None


def scratch_of(out: Path, key: str) -> Path:
    """The folder of a set until it is uploaded."""
    return out.parent / SCRATCH / f"{out.name}-{key}"


def refuse_changes(places: Places, out: Path, option: str) -> None:
    """Refuse to change a set at the root.

    Raises:
        StoreError: the set is at the root, where receipts refer to it, or there is no set at `out`.
    """
    if is_stub(out) or holds_only(out):
        raise StoreError(
            f"{option} changes a feature set in {out}, but its arrays are at {places.shown}, where sets stay as they "
            f"are: fetch it first (beyondcls store pull {out} --params FILE), give this command again, and put the result "
            f"there with `beyondcls store push {out} --params FILE`"
        )


def publish(store: FeatureStore, places: Places, out: Path, receipt: Path | None) -> FeatureStore | None:
    """Upload a finished set if the root is an object store; leave stub and receipt. Can be repeated safely.

    Returns:
        The set at its final place; None if another task is doing this.

    Raises:
        StoreError: `out` holds files, which a stub would make useless, or `receipt` something else; or sending fails.
    """
    key = store.spec.key
    scratch, address = scratch_of(out, key), places.root and places.address(out.name, key)
    try:
        with alone(scratch, str(out)):
            if address is not None:
                if isinstance(store.place, LocalFolder) and is_remote(address):
                    if scratch.is_dir():
                        send(store, address)
                        _remove(scratch)
                    store = FeatureStore.open(address, key)  # also where another task has sent it in the meantime
                receipt = receipt or receipt_of(out)
                _check_vacant(places, out)  # again: something may have come meanwhile
            if receipt is not None:
                if receipt.is_file() and not receipt.read_bytes().startswith((b"{", b"<<<<<<<")):  # git marks conflicts so
                    raise StoreError(f"{receipt} is no receipt, so it stays; give another --receipt, or remove it first")
                Receipt.from_store(store).write(receipt)
            if address is not None:
                write_stub(out, store.place.content("zarr.json") or b"")
            return store
    except BusyError:
        return None
    finally:
        with suppress(OSError):  # not empty, or another task was faster
            scratch.parent.rmdir()


def send(store: FeatureStore, address: str) -> None:
    """Upload with a progress bar."""
    from pipelines.process.progress import progress_bar

    nbytes = Receipt.from_store(store).nbytes
    typer.echo(f"sending {nbytes / 1e9:.3g} GB to {address}")
    with progress_bar("upload", nbytes, "bytes") as progress:
        upload(store, address, progress)


def _remove(folder: Path) -> None:
    """Remove a folder atomically: others see all of it, or nothing."""
    removed = folder.with_name(f"{folder.name}.removed")
    discard(removed)
    os.rename(folder, removed)
    discard(removed)


def write_check(
    receipt: Path,
    store: FeatureStore,
    checks: "Sequence[tuple[FeatureStore, SampleCheck]]",
    device: str,
    devices: Mapping[int, Mapping[str, Any]],
) -> None:
    """Write which versions extracted a set, or compared a sample of it, on which device, and with which result.

    It goes into receipts/NAME.check.json: the receipt itself describes the set, and stays as it is.

    Args:
        receipt: of the set.
        checks: of the set itself, or of sets whose arrays it took over; empty if everything was extracted now.
        device: kind of that of this process.
        devices: what computed each unit, as far as this process knows.
    """
    content: dict[str, Any] = {
        "key": store.spec.key,
        "versions": versions_of(PACKAGES),
        "device": device,
        **({"units": _units_by_model(devices)} if devices else {}),
        "compared": [{"key": compared.spec.key, **check.to_dict()} for compared, check in checks],
    }
    write_file(receipt.with_name(f"{receipt.stem}{CHECK}"), [(json.dumps(content, indent=1) + "\n").encode()])


def _units_by_model(devices: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Units of each model of device, as ranges: 0-6,9."""
    by_model: dict[str, list[list[int]]] = {}
    for unit in sorted(devices):
        ranges = by_model.setdefault(str(devices[unit].get("device")), [])
        if ranges and ranges[-1][-1] == unit - 1:
            ranges[-1][1:] = [unit]
        else:
            ranges.append([unit])
    return {model: ",".join("-".join(map(str, ends)) for ends in by_model[model]) for model in sorted(by_model)}
