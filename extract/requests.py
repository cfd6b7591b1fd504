"""What an extraction can be asked for, and the sets that it can extend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.attention import PER_BLOCK, STATISTICS
from extract.datasets import DataError, ImageSet
from extract.encoders import Encoded, Encoder
from extract.layouts import layouts_of
from extract.transform import as_options, differing_values
from store import ArrayLayout, BeyondClsError, FeatureSpec, FeatureStore, StoreError
from store.errors import unknown
from store.format.names import ArrayName
from store.format.spec import EXTENDABLE_FIELDS

OnError = Literal["raise", "record"]


@dataclass(frozen=True)
class Request:
    """What is to be extracted.

    Attributes:
        encoder: on the device where it runs.
        images: in the order of their rows.
        blocks: whose tokens are kept, counted from 0, ascending.
        statistics: attention statistics, in the encoder's order.
        map_blocks: whose attention maps are kept.
        n_views: of each image.
        dtype: codec of tokens.
        numbered: as for `layouts.arrays_by_name`.
    """

    encoder: Encoder
    images: ImageSet
    blocks: tuple[int, ...]
    statistics: tuple[str, ...]
    map_blocks: tuple[int, ...]
    n_views: int
    dtype: str
    numbered: bool = True

    def encode(self, images: Float[Tensor, "B 3 H W"]) -> Encoded:
        """Features of a batch, on any device."""
        return self.encoder(images.to(self.encoder.device), self.blocks, self.statistics, self.map_blocks)

    @cached_property
    def example(self) -> Encoded:
        """Features of one image without content, for names and shapes."""
        return self.encode(torch.zeros(1, *self.encoder.config["input_size"]))

    @cached_property
    def spec(self) -> FeatureSpec:
        """What the feature set will be."""
        return FeatureSpec(
            weights=self.encoder.weights,
            architecture=self.encoder.architecture,
            transform=self.encoder.described_transform,
            data=self.images.digest,
            n_images=len(self.images),
            blocks=self.blocks,
            statistics=self.statistics,
            maps=map_names(self.example, self.numbered),
            n_views=self.n_views,
            dtype=self.dtype,
            compute_dtype=self.encoder.compute_dtype,
        )

    @property
    def keys(self) -> list[str]:
        """Keys of feature sets that hold it: its own, and the one with attention maps named as in older sets."""
        older = unnumbered_spec(self.spec, self.encoder.n_blocks - 1)
        return [self.spec.key] if older is None else [self.spec.key, older.key]

    def layouts(self, shard_rows: int | None, base: FeatureStore | None = None) -> list[ArrayLayout]:
        """Layouts of all arrays; ids at least as wide as those of `base`, which is added to.

        Raises:
            StoreError: tokens of this width cannot be stored in this dtype.
        """
        id_width = id_width_of(self.images, base)
        return layouts_of(self.example, self.images, self.n_views, self.dtype, shard_rows, id_width, self.numbered)

    def named_as(self, store: FeatureStore) -> "Request":
        """The request that a set was made for, which may be an older set with attention maps of the last block only."""
        if not any("/" not in name for name in store.spec.maps):
            return self
        return replace(self, map_blocks=(self.encoder.n_blocks - 1,), numbered=False)

    def added_to(self, base: FeatureStore) -> "Request":
        """This request together with all that a set has already."""
        last_block = self.encoder.n_blocks - 1
        blocks = tuple(sorted({*self.blocks, *base.spec.blocks}))
        maps = tuple(sorted({*(blocks if self.map_blocks else ()), *base.spec.map_blocks("centre", last_block)}))
        statistics = tuple(name for name in self.encoder.statistics if name in {*self.statistics, *base.spec.statistics})
        n_views = max(self.n_views, base.spec.n_views)
        return replace(self, blocks=blocks, statistics=statistics, map_blocks=maps, n_views=n_views)

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Arrays without an image axis: weight and bias of the final norm."""
        return {f"norm/{name}": value.numpy() for name, value in self.encoder.norm()[0].items()}


def check_same_encoder(base: FeatureStore, spec: FeatureSpec, used: str) -> None:
    """Refuse a set that cannot serve as a source of features.

    Raises:
        StoreError: `base` has another encoder, transform or dtype; the message says that it cannot be `used`.
    """
    if differ := base.spec.explained(spec, EXTENDABLE_FIELDS):
        raise StoreError(
            f"{base.where} cannot be {used}: {differ} differ; "
            f"give another set, or the options it was made with{transform_options(base.spec, spec)}"
        )


