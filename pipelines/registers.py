"""`beyondcls registers`: the hidden units of an encoder that make outliers among its patches, for test-time registers."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters import extraction
from pipelines.parameters.options import takes_options
from pipelines.process.command_log import recorded_command

LOADING = {n: option for n, option in extraction.LOADING.items() if n not in ("register_neurons", "test_time_registers")}


@takes_options(LOADING, extraction.TRANSFORM, extraction.IMAGES)
def main(
    encoder: extraction.Name,
    out: Annotated[Path, typer.Option(help="file for the neurons, JSON, which `extract` takes as --register-neurons")],
    highest_block: Annotated[
        int,
        typer.Option(help="the last block whose neurons count: where outliers begin, 5 of CLIP-B/16, 17 of DINOv2-L"),
    ],
    data: extraction.Data = None,
    dataset: extraction.Dataset = None,
    params: extraction.Params = None,
    device: extraction.Device = "auto",
    n_neurons: Annotated[int, typer.Option(min=1, help="how many: 10 of CLIP-B/16, 50 of DINOv2-L")] = 10,
    n_images: Annotated[int, typer.Option(min=1, help="how many are looked at, evenly spread over the data set")] = 100,
    block: Annotated[int, typer.Option(help="whose patch tokens are looked at: -1 of CLIP, -2 of DINOv2-L")] = -1,
    norm: Annotated[
        float | None,
        typer.Option(help="above which a token is an outlier: 30 of CLIP, 150 of DINOv2-L  [default: 3 x its image's median]"),
    ] = None,
    **given: Any,
) -> None:
    """Find register neurons: hidden units of MLPs, up to a block, that are largest at outliers among the patches of images.

    Give them to `extract` (--register-neurons, or register_neurons under encoders.NAME in params.yaml), and what they write
    into outliers goes to an added token. `beyondcls norms` shows in which block outliers begin, and whether they are gone.
    Source: Jiang et al. 2025, arXiv 2506.08010.
    """
    from extract.datasets import open_images
    from extract.encoders import load_encoder
    from extract.register_neurons import find_register_neurons
    from extract.registers import NEURONS
    from pipelines.parameters.requested import place_encoder, requested_images
    from pipelines.process.progress import progress_bar
    from store.places.disk import write_file

    loading, _ = extraction.from_params(params, encoder, dataset, given)
    source, opening = requested_images(encoder, data, dataset, params, given)
    images = open_images(source, **opening, bars=progress_bar)
    frozen = load_encoder(encoder, **loading | {"test_time_registers": 0})  # whatever the parameter file says
    place_encoder(frozen, {"amp": "none"}, device)
    search: dict[str, Any] = {"highest_block": highest_block, "n_neurons": n_neurons, "n_images": n_images}
    search |= {"block": block, "norm": norm}
    neurons = find_register_neurons(frozen, images, **search, bars=progress_bar)
    of = {"encoder_weights": frozen.weights, "data": images.digest, **search, "command": recorded_command()}
    write_file(out, [json.dumps({NEURONS: neurons, **of}, indent=1).encode()])
    typer.echo(f"{out}: {sum(map(len, neurons.values()))} neurons of {encoder} in blocks {', '.join(map(str, neurons))}")
