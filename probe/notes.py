"""What a reader of a trained head's numbers should know about how it was trained."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Integer

from probe.metrics import n_without_positive
from probe.recipe import Recipe

ENOUGH_DRAWS = 5
FRESH = "fresh"  # number of crops where each epoch shows a crop that no epoch before has shown


def notes_on_training(
    recipe: Recipe, n_images: int, n_seeds: int, views: Sequence[int] | None, drop_path: float = 0.0
) -> list[str]:
    """Sentences, in the order in which they are shown.

    Args:
        n_images: of the training set.
        n_seeds: that were trained.
        views: of the training images that were shown; 0 is the evaluation crop, the others are random crops. None: a fresh
            random crop in each epoch.
        drop_path: the rate of stochastic depth of these crops.
    """
    shown, batch, rest = augmentation(views, drop_path), recipe.batch_size, n_images % recipe.batch_size
    notes = []
    if not shown["n_crops"]:
        notes.append(
            "no augmentation: every epoch shows the evaluation crop of each image, where the paper shows a new random crop; "
            "extract the training images with --views to have some"
        )
    elif views is not None and len(views) == 1:
        notes.append("no augmentation: every epoch shows the same random crop of each image; give more --views")
    if "drop_path" in shown:
        notes.append(
            f"stochastic depth: branches of the encoder were dropped in crops (drop_path {drop_path:g}), not in test images"
        )
    if n_images < batch:
        official = ", where the official code, which drops it, would train on nothing" if recipe.drop_last else ""
        notes.append(
            f"batch_size {batch:,}, but {n_images:,} training images: a step has {n_images:,}{official}, and base_lr is still "
            f"scaled by {batch:,}/256 = {batch / 256:g}"
        )
    elif recipe.drop_last and rest:
        notes.append(f"drop_last: {rest:,} of {n_images:,} training images are left out of each epoch, others in each")
    if recipe.order != "own" and n_seeds > 1:
        crops = " and crops" if views is None or len(views) > 1 else ""
        notes.append(
            f"all {n_seeds} seeds see the same order of images{crops}: their spread is that of where heads start alone, not of "
            "the order; --order own gives each its own"
        )
    return notes


def notes_on_classes(training: Integer[np.ndarray, "N K"], test: Integer[np.ndarray, "M K"]) -> list[str]:
    """Classes of several an image that nothing is known of, and those that no mean over classes includes."""
    sides = {"training image": training, "test image and are in no mean over classes": test}
    missing = {words: n_without_positive(torch.from_numpy(labels)) for words, labels in sides.items()}
    return [f"{n} of {training.shape[1]} classes have no {words}" for words, n in missing.items() if n]


def notes_on_draws(n: int) -> list[str]:
    """That few seeds have drawn training images of their own."""
    few = f"{n} draws of the training images: give {ENOUGH_DRAWS} seeds or more for their spread"
    return [few] if n < ENOUGH_DRAWS else []


def augmentation(views: Sequence[int] | None, drop_path: float = 0.0) -> dict[str, int | float | str | bool]:
    """How many stored random crops of each image training draws from, and whether it draws from the evaluation crop, too.

    Args:
        views: None where each epoch shows a fresh crop.
        drop_path: the rate of stochastic depth of crops; left out where it is 0, or none is shown.
    """
    n_crops = FRESH if views is None else sum(view > 0 for view in views)
    shown = {"n_crops": n_crops, "evaluation_view": views is not None and 0 in views}
    return shown | ({"drop_path": drop_path} if drop_path and n_crops else {})
