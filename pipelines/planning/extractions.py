"""Work of extractions, and of the stage that averages statistics: images times bytes and rates."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.parameters.params import section
from pipelines.planning.encoders import Encoders, Measured, options_of
from pipelines.planning.machine import Machine
from pipelines.planning.sizes import Sizes
from pipelines.planning.work import Work
from store.format.layout import ArrayName, kind_of

SPLITS = ("train", "test")


def nbytes_by_kind(measured: Measured, n_views: int = 1) -> dict[str, int]:
    """Bytes of an image in `n_views` views, by kind of array."""
    kinds: dict[str, int] = {}
    for name, nbytes in measured.nbytes.items():
        views = 1 if ArrayName.parse(name).view is None else n_views
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0) + views * nbytes
    return kinds


def extractions(
    params: Mapping[str, Any],
    given: Mapping[str, Any],
    encoders: Encoders,
    sizes: Mapping[str, Sizes],
    machine: Machine,
) -> Iterator[Work]:
    """Work of `extract`, `extract-blocks`, `extract-whole` and `attention`."""
    for name, measured in encoders.by_name.items():
        for dataset in sizes:
            for split in SPLITS:
                views = n_views(params, given, name, dataset, split)
                yield extraction("extract", split, name, dataset, measured, getattr(sizes[dataset], split), views, machine)
            yield attention(name, dataset, measured, sizes[dataset].test, machine)
    for study, measured in encoders.by_study.items():
        entry = section(params, "block_studies", study)
        name, dataset = entry["encoder"], entry["dataset"]
        for split in SPLITS:
            views = n_views(params, given, name, dataset, split)
            n_images = getattr(sizes[dataset], split)
            yield extraction("extract-blocks", split, name, dataset, measured, n_images, views, machine)
    for entry in section(params, "whole").values():
        name, dataset = entry["encoder"], entry["dataset"]
        yield extraction("extract-whole", "test", name, dataset, encoders.by_name[name], sizes[dataset].test, 1, machine)


def n_views(params: Mapping[str, Any], given: Mapping[str, Any], encoder: str, dataset: str, split: str) -> int:
    """Views of each image of a split."""
    return options_of(params, given, encoder, dataset, split).get("views") or 1


def extraction(
    stage: str, split: str, encoder: str, dataset: str, measured: Measured, n_images: int, views: int, machine: Machine
) -> Work:
    """Work of one extraction. Writing overlaps with computing, in which decoding overlaps with the encoder."""
    crops, rates = n_images * views, measured.rates
    written = n_images * sum(nbytes_by_kind(measured, views).values())
    seconds = {
        "decoding": crops / rates.decoded_per_s,
        "encoder": crops / rates.encoded_per_s,
        "writing": written / machine.written_per_s,
    }
    elapsed = max(crops / rates.computed_per_s, *seconds.values())
    return Work(stage, split, encoder, dataset, elapsed, seconds, written=written, crops=crops)


def attention(encoder: str, dataset: str, measured: Measured, n_images: int, machine: Machine) -> Work:
    """Work of averaging statistics and [cls] maps of the test images; without stored ones they would be computed again."""
    read = n_images * sum(n for name, n in measured.nbytes.items() if name.startswith(("statistics/", "attention/cls/")))
    seconds = read / machine.read_per_s
    return Work(
        "attention",
        "test",
        encoder,
        dataset,
        seconds,
        {"reading": seconds},
        read=read,
        looped=n_images / measured.rates.computed_per_s,
    )
