"""A linear classifier of patches, trained by its logits at pixels: all learning rates, weight decays and seeds in one pass."""

import copy
import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.data import Dataset

from probe.checkpoint import go_on
from probe.cores import cores
from probe.grid import HeadSpec, Member
from probe.recipe import Recipe
from probe.segmentation.label_maps import Upsampling
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches, patch_vectors
from probe.softmax_regression import LEAST
from probe.stack import Stack
from probe.train import Family
from probe.truth_batches import TruthBatches

NAME = "linear"
KEPT_NBYTES = 1 << 28  # of label maps that training sees again in each epoch
Losses = Callable[[Tensor, Sequence[Tensor], Sequence[Upsampling]], Tensor]  # as `pixel_loss`
SPEC = HeadSpec("average")  # its normalisation and classifier, with each patch in the place of an image's average


def pixel_loss(
    logits: Float[Tensor, "M B rows columns K"],
    labels: Sequence[Int[Tensor, "_h _w"]],
    upsamplings: Sequence[Upsampling],
) -> Float[Tensor, "M"]:
    """Sum over the images of the mean cross-entropy of an image's labelled pixels; an image without any counts 0.

    As `cross_entropy(interpolate(logits, mode="bilinear"), labels, ignore_index=-1)` of each image, without the logits of
    all images' pixels in memory at once. The gradient of the logits at pixels is softmax minus one-hot; patches get it through
    the transposed upsampling.

    Args:
        labels: of the pixels that the upsampling of each image gives, -1 where void.
    """

    def compute(logits: Tensor) -> tuple[Tensor, Tensor]:
        losses = logits.new_zeros(len(labels), len(logits), dtype=torch.float64)
        gradient = torch.zeros_like(logits)

        @torch.no_grad()  # threads don't inherit it, and would record a graph
        def of_image(image: int) -> None:
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
            on_all(of_image, range(len(labels)))
        return losses.sum(0).to(logits.dtype), gradient

    return WithGradient.apply(logits, compute)


class WithGradient(torch.autograd.Function):
    """Losses [M] of logits [M, B, rows, columns, K], and their gradient, which `compute` gives with them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, compute: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        losses, gradient = compute(logits)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * of_losses.view(-1, 1, 1, 1, 1), None


class PatchStack(Stack):
    """Heads whose vectors are the patches themselves: logits [M, B · T, K]."""

    def _pooled(self, features: Mapping[str, Tensor], training: bool) -> tuple[Tensor, None]:
        return patch_vectors(features).flatten(0, 1), None


@dataclass(frozen=True)
class TrainedMember:
    """A member that was trained.

    Attributes:
        curve: one entry an epoch: epoch and loss.
    """

    member: Member
    head: PatchHead
    curve: list[dict[str, float]]


class FrameMaps(Dataset[Any]):
    """Label maps, or other values of pixels, by row and view, in a frame of `size` that the view fills."""

    def __init__(self, maps: Sequence[Any], size: tuple[int, int]):
        self.maps, self.size = {one.view: one for one in maps}, size

    def __getitem__(self, row_and_view: tuple[int, int]) -> Shaped[np.ndarray, "*c h w"]:
        row, view = row_and_view
        return self.maps[view].in_frame(row, self.size)


def patch_batches(
    patches: Patches, maps: Sequence[Any], size: tuple[int, int], batch_size: int, workers: int = 0
) -> TruthBatches:
    """Batches of images, each in one of the views of the maps at random, with its label map in a frame of this size."""
    views = [one.view for one in maps]
    return TruthBatches(patches.batches(views, batch_size), FrameMaps(maps, size), views, workers, KEPT_NBYTES)


def write_curves(file: Path, trained: Iterable[TrainedMember]) -> None:
    """A row for each seed and epoch: seed, epoch, loss."""
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, ["seed", "epoch", "loss"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"seed": one.member.seed, **entry} for one in trained for entry in one.curve)


def train_linear(
    patches: Patches,
    maps: Sequence[Any],
    loss_size: int,
    members: Sequence[Member],
    recipe: Recipe,
    *,
    pixel_losses: Losses = pixel_loss,
    workers: int = 0,
    **following: Any,
) -> tuple[list[TrainedMember], dict[Member, str]]:
    """Train members side by side; those that diverge are left out, with a note each.

    Args:
        maps: of the views of the training images, `LabelMaps` or others that have `frame` and `in_frame`; one of them at random
            is shown in each epoch.
        loss_size: shorter side of the frame, in pixels, at whose pixels the loss is computed.
        pixel_losses: each member's loss, summed over the images, from logits on the grid and what `maps` give.
        workers: processes that decode label maps, in addition to this one.
        following: of `go_on`: checkpoint, progress, …

    Raises:
        BeyondClsError: fewer than two images, features that are not finite, or a damaged checkpoint.
    """
    grid, norm = patches.source.store.grid, patches.final_norm
    heads = [SPEC.build(patches.dim, grid[0] * grid[1], patches.n_classes, seed=member.seed) for member in members]
    family = Family.of(PatchStack(heads, patches.device), members)
    family.stack.template.final_norm = norm
    family.begin(recipe)
    size = maps[0].frame(loss_size)
    batches = patch_batches(patches, maps, size, recipe.at_once, workers)
    upsampling = Upsampling.to_frame(grid, size)

    def losses(logits: Float[Tensor, "M n K"], batch: Mapping[str, Any]) -> Float[Tensor, "M"]:
        labels = [torch.from_numpy(label_map).to(logits.device) for label_map in batch["truths"]]
        on_grid = logits.unflatten(1, (len(labels), *grid))
        return pixel_losses(on_grid, labels, [upsampling] * len(labels))

    go_on([family], batches, None, recipe, final_norm=norm, losses=losses, **following)
    trained = [
        TrainedMember(member, _as_patch_head(family.stack, m, grid, patches), family.curves[m])
        for m, member in enumerate(family.names)
    ]
    return trained, dict(family.lost)


def _as_patch_head(stack: Stack, member: int, grid: tuple[int, int], patches: Patches) -> PatchHead:
    head: Any = stack.head(member)
    scale = (head.norm.running_var + head.norm.eps).rsqrt()
    norm = copy.deepcopy(patches.final_norm)
    return PatchHead(head.norm.running_mean, scale, head.classifier.weight, head.classifier.bias, grid, norm).cpu().eval()