def check_extension(base: FeatureStore, spec: FeatureSpec, images: ImageSet) -> None:
    """Refuse a set that cannot be extended to this request.

    Raises:
        StoreError: `base` has another encoder, or other images than the first of these.
    """
    check_same_encoder(base, spec, "extended")
    if len(base) > len(images) or base.spec.data != images.digest_of(len(base)):
        raise StoreError(
            f"{base.path} cannot be extended: its {len(base)} images are not the first of the {len(images)} "
            f"in {images.source}; new images must come after those that are there"
        )


def transform_options(stored: FeatureSpec, requested: FeatureSpec) -> str:
    """Options that give the transform of a stored feature set, where another is requested: ` (--crop-pct 0.9)`."""
    names = differing_values(stored.transform, requested.transform)
    return f" ({as_options(stored.transform, names)})" if names else ""


def id_width_of(images: ImageSet, base: FeatureStore | None) -> int:
    """Bytes of an id: of the longest, and no fewer than are stored already."""
    longest = max(len(sample.id.encode()) for sample in images.samples)
    return longest if base is None else max(longest, base.array("images/id").shape[1])


def checked_data(images: ImageSet, on_error: OnError) -> list[str]:
    """Problems of the images, without paths.

    Raises:
        DataError: there are problems and `on_error` is "raise", or there is no image.
    """
    problems = images.all_problems()
    if problems and on_error == "raise":
        total = f"\n({len(problems)} problems in all)" if len(problems) > 10 else ""
        raise DataError("\n".join(problems[:10]) + total + "\nmend the data, or go on with --on-error record")
    if len(images) == 0:
        raise DataError(f"{images.source} has no readable images:\n" + "\n".join(problems[:10]))
    for folder in {sample.file.parent for sample in images.samples}:
        problems = [problem.replace(f"{folder}/", "") for problem in problems]
    return problems


def known_statistics(names: Sequence[str] | None) -> Sequence[str]:
    """Names of attention statistics that some encoder can have.

    Raises:
        BeyondClsError: an unknown name, or a single name instead of a list.
    """
    if isinstance(names, str):
        raise BeyondClsError(f"statistics is {names!r}, expected a list, e.g. [{names}]; leave it out for all, [] is none")
    for name in names or ():
        if name not in (known := [*STATISTICS, *PER_BLOCK]):
            raise BeyondClsError(unknown("attention statistic", name, known))
    return names or ()


def possible_statistics(encoder: Encoder, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names that this encoder can have, of a list that is meant for several encoders; None stands for all.

    Raises:
        BeyondClsError: an unknown name.
    """
    return None if names is None else [name for name in known_statistics(names) if name in encoder.statistics]


def checked_statistics(encoder: Encoder, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of attention statistics, all that the encoder can have by default."""
    for name in known_statistics(names):
        if name not in encoder.statistics:
            lacks = "[cls] token" if encoder.attends else "attention"
            can = ", ".join(encoder.statistics) or "none"
            raise BeyondClsError(f"{encoder.name} has no {lacks}, so no {name}; it can have: {can}")
    # Always in the encoder's order: equal sets have equal keys.
    return tuple(name for name in encoder.statistics if names is None or name in names)


def map_names(encoded: Encoded, numbered: bool = True) -> tuple[str, ...]:
    """Attention maps as a description names them, by row and block: "cls/block11"; `numbered` as in `arrays_by_name`."""
    by_block = sorted((row, int(block)) for row, block in (name.split("/block") for name in encoded.maps))
    return tuple(f"{row}/block{block}" if numbered else row for row, block in by_block)


def unnumbered_spec(spec: FeatureSpec, last_block: int) -> FeatureSpec | None:
    """The description that an older set with the same arrays has, if its maps are those of the last block only; else None."""
    rows = [name.partition("/block")[0] for name in spec.maps if name.endswith(f"/block{last_block}")]
    return replace(spec, maps=tuple(rows)) if rows and len(rows) == len(spec.maps) else None


def older_names(base: FeatureStore, last_block: int) -> dict[str, str]:
    """Current names of an older set's attention maps -> the names that they have in the set."""
    return {
        str(replace(parts, block=last_block)): str(parts)
        for parts in map(ArrayName.parse, base.arrays)
        if parts.kind == "attention" and parts.block is None and parts.view is not None
    }


def checked_blocks(blocks: Sequence[int], n_blocks: int) -> tuple[int, ...]:
    """Counted from 0, ascending, without repeats."""
    for block in blocks:
        if not -n_blocks <= block < n_blocks:
            raise BeyondClsError(
                f"there is no block {block}: the encoder has blocks 0 to {n_blocks - 1} (negative ones count from the end)"
            )
    if not blocks:
        raise BeyondClsError("no block was asked for; give at least one, e.g. --blocks -1 for the last")
    return tuple(sorted({block % n_blocks for block in blocks}))
