"""What holds for every encoder, whoever made it: as it is read by `beyondcls extract`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from beyondcls.testing.checking import expect, expect_close
from extract.attention import PER_BLOCK, facts_of
from extract.encoders import Encoded, Encoder, load_encoder
from extract.encoders.wrapped import wrap
from store import BeyondClsError
from store.format.pretraining import FAMILIES


@dataclass(frozen=True)
class Made:
    """An encoder, and how to make it again."""

    encoder: Encoder
    again: Callable[[], Encoder]

    def __str__(self) -> str:
        return self.encoder.name

    @classmethod
    def of(cls, encoder: Any, arguments: Mapping[str, Any] | None = None) -> "Made":
        """From an encoder, its name, or a function that makes it or a module.

        Raises:
            AssertionError: it cannot be made, or is nothing that features are read from.
        """

        def made() -> Encoder:
            if isinstance(encoder, str):
                return load_encoder(encoder, **(arguments or {}))
            one = encoder if isinstance(encoder, Encoder | nn.Module) else encoder(**(arguments or {}))
            return one if isinstance(one, Encoder) else wrap(one)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return cls(made(), made)
            except BeyondClsError as error:
                raise AssertionError(str(error)) from error

    def read(self, images: Tensor) -> Encoded:
        """Everything that it can give: of its first and last block, with all statistics."""
        blocks, statistics = sorted({0, self.encoder.n_blocks - 1}), self.encoder.statistics
        return self.encoder(images, blocks, statistics, blocks, blocks)

    def images(self) -> Tensor:
        """Two images of noise, normalised."""
        size = self.encoder.config["input_size"]
        return torch.randn(2, *size, generator=torch.Generator().manual_seed(0)).to(self.encoder.device)


def is_frozen(made: Made) -> None:
    model = made.encoder.model
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    expect(not trained, f"parameters want gradients: {', '.join(trained[:3])}")
    expect(not any(module.training for module in model.modules()), "a module is in training mode")


def has_a_plain_key(made: Made) -> None:
    """Architecture and transform are plain values, and the same whenever it is made."""
    torch.manual_seed(1)  # what it draws must not depend on what was drawn before
    again = made.again()
    for what in ("architecture", "described_transform"):
        values = getattr(made.encoder, what)
        try:
            text = json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{what} is {values}, expected plain values: {error}") from error
        expect(json.dumps(getattr(again, what)) == text, f"{what} is another when it is made again")
    expect(again.weights == made.encoder.weights, "weights are others when it is made again; draw them with a fixed seed")
    expect(made.encoder.pretraining.family in ("", None, *FAMILIES), f"its family is {made.encoder.pretraining.family!r}")


def sees_images_in_its_range(made: Made) -> None:
    transform = made.encoder.described_transform
    for name in ("mean", "std"):
        values = transform[name]
        in_range = len(values) == 3 and all(0 <= x <= 1 for x in values)
        expect(in_range, f"{name} is {values}, expected three values from 0 to 1, of pixels on that scale")
    expect(0 < transform["crop_pct"] <= 1, f"crop_pct is {transform['crop_pct']}, expected a share")


def gives_tokens_of_its_layout(made: Made) -> None:
    encoder, encoded = made.encoder, made.read(made.images())
    layout = encoder.layout
    for block, patch in encoded.patch.items():
        expect(patch.ndim == 3 and len(patch) == 2 and patch.shape[1] > 0, f"patch tokens are {list(patch.shape)}")
        tokens = {"patch tokens": patch, "average patch": encoded.average[block]}
        expect((block in encoded.cls) == layout.has_cls, f"[cls] is {'' if block in encoded.cls else 'not '}there")
        if layout.has_cls:
            tokens["[cls]"] = encoded.cls[block]
        if layout.n_registers:
            tokens["registers"] = encoded.registers[block]
            n_registers = encoded.registers[block].shape[1]
            expect(n_registers == layout.n_registers, f"there are {n_registers} registers, expected {layout.n_registers}")
        for name, values in tokens.items():
            expect(values.shape[-1] == patch.shape[-1], f"{name} are {values.shape[-1]} wide, patch tokens {patch.shape[-1]}")
            expect(values.isfinite().all(), f"{name} of block {block} are not finite")
    weights, _ = encoder.norm()
    width = encoded.patch[encoder.n_blocks - 1].shape[-1]
    expect(all(values.shape == (width,) for values in weights.values()), f"the final norm is not of width {width}")


def gives_the_same_twice_and_for_each_image_alone(made: Made) -> None:
    images = made.images()
    before = images.clone()
    both, again = made.read(images), made.read(images)
    expect(torch.equal(images, before), "images were changed")
    alone = made.read(images[1:])
    for block, patch in both.patch.items():
        expect(torch.equal(patch, again.patch[block]), f"tokens of block {block} differ from pass to pass")
        scale = patch.abs().max().item()
        expect_close(alone.patch[block][0], patch[1], f"tokens of block {block} alone", rtol=0, atol=1e-4 * max(1.0, scale))


def has_statistics_in_their_ranges(made: Made) -> None:
    encoder, encoded = made.encoder, made.read(made.images())
    expect(encoded.statistics.keys() == set(encoder.statistics), f"it gives statistics {sorted(encoded.statistics)}")
    n_patches = next(iter(encoded.patch.values())).shape[1]
    for name, values in encoded.statistics.items():
        highest = facts_of(name).highest(n_patches + encoder.layout.n_prefix, n_patches)
        n_axes = 2 if name in PER_BLOCK else 3
        shape = (len(made.images()), encoder.n_blocks)
        expect(values.ndim == n_axes and values.shape[:2] == shape, f"{name} is {list(values.shape)}, expected [B, L, …]")
        expect((values >= 0).all() and (values <= highest + 1e-4).all(), f"{name} leaves its range, 0 to {highest}")
    for name, rows in encoded.maps.items():
        expect(rows.shape[-1] == n_patches, f"a row of {name} has {rows.shape[-1]} patches, tokens {n_patches}")
        expect((rows >= 0).all() and (rows.sum(-1) <= 1 + 1e-4).all(), f"a row of {name} is no share of attention")


CHECKS = (
    is_frozen,
    has_a_plain_key,
    sees_images_in_its_range,
    gives_tokens_of_its_layout,
    gives_the_same_twice_and_for_each_image_alone,
    has_statistics_in_their_ranges,
)
