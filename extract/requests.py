"""What is to be extracted: features of an encoder, of some images; and how its options are read."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from extract.attention import PER_BLOCK, STATISTICS, facts_of
from extract.datasets import DataError, ImageSet
from extract.datasets.pixels import Picture
from extract.encoders import Encoded, Encoder
from extract.forward import check_branches, checked_rate, draw_factors
from extract.layouts import DIMENSIONS, annotation_layouts, arrays_by_name, codec_of
from store import ArrayLayout, BeyondClsError, FeatureSpec, FeatureStore
from store.codecs import get_codec
from store.errors import unknown
from store.format.layout import kind_of, shard_rows_of
from store.format.spec import SLIDE

TRUTHS = ("segmentation", "instances")
VECTORS = ("kept", "all", "only")  # [cls] of the blocks whose tokens are kept; vectors of all blocks as well; instead of tokens


@dataclass(frozen=True)
class Request:
    """What is to be extracted, and how it is stored.

    Attributes:
        encoder: frozen, on the device where it runs.
        images: in fixed order; row i of the store is image i.
        blocks: whose tokens are kept, counted from 0, ascending; none for vectors alone.
        statistics: attention statistics of every block, in the encoder's order.
        map_blocks: whose attention maps are kept.
        n_views: of each image: the evaluation crop, and random crops as well; or as many windows as the longest image needs.
        dtype: codec of tokens.
        shard_rows: images per shard file, a multiple of 32; None: as suits the set (4 to 512 MB).
        vector_blocks: whose [cls] and average patch token are kept with the tokens.
        pooled: whether the vector is kept that the encoder's own pooling gives.
        truths: label maps and instances of the images that are kept, by name.
        drop_path: the rate at which the last block's branches are dropped for random crops, 0…1.
    """

    encoder: Encoder
    images: ImageSet
    blocks: tuple[int, ...]
    statistics: tuple[str, ...]
    map_blocks: tuple[int, ...]
    n_views: int
    dtype: str
    shard_rows: int | None = None
    vector_blocks: tuple[int, ...] = ()
    pooled: bool = False
    truths: tuple[str, ...] = ()
    drop_path: float = 0.0

    @classmethod
    def resolve(
        cls,
        encoder: Encoder,
        images: ImageSet,
        *,
        blocks: Sequence[int] | None = None,
        statistics: Sequence[str] | None = None,
        maps: bool = True,
        views: int = 1,
        dtype: str = "float16",
        shard_rows: int | None = None,
        vectors: str = "kept",
        truths: str | Sequence[str] | None = None,
        drop_path: float = 0.0,
    ) -> Self:
        """The request that these options make of an encoder.

        Args:
            encoder, images, dtype, shard_rows: as attributes; a dtype is a name in `store.codecs.CODECS`.
            blocks: whose tokens to keep; negative ones count from the end. By default the encoder's own choice.
            statistics: attention statistics, of every block; all that the encoder can have by default.
            maps: keep attention maps of these blocks, if the encoder has attention.
            views: as `n_views`.
            vectors: "all" keeps [cls] and the average patch token of every block, and the tokens of `blocks`; "kept" only
                [cls] of these; "only" [cls] and the average patch token of `blocks`, without their patch tokens and registers.
                Each keeps what an encoder's own pooling gives, if it has one.
            truths: label maps and instances of the images to keep: names, "all" or "none"; by default what the form of the
                data set exists for.
            drop_path: stochastic depth of random crops: the rate, from 0 up to but not 1, at which attention and MLP of the
                last block are left out; it falls linearly to 0 in the first. The evaluation crop is never concerned.

        Raises:
            BeyondClsError: unknown block, statistic, codec or value of `vectors`; a number that cannot be; truths that
                the data set does not have; or a rate without random crops, or for blocks whose branches cannot be dropped.
        """
        get_codec(dtype)
        if shard_rows is not None and (shard_rows % 32 or shard_rows < 32):
            raise BeyondClsError(f"shard_rows is {shard_rows}, expected a multiple of 32")
        if views < 1:
            raise BeyondClsError(f"views is {views}, expected 1 (the evaluation crop) or more")
        drop_path = checked_rate(drop_path, views)
        if views > 1 and encoder.pixels.least is not None:
            raise BeyondClsError(
                f"views is {views}, expected 1 with the cut draft: random crops show details; give --cut torch"
            )
        if drop_path and encoder.config["crop_mode"] == SLIDE:
            raise BeyondClsError(
                f"drop_path is {drop_path}, expected 0 with the crop mode {SLIDE}: heads are measured on windows"
            )
        if drop_path:
            check_branches(encoder.name, encoder.model.blocks)  # type: ignore[arg-type]
        if vectors not in VECTORS:
            raise BeyondClsError(unknown("value of vectors", vectors, VECTORS))
        chosen = checked_blocks([encoder.block] if blocks is None else blocks, encoder.n_blocks)
        images = images.with_pixels(replace(encoder.pixels, max_pixels=images.pixels.max_pixels))
        return cls(
            encoder=encoder,
            images=images,
            blocks=() if vectors == "only" else chosen,
            statistics=checked_statistics(encoder, statistics),
            map_blocks=chosen if maps and encoder.attends else (),
            n_views=views,
            dtype=dtype,
            shard_rows=shard_rows,
            vector_blocks={"kept": (), "all": tuple(range(encoder.n_blocks)), "only": chosen}[vectors],
            pooled=encoder.pools,
            truths=chosen_truths(images, truths),
            drop_path=drop_path,
        )

    def encode(
        self, views: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"], factors: Float[Tensor, "B L 2"] | None = None
    ) -> Encoded:
        """Features of a batch of views, on any device: pixels, or normalised already; `factors` as `factors_of` gives them."""
        kept = (self.blocks, self.statistics, self.map_blocks, self.vector_blocks, self.pooled)
        return self.encoder(views, *kept, factors)

    def image(self, row: int, held: ExitStack | None = None) -> Picture:
        """A decoded image; `held`: as for `Pixels.decoded`.

        Raises:
            DataError: it is not whole, or its views would not show all of it; the message names id and file.
            BeyondClsError: as `ImageSet.image`.
        """
        decoded = self.images.picture if self.encoder.views.is_by_torch else self.images.image
        image = decoded(row, held)
        if (n := len(self.encoder.views.covering(image.size))) > self.n_views:
            raise DataError(
                f"{self.images.samples[row]} is {' x '.join(map(str, image.size))} pixels, of which {n} windows show all, but "
                f"views is {self.n_views}; give --views {n}, or as many as the longest image needs"
            )
        return image

    def factors_of(self, rows: Sequence[int], view: int) -> Float[Tensor, "B L 2"] | None:
        """What branches are multiplied by in a view of some of the images; None if nothing is dropped there."""
        if not self.drop_path or view == 0:
            return None
        return draw_factors([self.images.samples.ids[row] for row in rows], view, self.drop_path, self.encoder.n_blocks)

    @cached_property
    def example(self) -> Encoded:
        """Features of one image without content, for names and shapes."""
        return self.encode(torch.zeros(1, *self.encoder.config["input_size"]))

    @cached_property
    def spec(self) -> FeatureSpec:
        """What the feature set will be."""
        has_cls = self.encoder.layout.has_cls
        maps = (f"{row}/block{block}" for row in ("centre", "cls")[: 1 + has_cls] for block in sorted(self.map_blocks))
        vectors = [f"{kind}/block{block}" for kind in ("average", "cls")[: 1 + has_cls] for block in self.vector_blocks]
        return FeatureSpec(
            weights=self.encoder.weights,
            architecture=self.encoder.architecture,
            transform=self.encoder.described_transform,
            data=self.images.digest,
            n_images=len(self.images),
            blocks=self.blocks,
            statistics=self.statistics,
            maps=tuple(maps),
            n_views=self.n_views,
            dtype=self.dtype,
            compute_dtype=self.encoder.compute_dtype,
            vectors=(*vectors, *(["pooled"] if self.pooled else [])),
            truths={name: self.images.truth_columns(name).digest(self.images.truths[name].classes) for name in self.truths},
            drop_path=self.drop_path,
        )

    def layouts(
        self, base: FeatureStore | None = None, shard_rows: int | None = None, dtype: str | None = None
    ) -> list[ArrayLayout]:
        """Layouts of all arrays, in shards of a size that suits the set if neither this nor the request gives it.

        Args:
            base: a set of the very same images; ids are at least as wide as there.
            shard_rows, dtype: instead of the request's.

        Raises:
            StoreError: tokens of this width cannot be stored in this dtype.
        """
        images, n_images = self.images, len(self.images)
        id_width = max(int(images.samples.ids.nbytes.max()), 0 if base is None else base.array("images/id").shape[1])
        features = {
            name: (codec_of(name, dtype or self.dtype), (n_images, *values.shape[1:]))
            for view in range(self.n_views)
            for name, values in arrays_by_name(self.example, view).items()
        }
        widest = max(codec.nbytes((1, *shape[1:])) for codec, shape in features.values())
        shard_rows = shard_rows or self.shard_rows or shard_rows_of(widest, n_images)
        layouts = annotation_layouts(images, shard_rows, id_width)
        layouts.append(ArrayLayout("images/size", (n_images, 2), "int32", ("image", "side"), shard_rows))
        layouts.append(ArrayLayout("images/valid", (n_images,), "uint8", ("image",), shard_rows))
        for view in range(self.n_views):
            layouts.append(ArrayLayout(f"images/crop/view{view}", (n_images, 4), "float32", ("image", "side"), shard_rows))
            layouts.append(ArrayLayout(f"images/flip/view{view}", (n_images,), "uint8", ("image",), shard_rows))
        for name, (codec, shape) in features.items():
            dimensions = DIMENSIONS[kind_of(name)]
            for end, (stored, zarr_dtype) in codec.parts(shape).items():
                main = codec.name if not end else None
                layouts.append(ArrayLayout(name + end, stored, zarr_dtype, dimensions[: len(stored)], shard_rows, codec=main))
        return layouts + self.truth_layouts(shard_rows)

    def truth_layouts(self, shard_rows: int) -> list[ArrayLayout]:
        if "segmentation" not in self.truths:
            return []
        shape = (len(self.images), math.prod(self.encoder.grid))
        return [
            ArrayLayout(f"images/patch_label/view{view}", shape, "int16", ("image", "patch"), shard_rows)
            for view in range(self.n_views)
        ]

    def added_to(self, base: FeatureStore) -> Self:
        spec, of_base = base.spec, base.spec.map_blocks("centre")
        blocks = tuple(sorted({*self.blocks, *spec.blocks}))
        return replace(
            self,
            blocks=blocks,
            statistics=tuple(name for name in self.encoder.statistics if name in {*self.statistics, *spec.statistics}),
            map_blocks=tuple(sorted({*(blocks if self.map_blocks else ()), *of_base})),
            n_views=max(self.n_views, spec.n_views),
            vector_blocks=tuple(sorted({*self.vector_blocks, *spec.vector_blocks})),
            truths=chosen_truths(self.images, sorted({*self.truths, *spec.truths})),
            drop_path=self.drop_path if self.n_views > 1 else spec.drop_path,
        )

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Arrays without an image axis: weight and bias of the final norm, and truths."""
        norm = {f"norm/{name}": value.numpy() for name, value in self.encoder.norm()[0].items()}
        return {n: values for one in self.truths for n, values in self.images.truth_columns(one).constants.items()} | norm


