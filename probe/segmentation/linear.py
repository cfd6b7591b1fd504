"""A linear classifier of patches, trained by its logits at pixels: all learning rates, weight decays and seeds in one pass."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.checkpoint import Checkpoint
from probe.cores import cores
from probe.grid import Epoch, HeadSpec, Member
from probe.recipe import Recipe
from probe.segmentation.batches import ShownViews
from probe.segmentation.label_maps import LabelMaps, Upsampling
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches
from probe.softmax_regression import LEAST
from probe.stack import Stack
from probe.train import Family, reporter, train


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


NAME = "linear"
SPEC = HeadSpec("average")  # its normalisation and classifier, with each patch in the place of an image's average


class PatchStack(Stack):
    """Heads whose vectors are the patches themselves: logits [M, B · T, K]."""

    def _pooled(self, features: Mapping[str, Tensor], training: bool) -> tuple[Tensor, None]:
        return features["patch"].flatten(0, 1), None


@dataclass(frozen=True)
class Trained:
    """A member that was trained.

    Attributes:
        curve: one entry an epoch: epoch and loss.
    """

    member: Member
    head: PatchHead
    curve: list[dict[str, float]]


def train_linear(
    patches: Patches,
    maps: Sequence[LabelMaps],
    loss_size: int,
    members: Sequence[Member],
    recipe: Recipe,
    *,
    workers: int = 0,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] = lambda n: None,
    say: Callable[[str], None] = lambda message: None,
    on_epoch: Callable[[Epoch], None] | None = None,
    stage: str = "training",
) -> tuple[list[Trained], dict[Member, str]]:
    """Train members side by side; those that diverge are left out, with a note each.

    Args:
        maps: of the views of the training images; one of them at random is shown in each epoch.
        loss_size: shorter side of the frame, in pixels, at whose pixels the loss is computed.
        workers: processes that decode label maps beside this one.
        progress: called with the number of epochs since the last call, summed over members.
        say: called with messages for the user.
        on_epoch: as of `probe`, with this stage.

    Raises:
        BeyondClsError: fewer than two images, features that are not finite, or a damaged checkpoint.
    """
    grid, norm = patches.source.store.grid, patches.final_norm
    heads = [SPEC.build(patches.dim, patches.n_patches, patches.n_classes, seed=member.seed) for member in members]
    values = torch.tensor([[m.base_lr, m.weight_decay] for m in members], dtype=torch.float64, device=patches.device)
    family = Family(PatchStack(heads, patches.device), values[:, 0], values[:, 1], list(members))
    family.stack.template.final_norm = norm
    family.begin(recipe)
    size = maps[0].frame(loss_size)
    loader = ShownViews(patches, maps, size, recipe.at_once, workers)
    upsampling = Upsampling.to_frame(grid, size)
    start = checkpoint.load([family]) if checkpoint else 0
    if start:
        say(f"going on after {start} of {recipe.epochs} epochs")
        progress(start * len(members))
    report = reporter(on_epoch, [family], recipe, loader.n_rows, stage)
    for epoch in range(1, start + 1):
        report(epoch, True)

    def after_epoch(epoch: int) -> None:
        progress(len(members))
        report(epoch)
        if checkpoint:
            checkpoint.save([family], epoch, force=epoch == recipe.epochs)

    def losses(logits: Float[Tensor, "M n K"], batch: Mapping[str, Any]) -> Float[Tensor, "M"]:
        labels = [torch.from_numpy(label_map).to(logits.device) for label_map in loader.label_maps(batch["row"].tolist())]
        on_grid = logits.unflatten(1, (len(labels), *grid))
        return pixel_loss(on_grid, labels, [upsampling] * len(labels))

    train([family], loader, None, recipe, 0, final_norm=norm, start=start, after_epoch=after_epoch, warn=say, losses=losses)
    trained = [
        Trained(member, _as_patch_head(family.stack, m, grid, patches), family.curves[m])
        for m, member in enumerate(family.names)
    ]
    return trained, dict(family.lost)


def _as_patch_head(stack: Stack, member: int, grid: tuple[int, int], patches: Patches) -> PatchHead:
    head = stack.head(member)
    mean, var = head.norm.running_mean, head.norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(var, Tensor)
    scale = (var + head.norm.eps).rsqrt()  # type: ignore[operator]
    norm = copy.deepcopy(patches.final_norm)
    return PatchHead(mean, scale, head.classifier.weight, head.classifier.bias, grid, norm).cpu().eval()
