"""Encoders of a parameter file, each measured on a sample."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.datasets import ImageSet
from extract.encoders import ENCODERS, Encoder, load_encoder
from extract.encoders.cost import Cost, cost_of
from extract.encoders.libraries import is_users
from extract.layouts import arrays_by_name
from extract.plan import Rates, rates, stored_nbytes
from extract.requests import Request
from pipelines.parameters.extraction import CHECKPOINT, EXTRACTING, OF_LOADING, resolve_extraction
from pipelines.parameters.options import select_options
from pipelines.parameters.params import integers, section
from pipelines.parameters.requested import place_encoder, request_features

# What plans don't depend on, but for the size of images, which a checkpoint that is here shows.
OF_WEIGHTS = (*CHECKPOINT, "random_seed", "weights", "family")
NARROW = "int8"
SAMPLE = {"cpu": 8, "cuda": 128}  # images, in batches of a quarter
SECONDS = 5.0  # of extraction, for which an encoder that is slow gets fewer of them


@dataclass(frozen=True)
class Measured:
    """An encoder on this machine, and what is stored of an image.

    Attributes:
        rates: of its extraction; None of random numbers.
        nbytes: bytes of an image in one view, by name of the array, view 0.
        narrow_nbytes: likewise with tokens in NARROW.
        shapes: of one image, by name of the array.
        dtype: of tokens.
        input_size: channels, height and width of a crop.
        cost: of the encoder on one crop; None if it could not be counted.
    """

    rates: Rates
    nbytes: Mapping[str, int]
    narrow_nbytes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    input_size: tuple[int, ...] = (3, 224, 224)
    cost: Cost | None = None

    def narrow(self) -> "Measured":
        """The same with tokens in NARROW."""
        return replace(self, nbytes=self.narrow_nbytes, dtype=NARROW)


@dataclass(frozen=True)
class Encoders:
    """Encoders of a parameter file.

    Attributes:
        by_name: as `extract` stores them.
        by_study: as `extract-blocks` stores them for the studies of `block_studies`, with several blocks.
    """

    by_name: Mapping[str, Measured]
    by_study: Mapping[str, Measured]

    def narrow(self) -> "Encoders":
        """The same with tokens in NARROW."""
        return Encoders(*({name: m.narrow() for name, m in group.items()} for group in (self.by_name, self.by_study)))


def options_of(
    params: Mapping[str, Any], given: Mapping[str, Any], encoder: str, dataset: str | None = None, split: str | None = None
) -> dict[str, Any]:
    """What the parameter file asks of an extraction; options of the command line win.

    Raises:
        BeyondClsError: an unknown name, or a parameter that nothing reads.
    """
    resolved = resolve_extraction(params, encoder, dataset, split)
    return {name: one.value for name, one in resolved.items()} | select_options(given, EXTRACTING)


def measure_encoders(
    params: Mapping[str, Any],
    images: ImageSet,
    given: Mapping[str, Any],
    device: str,
    folder: Path,
    n_sampled: int | None,
    say: Callable[[str], None],
) -> Encoders:
    """Measure all encoders, one after the other: only one is in memory. Of those that compute the same, the first is measured.

    Args:
        images: to take the sample from.
        given: options of EXTRACTING on the command line, for all.
        device: as for `choose_device`.
        folder: where features would be.
        n_sampled: images for each; by default as many as SAMPLE and SECONDS say.
        say: called before each.

    Raises:
        BeyondClsError: an unknown encoder or option, or a damaged image.
    """
    blocks_of = {
        study: (entry.get("encoder"), integers(f"block_studies.{study}.stored", str(entry.get("stored", "-1"))))
        for study, entry in ((name, section(params, "block_studies", name)) for name in section(params, "block_studies"))
    }
    by_name, by_study, known = {}, {}, dict[Any, Rates]()
    for name in section(params, "encoders"):
        say(f"measuring {name} …")
        asked = options_of(params, given, name) | {"views": 1, "drop_path": 0.0}
        encoder = load_unfetched(name, {n: value for n, value in asked.items() if n in OF_LOADING})
        cost = cost_of(encoder.model, encoder.config["input_size"])
        place_encoder(encoder, asked, device)
        request, running = request_features(encoder, images, asked, "statistics" not in given)
        alike = _computation(request, running)
        known[alike] = known.get(alike) or _rates(request, folder, n_sampled, running)
        by_name[name] = _described(request, known[alike], cost)
        for study, (encoder_of_study, blocks) in blocks_of.items():
            if encoder_of_study == name:
                deeper, _ = request_features(encoder, images, asked | {"blocks": blocks}, "statistics" not in given)
                by_study[study] = _described(deeper, known[alike], cost)
        del encoder, request
        gc.collect()
    return Encoders(by_name, by_study)


def load_unfetched(name: str, loading: Mapping[str, Any]) -> Encoder:
    """The encoder with its checkpoint if that is a file here, else with random weights, so that nothing is fetched.

    Args:
        loading: arguments of `load_encoder`.
    """
    checkpoint = loading.get("checkpoint")
    if checkpoint is not None and Path(checkpoint).is_file():
        return load_encoder(name, **{n: value for n, value in loading.items() if n != "weights"})
    model = str(loading.get("model") or name)
    if is_users(model) or ENCODERS.plugin(model) is not None:
        return load_encoder(name, **loading)
    return load_encoder(name, random_seed=0, **{n: value for n, value in loading.items() if n not in OF_WEIGHTS})


def _computation(request: Request, running: Mapping[str, Any]) -> str:
    """What an extraction computes, as text; weights, and images, do not change how long it takes."""
    encoder = request.encoder
    asked = (request.blocks, request.statistics, request.map_blocks, request.dtype, encoder.compute_dtype, dict(running))
    return f"{encoder.architecture} {encoder.described_transform} {asked}"


def _rates(request: Request, folder: Path, n_sampled: int | None, running: Mapping[str, Any]) -> Rates:
    n, seconds = (n_sampled, None) if n_sampled else (SAMPLE[request.encoder.device.type], SECONDS)
    return rates(request, folder, n_sampled=n, seconds=seconds, **running)


def _described(request: Request, measured_rates: Rates, cost: Cost | None) -> Measured:
    shapes = {name: tuple(values.shape[1:]) for name, values in arrays_by_name(request.example, 0).items()}
    narrow = request.dtype if request.dtype == "int4" else NARROW
    size = tuple(request.encoder.config["input_size"])
    stored = stored_nbytes(request), stored_nbytes(request, narrow)
    return Measured(measured_rates, *stored, shapes, request.dtype, size, cost)
