"""`beyondcls plan`: the cost of an extraction, or of a whole project, in bytes and hours, and when it pays off."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import flag_of, select_options, takes_options
from pipelines.planning.gpus import GPUS, gpu_of
from pipelines.store.table import size
from store import BeyondClsError
from store.errors import unknown

if TYPE_CHECKING:
    from extract.plan import Plan
    from extract.requests import Request

FEATURES_OF_A_PROJECT = Path("features")  # where dvc.yaml puts them
EPOCHS, HEADS = 90, 9


@takes_options(
    extraction.CHECKPOINT,
    extraction.MODEL,
    extraction.TRANSFORM,
    extraction.IMAGES,
    extraction.FEATURES,
    extraction.RUNNING,
    extraction.COMPUTING,
)
def main(
    encoder: Annotated[
        str | None,
        typer.Option(
            help="name in the registry, in params.yaml, or of any ViT of timm  [default: plan all that --params asks for]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the feature set; of a project the folder of all  [default: features]")
    ] = None,
    data: extraction.Data = None,
    dataset: extraction.Dataset = None,
    params: extraction.Params = None,
    device: extraction.Device = "auto",
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="images to measure, of each encoder  [default: 4 batches; of a project 8, or 128 on a GPU]"),
    ] = None,
    n_tasks: Annotated[int, typer.Option(min=1, help="processes that would share an extraction, on as many machines")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="of each head that will be probed  [default: 90]")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="that will be probed: aggregators x settings x seeds  [default: 9]")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="GPU whose ceilings are said, as its data sheet gives them: "
            f"{', '.join(GPUS)}  [default: that of --device, else a100 for a project]"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="of a project: also write all numbers into this file")] = None,
    **given: Any,
) -> None:
    """Say in advance what `beyondcls extract` with the same options writes and how long it takes on this machine.

    A few batches are extracted beside --out and removed again. Weights don't matter for it: without a checkpoint that is here,
    random ones are used, and nothing is fetched.

    With --params and without --encoder it plans the whole project that the file describes: every encoder is measured on a few
    images, every head on a few random tokens; then images, epochs and bytes are counted, stage by stage. Data sets that are not
    there have their published sizes, and stand-in images.

    Decoding and the disk are measured on this machine. What a GPU adds, --gpu says from its data sheet before there is one:
    the ceilings of PCIe, of its arithmetic and of its memory, and which of all binds.
    """
    if gpu is not None and gpu not in GPUS:
        raise BeyondClsError(unknown("GPU", gpu, list(GPUS)))
    if encoder is None:
        _check_project(params, {"data": data, "dataset": dataset, "epochs": epochs, "heads": heads, **given})
        from pipelines.planning.measuring import plan_project

        assert params is not None
        plan_project(params, out or FEATURES_OF_A_PROJECT, given, device, sample, n_tasks, gpu, json, typer.echo)
        return
    if out is None:
        raise BeyondClsError(f"no folder was named for {encoder}; give --out, e.g. --out features/{encoder}")
    if json is not None:
        raise BeyondClsError(f"--json {json} is for a whole project; leave out --encoder {encoder}, or --json")
    planned, request = _measure(encoder, out, data, dataset, params, device, sample, given)
    from extract.plan import existing_folder

    folder = existing_folder(out)
    for line in described(planned, shutil.disk_usage(folder).free, n_tasks, epochs or EPOCHS, heads or HEADS):
        typer.echo(line)
    place = request.encoder.device
    if gpu is not None or place.type == "cuda":
        typer.echo(_ceilings(request, planned.decoded_per_s, folder, gpu or gpu_of(place)))


def _check_project(params: Path | None, given: Mapping[str, Any]) -> None:
    """Refuse to plan a project without its file, or with options of a single extraction.

    Raises:
        BeyondClsError: names what to give, or to leave out.
    """
    if params is None:
        raise BeyondClsError(
            "there is nothing to plan; give --encoder NAME, --data and --out for one extraction, or --params FILE, e.g. "
            "--params params.yaml, for a whole project"
        )
    of_encoder = (*extraction.CHECKPOINT, *extraction.MODEL, *extraction.TRANSFORM)
    single = ("data", "dataset", "epochs", "heads", *of_encoder, *extraction.IMAGES)
    for name in single:
        if given.get(name) is not None:
            raise BeyondClsError(
                f"{flag_of(name)} {given[name]} is of one extraction; name it with --encoder, or leave this out: {params} says "
                "it for a whole project"
            )


def _measure(
    encoder: str,
    out: Path,
    data: str | None,
    dataset: str | None,
    params: Path | None,
    device: str,
    sample: int | None,
    given: dict[str, Any],
) -> "tuple[Plan, Request]":
    """Measure one extraction."""
    from extract.datasets import open_images
    from extract.plan import plan
    from pipelines.parameters.requested import notes_on, place_encoder, request_features, requested_images
    from pipelines.planning.encoders import load_unfetched
    from pipelines.process.progress import progress_bar

    loading, options = extraction.from_params(params, encoder, dataset, given.get("split"))
    options |= select_options(given, extraction.EXTRACTING)
    loading |= select_options(given, (*extraction.CHECKPOINT, *extraction.MODEL, *extraction.TRANSFORM))
    source_of_images, opening = requested_images(encoder, data, dataset, params, given)
    images = open_images(source_of_images, **opening, bars=progress_bar)
    frozen = load_unfetched(encoder, loading)
    place = place_encoder(frozen, options, device)
    request, running = request_features(frozen, images, options, "statistics" not in given)
    for note in notes_on(images):
        typer.echo(note, err=True)
    typer.echo(f"measuring {encoder} on {place} …")
    return plan(request, out, n_sampled=sample, **running), request


def _ceilings(request: "Request", decoded_per_s: float, folder: Path, gpu: str) -> str:
    """What binds with a GPU, in a line."""
    from extract.encoders.cost import cost_of
    from extract.plan import stored_nbytes
    from pipelines.planning.ceilings import Demand, ceilings_line
    from pipelines.planning.disk import measure_disk

    input_size = request.encoder.config["input_size"]
    demand = Demand(cost_of(request.encoder.model, input_size), input_size, sum(stored_nbytes(request).values()))
    return f"binds       {ceilings_line(demand, GPUS[gpu], decoded_per_s, measure_disk(folder)[0])}"


def described(plan: "Plan", free: int, n_tasks: int, epochs: int, heads: int) -> list[str]:
    """A plan in words; `free`: free bytes on the disk."""
    total = sum(plan.nbytes.values())
    views = f", {plan.n_views} views each" if plan.n_views > 1 else ""
    kinds = ", ".join(f"{kind} {size(n)}" for kind, n in plan.nbytes.items() if n > total / 1000)
    lines = [
        f"images      {plan.n_images:,}{views}",
        f"writes      {size(total)} in {plan.n_shards:,} files ({kinds}); {size(free)} are free",
    ]
    if total > free:
        lines.append(f"            that is {size(total - free)} too much: choose another disk, --dtype int8, or fewer --views")
    shared = f" with {n_tasks} tasks on as many machines like this one" if n_tasks > 1 else ""
    lines += [
        f"takes       {seconds_in_words(plan.seconds / n_tasks)}{shared}, at {plan.images_per_s:,.0f} images/s "
        f"(by {plan.n_sampled:,} images; decoding alone {plan.decoded_per_s:,.0f}, "
        f"the encoder alone {plan.encoded_per_s:,.0f} crops/s)",
        f"an epoch    {seconds_in_words(plan.seconds_without_cache)} through the encoder, "
        f"{seconds_in_words(plan.seconds_with_cache)} from the features",
    ]
    seconds_without = plan.seconds_without_cache * epochs * heads
    if plan.pays_after is None:
        lines.append("pays        never: reading takes longer than running the encoder again; --dtype int8 halves what is read")
    else:
        # A grid of heads is trained in one pass over the features.
        seconds_cached = plan.seconds / n_tasks + plan.seconds_with_cache * epochs
        lines.append(
            f"pays        after {plan.pays_after:.1f} epochs of one head; {heads} heads of {epochs} epochs take "
            f"{seconds_in_words(seconds_without)} through the encoder, one after the other, and "
            f"{seconds_in_words(seconds_cached)} from the features"
        )
    return lines


def seconds_in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.4 hours`, `12 days`."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 6000), ("hours", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / length:.2g} {unit}" if seconds < 10 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
