"""A linear head that predicts depth or normals of pixels from cached patch tokens: training, measures, and their files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probe.depth.maps import Counts, Maps
from probe.depth.targets import Target
from probe.grid import HeadPlan, Member
from probe.head import FinalNorm
from probe.recipe import Recipe
from probe.result_files import METRICS, computed_by, over_seeds, write_result
from probe.segmentation.label_maps import Upsampling
from probe.segmentation.linear import NAME, SPEC, TrainedMember, WithGradient, train_linear, write_curves
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches
from probe.sources import Source, check_encoder
from probe.subsets import without_each
from store import BeyondClsError, FeatureStore
from store.format.pretraining import pretraining_fields
from store.shown import Bars, no_bars

MEAN = "mean"  # the protocol that sees no image: the mean of the training pixels, everywhere
# A peak learning rate of 0.008 at 16 images a step.
PLAN = HeadPlan(
    SPEC,
    Recipe(epochs=20, batch_size=16, optimiser="adamw", base_lr=0.128, weight_decay=0.01, warmup_epochs=2),
    seeds=(0, 1, 2),
)
PerImage = dict[str, Float[np.ndarray, "n"]]  # measures by name


@dataclass(frozen=True, eq=False)
class Regression:
    """What is learnt and measured.

    Attributes:
        training, test: feature sets of one encoder.
        maps, test_maps: folders of files by the ids of their images.
        block: whose tokens are read, of both sets; by default the deepest one of the training set.
        with_cls: [cls] is put behind each patch.
        eigen_crop: measure that part of NYUv2's test images alone.
        views: of the training images.
        loss_size: shorter side, in pixels, of the frame at whose pixels the loss is computed; the view's by default.
    """

    training: FeatureStore
    test: FeatureStore
    target: Target
    maps: Path
    test_maps: Path
    plan: HeadPlan = PLAN
    block: int | None = None
    final_norm: bool = False
    with_cls: bool = False
    eigen_crop: bool = False
    views: Sequence[int] = (0,)
    loss_size: int | None = None
    placement: Any = "auto"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        """Check that both sets have the tokens.

        Raises:
            StoreError: they are of two encoders, or one has no patch tokens of the block, or no [cls].
        """
        if self.block is None:  # the deepest one of another set may be another
            object.__setattr__(self, "block", self.training.spec.deepest)
        check_encoder(self.training, self.test)

        for store in (self.training, self.test):
            store.check_evaluation_crop()
            store.tokens("patch", self.block)
            if self.with_cls:
                store.tokens("cls", self.block)

    def maps_of(self, store: FeatureStore, folder: Path, view: int = 0, eigen_crop: bool = False) -> Maps:
        """Of all images of a set that could be read."""
        rows = np.flatnonzero(store.valid)
        return Maps(store, view, folder=folder, target=self.target, rows=rows, eigen_crop=eigen_crop)

    def patches(self, store: FeatureStore, rows: Sequence[int]) -> Patches:
        """Patches of some images; what is learnt of them is not their labels."""
        labels = np.zeros((len(store), store.grid[0] * store.grid[1]), np.int16)
        norm = FinalNorm.from_store(self.training).to(self.device) if self.final_norm else None
        return Patches(
            Source(store, block=self.block),
            np.array(rows, np.int64),
            labels,
            self.target.n_outputs,
            final_norm=norm,
            device=self.device,
            with_cls=self.with_cls,
        )


def pixel_losses(
    target: Target,
    logits: Float[Tensor, "M B rows columns K"],
    truths: Sequence[Float[Tensor, "C _h _w"]],
    upsamplings: Sequence[Upsampling],
) -> Float[Tensor, "M"]:
    """Sum over the images of the loss of an image's pixels that have a truth; an image without any counts 0.

    Gradients come with the losses, image by image, so that the values of one image's pixels are in memory at once.
    """

    def compute(logits: Tensor) -> tuple[Tensor, Tensor]:
        total, gradient = logits.new_zeros(len(logits)), torch.zeros_like(logits)
        for i, truth in enumerate(truths):
            seen = ~truth[0].isnan()
            if not bool(seen.any()):
                continue
            to_frame = partial(Upsampling.to_frame, size=(truth.shape[-2], truth.shape[-1]))
            with torch.enable_grad():
                of_image = logits[:, i].detach().requires_grad_()
                losses = target.losses(target.predicted(of_image.movedim(-1, 1), to_frame)[..., seen], truth[:, seen])
                (gradient[:, i],) = torch.autograd.grad(losses.sum(), of_image)
            total += losses.detach()
        return total, gradient

    return WithGradient.apply(logits, compute)


def regress(regression: Regression, bars: Bars = no_bars) -> tuple[dict[str, Any], list[TrainedMember]]:
    """Train a head for each seed, and measure them, and the mean of the training pixels, on the test images.

    Returns:
        What is measured, and what describes it: measures are means over images that have a pixel to measure. And the heads.

    Raises:
        BeyondClsError: maps that cannot be read or have no value; fewer than two training images; or a head that diverged.
    """
    one, plan = regression, regression.plan
    maps = [one.maps_of(one.training, one.maps, view) for view in one.views]
    test_maps = one.maps_of(one.test, one.test_maps, eigen_crop=one.eigen_crop)
    learnt, tested = Counts.of(maps[0]), Counts.of(test_maps)  # all files are read before anything trains
    mean = learnt.sums / learnt.measured
    target = one.target.starting_at(mean)
    patches, recipe = one.patches(one.training, learnt.rows), plan.recipe
    members = [Member(NAME, recipe.base_lr, recipe.weight_decay, seed) for seed in plan.seeds]
    size = one.loss_size or min(one.training.spec.transform["input_size"][1:])
    with bars("train", recipe.epochs * len(members), "epochs") as progress:
        options: dict[str, Any] = {"pixel_losses": partial(pixel_losses, target), "progress": progress}
        trained, lost = train_linear(patches.placed(one.placement), maps, size, members, recipe, **options)
    if lost:
        raise BeyondClsError(f"{next(iter(lost))} {next(iter(lost.values()))}")
    measured, heads = list[list[dict[str, float]]](), [t.head.to(one.device) for t in trained]
    with bars("measure", len(tested.rows), "images") as progress:
        for of_image in _measure_images(one, target, test_maps, tested.rows, heads, mean):
            measured.append(of_image)
            progress(1)
    per_image = [{name: np.array([of[name] for of in images]) for name in images[0]} for images in zip(*measured, strict=True)]
    about = {"seeds": list(plan.seeds), "recipe": asdict(recipe), "loss_size": size, "n_views": len(one.views)}
    content = {
        "task": target.name,
        "encoder": one.training.attributes["encoder"],
        **pretraining_fields(one.training.attributes),
        "features": {"training": one.training.spec.key, "test": one.test.spec.key},
        "data": one.test.spec.data,
        "block": one.block,
        "grid": list(one.training.grid),
        "final_norm": one.final_norm,
        "cls": one.with_cls,
        "eigen_crop": one.eigen_crop,
        "target": asdict(target),  # type: ignore[call-overload]
        "n_training": len(learnt.rows),
        "n_test": len(tested.rows),
        "n_without": {"training": len(maps[0].files) - len(learnt.rows), "test": len(test_maps.files) - len(tested.rows)},
        "pixels": {"training": learnt.described, "test": tested.described},
        "protocols": {NAME: {**_average_over_images(per_image[:-1]), **about}, MEAN: _average_over_images(per_image[-1:])},
        **computed_by(one.device),
    }
    return content, trained


def _measure_images(
    one: Regression, target: Target, maps: Maps, rows: Sequence[int], heads: Sequence[PatchHead], mean: Float[np.ndarray, "C"]
) -> Iterator[list[dict[str, float]]]:
    """Of each image the measures of each head, and at last of the mean, by name."""
    constant = target.at_pixels(torch.from_numpy(mean)[:, None, None])[:, 0].numpy()
    for of_batch, tokens in one.patches(one.test, rows).images():
        logits = [head.of_tokens(tokens) for head in heads]
        for i, row in enumerate(of_batch.tolist()):
            truth = maps.shown(row).astype(np.float64)
            seen = ~np.isnan(truth[0])
            predictions = [np.broadcast_to(constant, (len(constant), int(seen.sum())))]
            for of_head in logits:
                predicted = target.predicted(of_head[i], partial(maps.upsampling, row)).cpu().numpy().astype(np.float64)
                predictions.insert(-1, (target.mirrored(predicted) if maps.flips[row] else predicted)[:, seen])
            yield [target.measures(predicted, truth[:, seen]) for predicted in predictions]


def _average_over_images(per_image: Sequence[PerImage]) -> dict[str, Any]:
    """Each measure, as `over_seeds` gives it."""

    def measured(several: Sequence[Float[np.ndarray, "n"]]) -> dict[str, Any]:
        without = [without_each(len(values), lambda chosen, v=values: float(v[chosen].mean())) for values in several]  # type: ignore[misc]
        return over_seeds([float(values.mean()) for values in several], without)

    return {name: measured([one[name] for one in per_image]) for name in per_image[0]}


def write(folder: Path, content: Mapping[str, Any], trained: Sequence[TrainedMember]) -> None:
    """Write metrics.json, description.json and curves.csv."""
    write_result(folder / METRICS, content)
    write_curves(folder / "curves.csv", trained)
