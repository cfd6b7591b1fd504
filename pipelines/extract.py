"""`beyondcls extract`: images through a frozen encoder into a feature set."""

import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.params import check_names, given, integers, read_params, section

RUN = ("device", "existing", "task_id", "n_tasks", "progress", "warn")  # belong to a run, not to params.yaml
TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def main(
    encoder: Annotated[str, typer.Option(help="name in the registry, in params.yaml, or of any ViT of timm")],
    data: Annotated[
        str,
        typer.Option(
            help="WebDataset tars (path, s3:// or https:// address, pattern, braces, folder of tars, pipe:COMMAND), "
            "a folder of class folders, a .csv, or the folder of a published data set"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the feature set")],
    params: Annotated[
        Path | None, typer.Option(help="take encoders.NAME and extract from this file; options given here win")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="local weights (.safetensors or torch), loaded strictly")] = None,
    model: Annotated[str | None, typer.Option(help="timm architecture, if --encoder is a name of your own")] = None,
    random_seed: Annotated[int | None, typer.Option(help="random weights from this seed: the untrained twin")] = None,
    weights: Annotated[str | None, typer.Option(help="digest that the weights must have")] = None,
    form: Annotated[str | None, typer.Option(help="tars, folder, csv, imagenet, …; seen from the data by default")] = None,
    split: Annotated[str | None, typer.Option(help="split of a published data set, e.g. train")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="file of class names, one a line; classes.txt beside tars by default")
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option(help="blocks whose tokens are kept, e.g. 3,-1; negative from the end  [default: as the encoder is read]"),
    ] = None,
    statistics: Annotated[
        str | None, typer.Option(help="attention statistics: all, none, or names with commas  [default: all]")
    ] = None,
    maps: Annotated[bool | None, typer.Option(help="keep the last block's attention maps  [default: maps]")] = None,
    views: Annotated[
        int | None, typer.Option(min=1, help="of each image: the evaluation crop, and random crops beside it  [default: 1]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="of stored tokens: float32, float16, bfloat16, float8_e4m3, int8, int4  [default: float16]"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="images per forward pass  [default: 128]")] = None,
    shard_rows: Annotated[
        int | None, typer.Option(help="images per shard file, a multiple of 32  [default: as suits the set]")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="threads that decode images  [default: 4]")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    amp: Annotated[str, typer.Option(help="what a GPU multiplies matrices in: bf16, fp16, or none (float32)")] = "none",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="images and weights with channels last")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="through torch.compile")] = False,
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
    extend: Annotated[
        bool, typer.Option("--extend", help="add these blocks, statistics, maps or images to the feature set that is there")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="compute again what of the feature set is damaged, and only that")
    ] = False,
) -> None:
    """Stage one: run a frozen ViT once over images and keep its tokens, attention statistics and maps.

    An interrupted run goes on where it stopped when the same command is given again. Several processes share the work with
    --task-id and --n-tasks (a job array, a plain loop), or under torchrun; the last to finish puts the set in its place.
    """
    from extract.allocator import keep_freed_memory
    from extract.datasets import open_images
    from extract.encoders import load_encoder
    from extract.run import extract
    from pipelines.device import choose_device
    from pipelines.progress import progress_bar
    from store import BeyondClsError

    loading: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if params is not None:
        values = read_params(params)
        loading, options = section(values, "encoders", encoder), section(values, "extract")
        check_names(f"encoders.{encoder}", loading, list(inspect.signature(load_encoder).parameters))
        check_names(
            "extract",
            options,
            [n for n in inspect.signature(extract).parameters if n not in RUN],
        )
    loading |= given(checkpoint=checkpoint, model=model, random_seed=random_seed, weights=weights)
    options |= given(maps=maps, views=views, dtype=dtype, batch_size=batch_size, shard_rows=shard_rows, workers=workers)
    if blocks is not None:
        options["blocks"] = integers("--blocks", blocks)
    if statistics is not None:
        options["statistics"] = {"all": None, "none": ()}.get(statistics, tuple(statistics.split(",")))
    if on_error not in ("raise", "record"):
        raise BeyondClsError(f"--on-error is {on_error!r}, expected raise or record")
    if extend and repair:
        raise BeyondClsError("--extend and --repair exclude each other: repair first, then extend")
    options["existing"] = "extend" if extend else "repair" if repair else "refuse"
    # Under torchrun each process is a task, with a GPU of its own.
    rank, world, local = (int(os.environ.get(name, default)) for name, default in TORCHRUN)
    options |= {"task_id": rank if task_id is None else task_id, "n_tasks": world if n_tasks is None else n_tasks}
    images = open_images(data, form, classes, split)
    frozen = load_encoder(encoder, **loading)
    place = choose_device(f"cuda:{local}" if device == "cuda" and world > 1 else device)
    frozen.run_with(amp=amp, channels_last=channels_last, compile=compile)
    if place.type == "cpu":
        keep_freed_memory()
    typer.echo(f"{encoder}: {len(images):,} images of {data} on {place}")
    with progress_bar(encoder, len(images), "images") as progress:
        warn = lambda message: typer.echo(message, err=True)  # noqa: E731
        store = extract(frozen, images, out, **options, device=place, on_error=on_error, progress=progress, warn=warn)  # type: ignore[arg-type]
    if store is None:
        typer.echo(f"{out}: this task has nothing left to do; the set appears when the tasks that still run have finished")
        return
    invalid = store.attributes["invalid"]
    for note in invalid[:10]:
        typer.echo(f"invalid row {note['row']}: {note['problem']}")
    lost = f", {len(invalid)} of them invalid (listed in zarr.json)" if invalid else ""
    typer.echo(f"{out}: {len(store):,} images{lost}, {', '.join(store.kinds)}, key {store.spec.key}")
