"""Cross-entropy of upsampled logits at labelled pixels, member by member and image by image, so that pixels stay in cache."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.cores import cores
from probe.segmentation.upsampling import Upsampling
from probe.softmax_regression import LEAST


def pixel_loss(
    logits: Float[Tensor, "M B rows columns K"],
    labels: Sequence[Int[Tensor, "_h _w"]],
    upsamplings: Sequence[Upsampling],
) -> Float[Tensor, "M"]:
    """Sum over the images of the mean cross-entropy of an image's labelled pixels; an image without any counts 0.

    As `cross_entropy(interpolate(logits, mode="bilinear"), labels, ignore_index=-1)` of each image, without the logits of
    all images' pixels in memory at once.

    Args:
        labels: of the pixels that the upsampling of each image gives, -1 where void.
    """
    return _PixelLoss.apply(logits, labels, upsamplings)


class _PixelLoss(torch.autograd.Function):
    """The gradient of the logits at pixels is softmax minus one-hot; patches get it through the transposed upsampling."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Sequence[Tensor], upsamplings: Sequence[Upsampling]) -> Tensor:
        losses = logits.new_zeros(len(labels), len(logits), dtype=torch.float64)
        gradient = torch.zeros_like(logits)

        @torch.no_grad()  # threads don't inherit it, and would record a graph
        def compute(image: int) -> None:
            label, upsampling = labels[image], upsamplings[image]
            void = label < 0
            n = int(label.numel() - void.sum())
            if not n:
                return
            target = label.clamp(min=0)[None].long()
            weight = (~void).to(logits.dtype) / n
            for member in range(len(logits)):
                pixels = upsampling.bilinear(logits[member, image].movedim(-1, 0).contiguous())  # [K, h, w]
                pixels.sub_(pixels.amax(0))
                at_label = pixels.gather(0, target)[0]
                total = pixels.clamp_(min=LEAST).exp_().sum(0)
                losses[image, member] = ((total.log() - at_label) * weight).sum(dtype=torch.float64)
                pixels *= weight / total
                pixels.scatter_add_(0, target, -weight[None])
                gradient[member, image] = upsampling.gradient(pixels).movedim(0, -1)

        with cores(logits.device) as on_all:
            on_all(compute, range(len(labels)))
        ctx.save_for_backward(gradient)
        return losses.sum(0).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * of_losses.view(-1, 1, 1, 1, 1), None, None
