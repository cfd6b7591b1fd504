"""`beyondcls plan`: the cost of an extraction in bytes and hours, and when it pays off."""

import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import select_options, takes_options
from pipelines.store.table import size

if TYPE_CHECKING:
    from extract.plan import Plan

OF_WEIGHTS = ("checkpoint", "random_seed", "weights", "family")  # in params.yaml; plans don't depend on them


@takes_options(
    extraction.MODEL, extraction.TRANSFORM, extraction.IMAGES, extraction.FEATURES, extraction.RUNNING, extraction.COMPUTING
)
def main(
    encoder: extraction.Name,
    out: extraction.Out,
    data: extraction.Data = None,
    dataset: extraction.Dataset = None,
    params: extraction.Params = None,
    device: extraction.Device = "auto",
    n_tasks: Annotated[int, typer.Option(min=1, help="processes that would share the work, on as many machines")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="of each head that will be probed")] = 90,
    heads: Annotated[int, typer.Option(min=1, help="that will be probed: aggregators x settings x seeds")] = 9,
    **given: Any,
) -> None:
    """Say in advance what `beyondcls extract` with the same options writes and how long it takes on this machine.

    A few batches are extracted beside --out and removed again. Weights don't matter for it: random ones are used, and nothing
    is fetched.
    """
    from extract.datasets import open_images
    from extract.encoders import load_encoder
    from extract.plan import existing_folder, plan
    from pipelines.parameters.requested import place_encoder, request_features, requested_images

    loading, options = extraction.from_params(params, encoder, dataset, given.get("split"))
    options |= select_options(given, extraction.EXTRACTING)
    loading |= select_options(given, (*extraction.MODEL, *extraction.TRANSFORM))
    unweighted = {name: value for name, value in loading.items() if name not in OF_WEIGHTS}
    source_of_images, opening = requested_images(encoder, data, dataset, params, given)
    images = open_images(source_of_images, **opening)
    frozen = load_encoder(encoder, random_seed=0, **unweighted)
    place = place_encoder(frozen, options, device)
    request, running = request_features(frozen, images, options, "statistics" not in given)
    typer.echo(f"measuring {encoder} on {place} …")
    planned = plan(request, out, **running)
    free = shutil.disk_usage(existing_folder(out)).free
    for line in described(planned, free, n_tasks, epochs, heads):
        typer.echo(line)


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
