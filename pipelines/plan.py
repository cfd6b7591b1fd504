"""`beyondcls plan`: the cost of an extraction, or of a whole project, in bytes and hours."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import flag_of, takes_options
from store import BeyondClsError
from store.errors import unknown


@takes_options(
    extraction.LOADING,
    extraction.FAMILY,
    extraction.TRANSFORM,
    extraction.IMAGES,
    extraction.FEATURES,
    extraction.RUNNING,
    extraction.COMPUTING,
)
def main(
    encoder: Annotated[
        str | None,
        typer.Option(help="as `extract` takes it  [default: plan all that --params asks for]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the feature set; of a project the folder of all  [default: features]")
    ] = None,
    data: extraction.Data = None,
    dataset: extraction.Dataset = None,
    params: extraction.Params = None,
    device: extraction.Device = "auto",
    seconds: Annotated[
        float, typer.Option(min=1, help="for which each encoder is measured; at least two images are extracted")
    ] = 20.0,
    n_tasks: Annotated[int, typer.Option(min=1, help="processes that would share an extraction, on as many machines")] = 1,
    gpu: Annotated[
        str, typer.Option(help="of a project: GPU by whose data sheet hours of the encoders are estimated, e.g. h100")
    ] = "a100",
    json: Annotated[Path | None, typer.Option(help="also write all numbers into this file")] = None,
    **given: Any,
) -> None:
    """Say in advance what `beyondcls extract` with the same options writes and how long it takes on this machine.

    Some of the images are extracted for --seconds next to --out and removed again. Weights don't matter for it: without a
    checkpoint that is here, random ones are used, and nothing is fetched.

    With --params and without --encoder it plans the whole project that the file describes: every encoder is measured so, every
    head on a few random tokens; then images, epochs and bytes are counted. Data sets that are not there have their published
    sizes, and stand-in images.
    """
    from pipelines.planning.project import GPUS, fits, in_words, plan_project, shared_by

    if gpu not in GPUS:
        raise BeyondClsError(unknown("GPU", gpu, list(GPUS)))
    if encoder is None:
        _refuse_options_of_one(params, {"data": data, "dataset": dataset, **given})
        assert params is not None
        plan_project(params, out or Path("features"), given, device, seconds, n_tasks, gpu, json)
        return
    if out is None:
        raise BeyondClsError(f"no folder was named for {encoder}; give --out, e.g. --out features/{encoder}")
    import torch

    from extract.datasets import open_images
    from extract.plan import measure, total_nbytes
    from pipelines.parameters.requested import notes_on, place_encoder, request_features, requested_images
    from pipelines.planning.encoders import load_unfetched
    from pipelines.process.progress import progress_bar
    from pipelines.store.table import size
    from store.places.disk import existing_folder

    loading, options = extraction.from_params(params, encoder, dataset, given)
    source_of_images, opening = requested_images(encoder, data, dataset, params, given)
    images = open_images(source_of_images, **opening, bars=progress_bar)
    frozen = load_unfetched(encoder, loading)
    place = place_encoder(frozen, options, device, out)
    request, running = request_features(frozen, images, options, "statistics" not in given)
    for note in notes_on(images):
        typer.echo(note, err=True)
    (nbytes, n_files), free = total_nbytes(request), shutil.disk_usage(existing_folder(out)).free
    rates, total = measure(request, out, seconds=seconds, bars=progress_bar, **running), sum(nbytes.values())
    takes = len(images) / rates.images_per_s / n_tasks
    kinds = ", ".join(f"{kind} {size(n)}" for kind, n in nbytes.items() if n > total / 1000)
    typer.echo(f"images      {len(images):,}{f', {request.n_views} views each' if request.n_views > 1 else ''}")
    typer.echo(f"writes      {size(total)} in {n_files:,} files ({kinds}); {fits(total, free)}")
    typer.echo(
        f"takes       {in_words(takes)}{shared_by(n_tasks)}, at {rates.images_per_s:,.2f} images/s on {place} (by a sample of "
        f"{rates.n_sampled:,}); decoding alone {rates.decoded_per_s:,.2f}, the encoder alone {rates.encoded_per_s:,.2f} crops/s"
    )
    if place.type == "cuda":
        typer.echo(f"GPU memory  {size(rates.device_nbytes)} of {size(torch.cuda.mem_get_info(place)[1])}")
    if json is not None:
        numbers = {"device": str(place), "n_images": len(images), "n_views": request.n_views, "nbytes": nbytes}
        numbers |= {"n_files": n_files, "free_nbytes": free, "n_tasks": n_tasks, "seconds": takes, "rates": asdict(rates)}
        json.write_text(dumps(numbers, indent=1) + "\n")


def _refuse_options_of_one(params: Path | None, given: Mapping[str, Any]) -> None:
    """Refuse to plan a project without its file, or with options of a single extraction."""
    if params is None:
        raise BeyondClsError(
            "there is nothing to plan; give --encoder NAME, --data and --out for one extraction, or --params FILE, e.g. "
            "--params params.yaml, for a whole project"
        )
    for name in ("data", "dataset", *extraction.OF_LOADING, *extraction.IMAGES):
        if given.get(name) is not None:
            raise BeyondClsError(
                f"{flag_of(name)} {given[name]} is of one extraction; name it with --encoder, or leave this out: {params} says "
                "it for a whole project"
            )
