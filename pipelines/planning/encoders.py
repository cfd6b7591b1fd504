"""Encoders of a parameter file, each measured on a sample of images."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.datasets import ImageSet
from extract.encoders import ENCODERS, Encoder, load_encoder
from extract.encoders.libraries import is_users
from extract.forward import flops_of
from extract.layouts import arrays_by_name
from extract.plan import Rates, measure, stored_nbytes
from pipelines.parameters.extraction import CHECKPOINT, EXTRACTING, OF_LOADING, resolve_extraction
from pipelines.parameters.layers import values_of
from pipelines.parameters.options import integers, select_options
from pipelines.parameters.params import section
from pipelines.parameters.requested import place_encoder, request_features
from pipelines.process.progress import progress_bar
from store.format.layout import ArrayName

# What plans don't depend on, but for the size of images, which a checkpoint that is here shows.
OF_WEIGHTS = (*CHECKPOINT, "random_seed", "weights", "family")


@dataclass(frozen=True)
class EncoderCost:
    """An encoder on this machine, and what is stored of an image.

    Attributes:
        rates: of its extraction, one view of each image.
        nbytes: bytes of an image in one view, by name of the array, view 0.
        shapes: of one image, by name of the array.
        flops: of one crop; None if they could not be counted.
    """

    rates: Rates
    nbytes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    flops: int | None = None

    def image_nbytes(self, n_views: int) -> int:
        """Bytes of an image in `n_views` views."""
        return sum(n * (1 if ArrayName.parse(name).view is None else n_views) for name, n in self.nbytes.items())


def options_of(
    params: Mapping[str, Any], given: Mapping[str, Any], encoder: str, dataset: str | None = None, split: str | None = None
) -> dict[str, Any]:
    """What the parameter file asks of an extraction; options of the command line win. Errors: as of `resolve_extraction`."""
    return values_of(resolve_extraction(params, encoder, dataset, split)) | select_options(given, EXTRACTING)


def measure_encoders(
    params: Mapping[str, Any], images: ImageSet, given: Mapping[str, Any], device: str, folder: Path, seconds: float
) -> dict[str, EncoderCost]:
    """All encoders by name, and by the name of a study those whose tokens are stored of several blocks for it.

    Only one is in memory at a time. Of those that compute the same, the first is measured.

    Args:
        images: to take the sample from.
        given: options of EXTRACTING on the command line, for all.

    Raises:
        BeyondClsError: an unknown encoder or option, or a damaged image.
    """
    by_name, known = dict[str, EncoderCost](), dict[str, Rates]()
    for name in section(params, "encoders"):
        asked = options_of(params, given, name) | {"views": 1, "drop_path": 0.0}
        encoder = load_unfetched(name, {n: value for n, value in asked.items() if n in OF_LOADING})
        flops = flops_of(encoder.model, encoder.config["input_size"])
        place_encoder(encoder, asked, device)
        deeper = {
            study: integers(f"block_studies.{study}.stored", str(entry.get("stored", "-1")))
            for study, entry in section(params, "block_studies").items()
            if entry.get("encoder") == name
        }
        for key, blocks in {name: asked.get("blocks"), **deeper}.items():
            request, running = request_features(encoder, images, asked | {"blocks": blocks}, "statistics" not in given)
            if key == name:
                # What is computed; weights, and images, do not change how long it takes.
                shape = (request.blocks, request.statistics, request.map_blocks, request.dtype, encoder.compute_dtype, running)
                alike = f"{encoder.architecture} {encoder.described_transform} {shape}"
                known[alike] = known.get(alike) or measure(request, folder, seconds=seconds, bars=progress_bar, **running)
            shapes = {array: tuple(values.shape[1:]) for array, values in arrays_by_name(request.example, 0).items()}
            by_name[key] = EncoderCost(known[alike], stored_nbytes(request), shapes, flops)
        del encoder, request
        gc.collect()
    return by_name


def load_unfetched(name: str, loading: Mapping[str, Any]) -> Encoder:
    """The encoder with its checkpoint if that is a file here, else with random weights, so that nothing is fetched.

    Args:
        loading: arguments of `load_encoder`.
    """
    checkpoint = loading.get("checkpoint")
    if checkpoint is not None and Path(checkpoint).is_file():
        return load_encoder(name, **{n: value for n, value in loading.items() if n not in ("weights", "random_seed")})
    model = str(loading.get("model") or name)
    if is_users(model) or ENCODERS.plugin(model) is not None:
        return load_encoder(name, **loading)
    return load_encoder(name, random_seed=0, **{n: value for n, value in loading.items() if n not in OF_WEIGHTS})