def known_statistics(names: Sequence[str] | None) -> Sequence[str]:
    """Names of attention statistics that some encoder can have; others are refused, and a single name instead of a list."""
    if isinstance(names, str):
        raise BeyondClsError(f"statistics is {names!r}, expected a list, e.g. [{names}]; leave it out for all, [] is none")
    for name in names or ():
        if name not in (known := [*STATISTICS, *PER_BLOCK]):
            raise BeyondClsError(unknown("attention statistic", name, known))
    return names or ()


def possible_statistics(encoder: Encoder, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names that this encoder can have, of a list that is meant for several encoders; None stands for all."""
    return None if names is None else [name for name in known_statistics(names) if encoder.can_have(name)]


def checked_statistics(encoder: Encoder, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of attention statistics; by default all of this program that the encoder can have."""
    for name in known_statistics(names):
        if not encoder.can_have(name):
            lacks = "[cls] token" if encoder.attends else "attention"
            if encoder.attends and (encoder.layout.has_cls or not facts_of(name).of_cls):
                lacks = "module that gives what attention adds"
            can = ", ".join(encoder.statistics) or "none"
            raise BeyondClsError(f"{encoder.name} has no {lacks}, so no {name}; it can have: {can}")
    # Always in the encoder's order: equal sets have equal keys.
    return encoder.statistics if names is None else tuple(name for name in (*STATISTICS, *PER_BLOCK) if name in names)


def checked_blocks(blocks: Sequence[int], n_blocks: int) -> tuple[int, ...]:
    for block in blocks:
        if not -n_blocks <= block < n_blocks:
            raise BeyondClsError(
                f"there is no block {block}: the encoder has blocks 0 to {n_blocks - 1} (negative ones count from the end)"
            )
    if not blocks:
        raise BeyondClsError("no block was asked for; give at least one, e.g. --blocks -1 for the last")
    return tuple(sorted({block % n_blocks for block in blocks}))


def chosen_truths(images: ImageSet, truths: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the truths to keep, in a fixed order: those named, "all" that the data set has, "none", or what is usual for its
    form.
    """
    if truths is None:
        return tuple(name for name in TRUTHS if name in images.usual_truths)
    if truths in ("all", "none"):
        return tuple(name for name in TRUTHS if truths == "all" and name in images.truths)
    chosen = truths.split(",") if isinstance(truths, str) else truths
    for name in chosen:
        if name not in TRUTHS:
            raise BeyondClsError(unknown("kind of truths", name, (*TRUTHS, "all", "none")))
        if name not in images.truths:
            has = f"it has {', '.join(images.truths)}" if images.truths else "it has none"
            raise BeyondClsError(
                f"{images.source} has no {name} ({has}); leave out --truths {name}, or name a form of data set that has it "
                "with --form"
            )
    return tuple(name for name in TRUTHS if name in chosen)
