"""Which hidden units of a ViT's MLPs write outliers among its patches: the search of register neurons.

Source: Jiang et al. 2025, arXiv 2506.08010.
"""

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.registers import checked_form, second_layer
from extract.requests import checked_blocks
from store import BeyondClsError
from store.shown import Bars, no_bars

TIMES = 3.0  # the median norm of an image's patches, above which one is an outlier
SPARSE = 0.5  # a neuron is below this activation at this share of the tokens, as in the authors' code
AT_ONCE = 8  # images whose hidden units are in memory


def find_register_neurons(
    encoder: Encoder,
    images: ImageSet,
    *,
    highest_block: int,
    n_neurons: int = 10,
    n_images: int = 100,
    block: int = -1,
    norm: float | None = None,
    bars: Bars = no_bars,
) -> dict[int, tuple[int, ...]]:
    """The hidden units that are largest at outliers: the mean of their absolute activation there, over images that have some.

    Units that are not small at half of an image's tokens do not count there.

    Args:
        images: of which as many as `n_images` are looked at, evenly spread over their rows.
        highest_block: the last one whose neurons count, that in which outliers begin: in the paper 5 of CLIP's ViT-B/16, 17 of
            DINOv2's ViT-L/14.
        n_neurons: how many: there 10 and 50.
        block: whose patch tokens are looked at; there -1 and -2.
        norm: above which a token is an outlier: there 30 and 150. By default 3 times the median of its image.

    Raises:
        BeyondClsError: no outlier in any image; or no such block, MLP or number.
        DataError: an image is damaged.
    """
    if encoder.n_untrained:
        raise BeyondClsError(f"{encoder.name} has test-time registers, which empty its outliers; load it without")
    (block,), (highest_block,) = (checked_blocks([b], encoder.n_blocks) for b in (block, highest_block))
    layers = [second_layer(encoder.name, encoder.model.blocks, b) for b in range(highest_block + 1)]  # type: ignore[arg-type]
    sound = np.flatnonzero(images.samples.is_sound)
    rows = sound[np.linspace(0, len(sound) - 1, min(n_images, len(sound))).round().astype(int)].tolist()
    sums = [torch.zeros(layer.in_features, dtype=torch.float64) for layer in layers]
    n_with, largest = 0, 0.0
    with bars(encoder.name, len(rows), "images") as progress:
        for at in range(0, len(rows), AT_ONCE):
            batch = rows[at : at + AT_ONCE]
            views = [encoder.views.cut(images.image(row), images.samples[row].id, 0)[0] for row in batch]
            hidden: list[Float[Tensor, "B N F"]] = []
            with ExitStack() as hooks:
                for layer in layers:
                    hooks.enter_context(layer.register_forward_pre_hook(partial(_keep_input, hidden)))
                norms = encoder(torch.stack(views), [block]).patch[block].norm(dim=-1)  # [B, T]
            outliers = norms > (TIMES * norms.median(1, keepdim=True).values if norm is None else norm)
            largest = max(largest, norms.max().item())
            for i in outliers.any(1).nonzero()[:, 0].tolist():
                n_with += 1
                for total, units in zip(sums, hidden, strict=True):
                    is_sparse = (units[i] < SPARSE).double().mean(0) >= SPARSE
                    at_outliers = units[i, encoder.layout.n_prefix :][outliers[i]].abs().double().mean(0)
                    total += (at_outliers * is_sparse).cpu()
            progress(len(batch))
    if not n_with:
        above = f"{TIMES:g} times its image's median" if norm is None else f"{norm:g}"
        raise BeyondClsError(
            f"no patch token of block {block} of {encoder.name} has a norm above {above} in {len(rows)} images (the largest "
            f"has {largest:.3g}); give a smaller norm or another block, or leave test-time registers out"
        )
    scores = [(-score, b, unit) for b, total in enumerate(sums) for unit, score in enumerate(total.tolist()) if score > 0]
    neurons: dict[int, list[int]] = {}
    for _, b, unit in sorted(scores)[:n_neurons]:
        neurons.setdefault(b, []).append(unit)
    return checked_form(f"blocks 0 to {highest_block} of {encoder.name}", neurons)


def _keep_input(hidden: list[Tensor], _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    hidden.append(inputs[0])
