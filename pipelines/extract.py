"""`beyondcls extract`: images through a frozen encoder into a feature set."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pipelines import extraction as of
from pipelines.params import given
from pipelines.places import Places, open_features, receipt_of
from pipelines.publish import destination, publish, refuse_changes

TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def main(
    encoder: of.Name,
    data: of.Data,
    out: of.Out,
    params: of.Params = None,
    receipt: of.Receipt = None,
    checkpoint: Annotated[Path | None, typer.Option(help="local weights (.safetensors or torch), loaded strictly")] = None,
    model: of.Model = None,
    random_seed: Annotated[int | None, typer.Option(help="random weights from this seed: the untrained twin")] = None,
    weights: Annotated[str | None, typer.Option(help="digest that the weights must have")] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="how weights of your own were trained: masked image modelling, joint embedding, labels or untrained; the "
            "report compares encoders by it  [default: as the name says, if it is one of the registry]"
        ),
    ] = None,
    mean: of.Mean = None,
    std: of.Std = None,
    crop_pct: of.CropPct = None,
    crop_mode: of.CropMode = None,
    interpolation: of.Interpolation = None,
    input_size: of.InputSize = None,
    form: of.Form = None,
    split: of.Split = None,
    classes: of.Classes = None,
    blocks: of.Blocks = None,
    statistics: of.Statistics = None,
    maps: of.Maps = None,
    views: of.NViews = None,
    dtype: of.Dtype = None,
    batch_size: of.BatchSize = None,
    shard_rows: of.ShardRows = None,
    workers: of.Workers = None,
    device: of.Device = "auto",
    amp: of.Amp = "none",
    channels_last: of.ChannelsLast = False,
    compile: of.Compile = False,
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
            help="let this set take the place of the one that is there, taking over what both have; as `dvc repro` does",
        ),
    ] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="add these blocks, statistics, maps or images to the feature set that is there")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="compute again what of the feature set is damaged, and only that")
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
) -> None:
    """Stage one: run a frozen ViT once over images and keep its tokens, attention statistics and maps.

    An interrupted run goes on where it stopped when the same command is given again. Several processes share the work with
    --task-id and --n-tasks (a job array, a plain loop), or under torchrun; the last to finish puts the set in its place.
    `beyondcls plan` says beforehand how long it takes and how much it writes.

    A set that is there already is not extracted again. A few images of each of its shards are computed again and compared: if
    they agree, within what its codec rounds, it stays, whatever code or version of torch made it; if not, nothing is touched,
    and the worst difference is named. What was compared stands in NAME.check.json beside the receipt.

    If the parameter file has a store.root, or else your own configuration (~/.config/beyondcls.toml), the set goes there, as
    NAME-KEY; --out gets a stub, and receipts/NAME.json says what the set must be. A set that is there, under this name or one
    that another project gave it, counts as one that is there already.
    """
    from extract.datasets import open_images
    from extract.encoders import load_encoder
    from extract.requests import possible_statistics
    from extract.run import extract
    from pipelines.allocator import keep_freed_memory
    from pipelines.checks import Checks, write_check
    from pipelines.device import choose_device
    from pipelines.progress import progress_bar
    from store import BeyondClsError
    from store.format.stub import is_stub

    loading, options = of.from_params(params, encoder, load_encoder, extract)
    loading |= given(checkpoint=checkpoint, model=model, random_seed=random_seed, weights=weights, family=family)
    loading |= of.as_transform(
        mean, std, crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation, input_size=input_size
    )
    options |= of.as_arguments(
        blocks,
        statistics,
        maps=maps,
        views=views,
        dtype=dtype,
        batch_size=batch_size,
        shard_rows=shard_rows,
        workers=workers,
    )
    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    modes = [name for name, given in (("update", update), ("extend", extend), ("repair", repair)) if given]
    if len(modes) > 1:
        raise BeyondClsError(f"--{modes[0]} and --{modes[1]} exclude each other; repair first, then extend or update")
    options["existing"] = modes[0] if modes else "refuse"
    options["recompute"] = recompute or of.recomputes(params, encoder)
    places = Places.of(params)
    if places.root is not None and (extend or repair):
        refuse_changes(places, out, "--extend" if extend else "--repair")
        places = Places()  # the set that is here is changed, and stays here
    if places.root is None and is_stub(out) and not update:
        raise BeyondClsError(f"{out} is a stub: its arrays are at a store.root; name that with --params, or remove {out} first")
    target = out if places.root is None else destination(places, out)
    # Under torchrun each process is a task, with a GPU of its own.
    rank, world, local = (int(os.environ.get(name, default)) for name, default in TORCHRUN)
    options |= {"task_id": rank if task_id is None else task_id, "n_tasks": world if n_tasks is None else n_tasks}
    images = open_images(data, form, classes, split)
    frozen = load_encoder(encoder, **loading)
    if statistics is None:  # those of the parameter file are for all encoders
        options["statistics"] = possible_statistics(frozen, options.get("statistics"))
    place = choose_device(f"cuda:{local}" if device == "cuda" and world > 1 else device)
    frozen.run_with(amp=amp, channels_last=channels_last, compile=compile)
    if place.type == "cpu":
        keep_freed_memory()
    typer.echo(f"{encoder}: {len(images):,} images of {data} on {place}")
    if frozen.cls_caution:
        typer.echo(f"note: {encoder}: {frozen.cls_caution}", err=True)
    checks: Checks = []
    options |= {"checked": lambda *compared: checks.append(compared), "source": source and open_features(source, params)}
    if update and places.root is not None and is_stub(out):
        options["older"] = open_features(out, params)
    with progress_bar(encoder, len(images), "images") as progress:
        warn = lambda message: typer.echo(message, err=True)  # noqa: E731
        store = extract(frozen, images, target, **options, device=place, on_error=on_error, progress=progress, warn=warn)  # type: ignore[arg-type]
    for compared, check in checks:
        typer.echo(f"{compared.where}: not computed again, {check.described}")
    if store is None:
        typer.echo(f"{out}: this task has nothing left to do; the set appears when the tasks that still run have finished")
        return
    if places.root is not None or receipt is not None:
        store = publish(store, places, out, receipt)
        if store is None:
            typer.echo(f"{out}: another task puts it in its place")
            return
        write_check(receipt or receipt_of(out), store, checks, place)
    invalid = store.attributes["invalid"]
    for note in invalid[:10]:
        typer.echo(f"invalid row {note['row']}: {note['problem']}")
    lost = f", {len(invalid)} of them invalid (listed in zarr.json)" if invalid else ""
    where = "" if places.root is None else f" at {store.where}"
    typer.echo(f"{out}: {len(store):,} images{lost}, {', '.join(store.kinds)}, key {store.spec.key}{where}")
