"""A linear classifier of patches, trained by its logits at pixels: all learning rates, weight decays and seeds in one pass."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probe.checkpoint import Checkpoint
from probe.grid import HeadSpec, Member
from probe.recipe import Recipe
from probe.segmentation.label_maps import LabelMaps
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches
from probe.segmentation.pixel_loss import pixel_loss
from probe.stack import Stack
from probe.train import Family, train
from store import Loader

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
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] = lambda n: None,
    say: Callable[[str], None] = lambda message: None,
) -> tuple[list[Trained], dict[Member, str]]:
    """Train members side by side; those that diverge are left out, with a note each.

    Args:
        maps: of the views of the training images; one of them at random is shown in each epoch.
        loss_size: shorter side of the frame, in pixels, at whose pixels the loss is computed.
        progress: called with the number of epochs since the last call, summed over members.
        say: called with messages for the user.

    Raises:
        BeyondClsError: fewer than two images, features that are not finite, or a damaged checkpoint.
    """
    grid, norm = patches.source.store.grid, patches.final_norm
    heads = [SPEC.build(patches.dim, patches.n_patches, patches.n_classes, seed=member.seed) for member in members]
    values = torch.tensor([[m.base_lr, m.weight_decay] for m in members], dtype=torch.float64, device=patches.device)
    family = Family(PatchStack(heads, patches.device), values[:, 0], values[:, 1], list(members))
    family.stack.template.final_norm = norm
    family.begin(recipe)
    loader = _ShownViews(patches, [maps_of_view.view for maps_of_view in maps], recipe.at_once)
    start = checkpoint.load([family]) if checkpoint else 0
    if start:
        say(f"going on after {start} of {recipe.epochs} epochs")
        progress(start * len(members))

    def after_epoch(epoch: int) -> None:
        progress(len(members))
        if checkpoint:
            checkpoint.save([family], epoch, force=epoch == recipe.epochs)

    def losses(logits: Float[Tensor, "M n K"], batch: Mapping[str, Any]) -> Float[Tensor, "M"]:
        rows, shown = batch["row"].tolist(), loader.shown
        at = [maps[0 if shown is None else int(shown[row])] for row in rows]
        size = maps[0].frame(loss_size)
        labels = [torch.from_numpy(m.in_frame(row, size)).to(logits.device) for m, row in zip(at, rows, strict=True)]
        on_grid = logits.unflatten(1, (len(rows), *grid))
        return pixel_loss(on_grid, labels, [maps[0].upsampling(rows[0], loss_size)] * len(rows))

    train([family], loader, None, recipe, 0, final_norm=norm, start=start, after_epoch=after_epoch, warn=say, losses=losses)
    trained = [
        Trained(member, _as_patch_head(family.stack, m, grid, patches), family.curves[m])
        for m, member in enumerate(family.names)
    ]
    return trained, dict(family.lost)


@dataclass
class _ShownViews:
    """Batches of patches with their labels, that remember which view of each image the running epoch shows."""

    patches: Patches
    views: Sequence[int]
    batch_size: int
    shown: Tensor | None = None

    def __post_init__(self) -> None:
        patches = self.patches
        self._loader = Loader(
            {"patch": patches.source.arrays("patch", self.views)},
            patches.labels,
            patches.rows,
            self.batch_size,
            device=patches.device,
            placement=patches.placement,
            buffer_nbytes=patches.buffer_nbytes,
        )

    @property
    def n_rows(self) -> int:
        return self._loader.n_rows

    def epoch(self, seed: int = 0, start: int = 0) -> Any:
        self.shown = self._loader.views_of(seed)
        return self._loader.epoch(seed, start)


def _as_patch_head(stack: Stack, member: int, grid: tuple[int, int], patches: Patches) -> PatchHead:
    head = stack.head(member)
    mean, var = head.norm.running_mean, head.norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(var, Tensor)
    scale = (var + head.norm.eps).rsqrt()  # type: ignore[operator]
    norm = copy.deepcopy(patches.final_norm)
    return PatchHead(mean, scale, head.classifier.weight, head.classifier.bias, grid, norm).cpu().eval()
