"""`beyondcls extract`: images through a frozen encoder into a feature set."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.engine import ENGINE
from pipelines.parameters.options import select_options, takes_options
from pipelines.sharing.places import Places, open_features, receipt_of
from pipelines.sharing.publish import destination, publish, refuse_changes, write_check
from store import BeyondClsError
from store.format.unfinished import is_stub

if TYPE_CHECKING:
    from extract.datasets import ImageSet
    from extract.requests import Request
    from extract.sample import SampleCheck
    from extract.writing import Settings
    from store import FeatureStore

TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


@takes_options(
    extraction.LOADING,
    extraction.FAMILY,
    extraction.TRANSFORM,
    extraction.IMAGES,
    extraction.FEATURES,
    extraction.RUNNING,
    extraction.COMPUTING,
    ENGINE,
)
def main(
    encoder: extraction.Name,
    out: extraction.Out,
    data: extraction.Data = None,
    dataset: extraction.Dataset = None,
    params: extraction.Params = None,
    receipt: extraction.Receipt = None,
    device: extraction.Device = "auto",
    task_id: Annotated[
        int | None, typer.Option(min=0, help="which of --n-tasks processes this is  [default: 0; under torchrun its rank]")
    ] = None,
    n_tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="processes that write the set together: to a file system or an object store in common  [default: 1]"
        ),
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
        bool, typer.Option("--extend", help="add these blocks, statistics, maps, truths or images to the set that is there")
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
    script: Annotated[Path | None, typer.Option(help="with --on slurm: write the script for sbatch here, and end")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --on slurm: print the script for sbatch, and end")] = False,
    join: Annotated[Path | None, typer.Option(hidden=True, help="where the set is staged of which this computes units")] = None,
    **given: Any,
) -> None:
    """Stage one: run a frozen ViT once over images and keep its tokens, attention statistics and maps.

    An interrupted run goes on where it stopped when the same command is given again. --on starts tasks that share the work:
    processes of this machine, a Slurm job array, or tasks of a Ray cluster. Those that were started in another way share
    it with --task-id and --n-tasks, or under torchrun; one of them puts the set in its place. They need --out
    on a file system in common, or a store.root in an object store, to which each writes its shards.
    `beyondcls plan` says in advance how long it takes and how much it writes.

    A set that already exists is not extracted again. A few images of each of its shards are computed again and compared: if
    they agree, within the rounding of its codec, it stays, no matter which code or version of torch made it; if not, nothing
    is changed, and the worst difference is reported. NAME.check.json beside the receipt says what was compared.

    If the parameter file has a store.root, or else your own configuration (~/.config/beyondcls.toml), the set goes there, as
    NAME-KEY; --out gets a stub, and receipts/NAME.json describes the set. A set that is already there, under this name or one
    that another project gave it, is not extracted again either.
    """
    from extract.datasets import open_images
    from extract.encoders import load_encoder
    from extract.encoders.encoder import AMP_OF
    from extract.writing import Settings
    from pipelines.engines import choose_engine
    from pipelines.engines.engine import Watch, has_all, sharing
    from pipelines.engines.slurm import submit
    from pipelines.parameters.engine import without_engine
    from pipelines.parameters.requested import notes_on, place_encoder, request_features, requested_images
    from pipelines.process.progress import progress_bar
    from pipelines.process.tasks import TO_BE_CONTINUED, is_task, stops_at_signal

    if join is not None and has_all(join):
        return
    loading, options = extraction.from_params(params, encoder, dataset, given)
    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    verb = _verb(update, extend, repair, source)
    places = _places(params, out, verb)
    is_one = task_id is not None or n_tasks is not None or is_task()  # of several that share the set
    engine = choose_engine(options, select_options(given, ENGINE), device, is_one)
    if submit(engine, verb, out, places.root, script, dry_run, typer.echo):
        return
    stops = stops_at_signal()
    source_of_images, opening = requested_images(encoder, data, dataset, params, given)
    images = open_images(source_of_images, **opening, bars=progress_bar)
    frozen = load_encoder(encoder, **loading)
    place = place_encoder(frozen, options, _device_of_this_task(device), out)
    request, running = request_features(frozen, images, options, "statistics" not in given)
    rows, columns = frozen.grid
    seen = f"at {' x '.join(map(str, frozen.config['input_size'][-2:]))} pixels, {rows * columns:,} patches each"
    where = f"on {place}" if place.type == "cpu" else f"on {place} in {frozen.compute_dtype}"
    typer.echo(f"{encoder}: {len(images):,} images of {source_of_images}, {seen}, {where}")
    for note in notes_on(images):
        typer.echo(note, err=True)
    _say_classes(images)
    if frozen.cls_caution:
        typer.echo(f"note: {frozen.name}: {frozen.cls_caution}", err=True)
    # Tasks may have another device than this process, but compute the same set.
    amp = [] if "amp" in given else ["--amp", AMP_OF[frozen.compute_dtype]]
    checks: "list[tuple[FeatureStore, SampleCheck]]" = []
    devices: dict[int, Mapping[str, Any]] = {}
    with progress_bar(encoder, len(images), "images") as progress:
        watch = Watch(progress, lambda message: typer.echo(message, err=True), stops)
        settings = Settings(
            **running | _task(task_id, n_tasks),
            on_error=on_error,  # type: ignore[arg-type]
            recompute=recompute or extraction.recomputes(params, encoder),
            joins=join,
            engine=sharing(engine, out, [*without_engine(sys.argv[1:]), *amp], watch, typer.echo),
            stops=stops,
            progress=progress,
            warn=watch.warn,
            spent=lambda spent: typer.echo(str(spent), err=True) if spent.is_telling else None,  # where more speed would help
            checked=lambda *compared: checks.append(compared),
            devices=devices.update,
        )
        store = _extract(
            request, out, places, verb, settings, _sources(source, out, params, update and places.root is not None)
        )
    for compared, check in checks:
        typer.echo(f"{compared.where}: not computed again, {check.described}")
    if store is None:
        if stops():
            typer.echo(f"{out}: stopped after a whole shard (SIGUSR1); the same command goes on", err=True)
            raise typer.Exit(TO_BE_CONTINUED)
        return
    if places.root is not None or receipt is not None:
        store = publish(store, places, out, receipt)
        if store is not None:
            write_check(receipt or receipt_of(out), store, checks, place.type, devices)
    _report(store, out, places.root is not None)


def _task(task_id: int | None, n_tasks: int | None) -> dict[str, int]:
    """The number of this process among those that share the set, and theirs; under torchrun each process is one of them."""
    rank, world = (int(os.environ.get(name, default)) for name, default in TORCHRUN[:2])
    return {"task_id": rank if task_id is None else task_id, "n_tasks": world if n_tasks is None else n_tasks}


def _device_of_this_task(device: str) -> str:
    """The device that was asked for; under torchrun the GPU of this process."""
    _, world, local = (int(os.environ.get(name, default)) for name, default in TORCHRUN)
    return f"cuda:{local}" if device == "cuda" and world > 1 else device


def _say_classes(images: "ImageSet") -> None:
    """Print the classes, and what makes them look like something else."""
    from extract.datasets.classes import caution_on_classes, classes_in_words

    typer.echo(classes_in_words(images.class_counts, are_named=images.classes is not None))
    if not images.multilabel and (caution := caution_on_classes(images.class_counts)):
        typer.echo(f"note: {caution}", err=True)


def _sources(source: str | None, out: Path, params: Path | None, replaces_stub: bool) -> "dict[str, FeatureStore | None]":
    """Sets from which features are taken over, as the functions of `extract.run` take them."""
    sources = {"source": open_features(source, params) if source else None}
    if replaces_stub and is_stub(out):
        sources["older"] = open_features(out, params)
    return sources


def _verb(update: bool, extend: bool, repair: bool, source: str | None) -> str:
    """What to do with the set that is there: a function of `extract.run`."""
    if repair and source:
        raise BeyondClsError("--repair computes what is damaged again, from the images; leave out --from")
    requested = {"update": update, "extend": extend, "repair": repair}
    verbs = [verb for verb, given in requested.items() if given]
    if len(verbs) > 1:
        raise BeyondClsError(f"--{verbs[0]} and --{verbs[1]} exclude each other; repair first, then extend or update")
    return verbs[0] if verbs else "create"


def _places(params: Path | None, out: Path, verb: str) -> Places:
    """Where the set goes."""
    places = Places.from_params(params)
    if places.root is not None and verb in ("extend", "repair"):
        refuse_changes(places, out, f"--{verb}")
        places = Places()  # the set that is here is changed, and stays here
    if places.root is None and is_stub(out) and verb != "update":
        raise BeyondClsError(f"{out} is a stub: its arrays are at a store.root; name that with --params, or remove {out} first")
    return places


def _extract(
    request: "Request", out: Path, places: Places, verb: str, settings: "Settings", sources: "Mapping[str, FeatureStore | None]"
) -> "FeatureStore | None":
    """The set, at `out` or at the root, as the functions of `extract.run` return it."""
    from extract import run
    from pipelines.engines.engine import joined_out

    if verb == "repair":
        return run.repair(request, out, settings)
    if verb == "extend":
        return run.extend(request, out, settings, source=sources["source"])
    # What takes over another set's shards, and an engine's tasks, write to a folder first.
    needs_folder = settings.engine is not None or any(store is not None for store in sources.values())
    if settings.joins is not None:
        place: Path | str | FeatureStore = joined_out(settings.joins)
    else:
        place = out if places.root is None else destination(places, out, request.spec.key, needs_folder)
    if isinstance(place, str):
        return run.create_at(request, place, settings)
    if not isinstance(place, Path):
        return run.confirm(request, place, settings)
    write = run.update if verb == "update" else run.create
    return write(request, place, settings, **sources, shared=places.root is not None)


def _report(store: "FeatureStore | None", out: Path, is_at_root: bool) -> None:
    """Print what was written, if this process has put it in its place, and which images could not be read."""
    if store is None:
        typer.echo(f"{out}: another task puts it in its place")
        return
    invalid = store.attributes["invalid"]
    for note in invalid[:10]:
        typer.echo(f"invalid row {note['row']}: {note['problem']}")
    invalid_note = f", {len(invalid)} of them invalid (listed in zarr.json)" if invalid else ""
    location = f" at {store.where}" if is_at_root else ""
    typer.echo(f"{out}: {len(store):,} images{invalid_note}, {', '.join(store.kinds)}, key {store.spec.key}{location}")
