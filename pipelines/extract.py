"""`beyondcls extract`: images through a frozen encoder into a feature set."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import extraction
from pipelines.options import select_options, takes_options
from pipelines.places import Places, open_features, receipt_of
from pipelines.publish import destination, publish, refuse_changes
from store.format.stub import is_stub

if TYPE_CHECKING:
    import torch

    from extract.encoders import Encoder
    from extract.existing import Existing
    from store import FeatureStore

TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


@takes_options(
    extraction.LOADING,
    extraction.FAMILY,
    extraction.TRANSFORM,
    extraction.IMAGES,
    extraction.FEATURES,
    extraction.COMPUTING,
)
def main(
    encoder: extraction.Name,
    data: extraction.Data,
    out: extraction.Out,
    params: extraction.Params = None,
    receipt: extraction.Receipt = None,
    device: extraction.Device = "auto",
    task_id: Annotated[
        int | None, typer.Option(min=0, help="which of --n-tasks processes this is  [default: 0; under torchrun its rank]")
    ] = None,
    n_tasks: Annotated[
        int | None,
        typer.Option(min=1, help="processes that write the set together, on machines with a common file system  [default: 1]"),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="damaged or unlabelled images: raise, or record them as invalid rows")
    ] = "raise",
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="replace the set that is there, taking over what both have; as `dvc repro` does",
        ),
    ] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="add these blocks, statistics, maps or images to the feature set that is there")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="compute the damaged parts of the feature set again, and only those")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="another feature set of this encoder (folder, receipt or address), whose images, blocks, statistics, maps and "
            "views are taken over; only what it lacks is computed",
        ),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="extract again what a sample shows to differ, instead of stopping")
    ] = False,
    **given: Any,
) -> None:
    """Stage one: run a frozen ViT once over images and keep its tokens, attention statistics and maps.

    An interrupted run goes on where it stopped when the same command is given again. Several processes share the work with
    --task-id and --n-tasks (a job array, a plain loop), or under torchrun; the last to finish puts the set in its place.
    `beyondcls plan` says in advance how long it takes and how much it writes.

    A set that already exists is not extracted again. A few images of each of its shards are computed again and compared: if
    they agree, within the rounding of its codec, it stays, no matter which code or version of torch made it; if not, nothing
    is changed, and the worst difference is reported. NAME.check.json beside the receipt says what was compared.

    If the parameter file has a store.root, or else your own configuration (~/.config/beyondcls.toml), the set goes there, as
    NAME-KEY; --out gets a stub, and receipts/NAME.json describes the set. A set that is already there, under this name or one
    that another project gave it, is not extracted again either.
    """
    from extract.datasets import open_images
    from extract.requests import possible_statistics
    from extract.run import extract
    from pipelines.checks import Checks, write_check
    from pipelines.progress import progress_bar
    from store import BeyondClsError

    loading, options = extraction.from_params(params, encoder)
    options |= select_options(given, extraction.FEATURES)
    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    options["existing"] = _existing(update, extend, repair)
    options["recompute"] = recompute or extraction.recomputes(params, encoder)
    places = _places(params, out, options["existing"])
    # Under torchrun each process is a task, with its own GPU.
    rank, world, local = (int(os.environ.get(name, default)) for name, default in TORCHRUN)
    options |= {"task_id": rank if task_id is None else task_id, "n_tasks": world if n_tasks is None else n_tasks}
    images = open_images(data, **select_options(given, extraction.IMAGES))
    loading |= select_options(given, (*extraction.LOADING, *extraction.FAMILY, *extraction.TRANSFORM))
    frozen, place = _loaded(encoder, loading, given, f"cuda:{local}" if device == "cuda" and world > 1 else device)
    if "statistics" not in given:  # the parameter file lists them for all encoders
        options["statistics"] = possible_statistics(frozen, options.get("statistics"))
    typer.echo(f"{encoder}: {len(images):,} images of {data} on {place}")
    if frozen.cls_caution:
        typer.echo(f"note: {encoder}: {frozen.cls_caution}", err=True)
    checks: Checks = []
    options |= {"checked": lambda *compared: checks.append(compared), "source": source and open_features(source, params)}
    if update and places.root is not None and is_stub(out):
        options["older"] = open_features(out, params)
    target = out if places.root is None else destination(places, out)
    with progress_bar(encoder, len(images), "images") as progress:
        warn = lambda message: typer.echo(message, err=True)  # noqa: E731
        store = extract(frozen, images, target, **options, device=place, on_error=on_error, progress=progress, warn=warn)  # type: ignore[arg-type]
    for compared, check in checks:
        typer.echo(f"{compared.where}: not computed again, {check.described}")
    if store is None:
        typer.echo(f"{out}: this task has nothing left to do; the set appears when the running tasks have finished")
        return
    if places.root is not None or receipt is not None:
        store = publish(store, places, out, receipt)
        if store is None:
            typer.echo(f"{out}: another task puts it in its place")
            return
        write_check(receipt or receipt_of(out), store, checks, place)
    _report(store, out, "" if places.root is None else f" at {store.where}")


def _existing(update: bool, extend: bool, repair: bool) -> "Existing":
    """What to do with the set that is there.

    Raises:
        BeyondClsError: two modes were given.
    """
    from store import BeyondClsError

    requested: dict[Existing, bool] = {"update": update, "extend": extend, "repair": repair}
    modes = [mode for mode, given in requested.items() if given]
    if len(modes) > 1:
        raise BeyondClsError(f"--{modes[0]} and --{modes[1]} exclude each other; repair first, then extend or update")
    return modes[0] if modes else "refuse"


def _places(params: Path | None, out: Path, existing: "Existing") -> Places:
    """Where the set goes.

    Raises:
        BeyondClsError: the set at `out` cannot be changed there.
    """
    from store import BeyondClsError

    places = Places.from_params(params)
    if places.root is not None and existing in ("extend", "repair"):
        refuse_changes(places, out, f"--{existing}")
        places = Places()  # the set that is here is changed, and stays here
    if places.root is None and is_stub(out) and existing != "update":
        raise BeyondClsError(f"{out} is a stub: its arrays are at a store.root; name that with --params, or remove {out} first")
    return places


def _loaded(name: str, loading: Mapping[str, Any], given: Mapping[str, Any], device: str) -> "tuple[Encoder, torch.device]":
    """The encoder, ready to run, and its device."""
    from extract.encoders import load_encoder
    from pipelines.allocator import keep_freed_memory
    from pipelines.device import choose_device

    frozen = load_encoder(name, **loading)
    place = choose_device(device)
    frozen.run_with(**select_options(given, extraction.COMPUTING))
    if place.type == "cpu":
        keep_freed_memory()
    return frozen, place


def _report(store: "FeatureStore", out: Path, location: str) -> None:
    """Print what was written, and which images could not be read."""
    invalid = store.attributes["invalid"]
    for note in invalid[:10]:
        typer.echo(f"invalid row {note['row']}: {note['problem']}")
    invalid_note = f", {len(invalid)} of them invalid (listed in zarr.json)" if invalid else ""
    typer.echo(f"{out}: {len(store):,} images{invalid_note}, {', '.join(store.kinds)}, key {store.spec.key}{location}")
