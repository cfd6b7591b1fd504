"""From patches to pixels, against torch's interpolation; and the loss at pixels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from probe.segmentation.label_maps import Upsampling
from probe.segmentation.linear import pixel_loss

GRID = (3, 4)


@pytest.mark.parametrize("size", [(12, 16), (7, 9), (2, 3)])
def test_bilinear_as_torch(size):
    logits = torch.randn(2, 5, *GRID)
    theirs = F.interpolate(logits, size=size, mode="bilinear")
    torch.testing.assert_close(Upsampling.to_frame(GRID, size).bilinear(logits), theirs)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", [(0, 0, 21, 17), (3.5, -2, 15.25, 30), (-4, -4, 40, 8), (30, 0, 40, 17)])
def test_back_to_the_original(crop, flip):
    """A pixel is that of the view in which its centre is. The view may show any part of the image, mirrored or not, or none."""
    upsampling = Upsampling.to_original(GRID, crop, flip, (17, 21))
    labels = np.arange(12, dtype=np.int16).reshape(GRID)
    original = logits = np.random.default_rng(0).normal(size=(2, *GRID)).astype(np.float32)
    whole = np.full((17, 21), -1, np.int16)
    whole[upsampling.shown] = upsampling.nearest(labels)
    if flip:
        labels, logits = labels[:, ::-1], logits[..., ::-1].copy()
    rows, columns = (
        (np.arange(n) + 0.5 - start) * (cells / (stop - start))
        for n, start, stop, cells in ((17, *crop[1::2], GRID[0]), (21, *crop[::2], GRID[1]))
    )
    inside = ((rows >= 0) & (rows < GRID[0]))[:, None] & (columns >= 0) & (columns < GRID[1])
    nearest = labels[np.floor(rows).astype(int).clip(0, 2)[:, None], np.floor(columns).astype(int).clip(0, 3)]
    np.testing.assert_array_equal(whole, np.where(inside, nearest, -1))
    places = torch.tensor(np.stack(np.broadcast_arrays(columns / 4, rows[:, None] / 3), -1) * 2 - 1).float()[None]
    between = F.grid_sample(torch.from_numpy(logits)[None], places, padding_mode="border", align_corners=False)[0].numpy()
    np.testing.assert_allclose(
        upsampling.bilinear(torch.from_numpy(original)).numpy(), between[:, *upsampling.shown], atol=1e-5
    )


def test_loss_and_gradient_as_cross_entropy():
    """Void is ignored; an image that is void everywhere counts nothing. One member is as wrong as can be."""
    torch.manual_seed(0)
    size, members, n_classes = (9, 8), 2, 3
    logits = torch.randn(members, 3, *GRID, n_classes, dtype=torch.float64)
    logits = (logits * torch.tensor([1, 500]).view(-1, 1, 1, 1, 1)).requires_grad_()
    labels = torch.randint(-1, n_classes, (3, *size))
    labels[2] = -1
    upsampling = Upsampling.to_frame(GRID, size)
    loss = pixel_loss(logits, list(labels), [upsampling] * 3)
    (gradient,) = torch.autograd.grad((loss * torch.tensor([1.0, 3.0])).sum(), logits)
    pixels = F.interpolate(logits.flatten(0, 1).movedim(-1, 1), size=size, mode="bilinear").unflatten(0, (members, 3))
    theirs = torch.stack([sum(F.cross_entropy(p[i][None], labels[i][None], ignore_index=-1) for i in (0, 1)) for p in pixels])
    (expected,) = torch.autograd.grad((theirs * torch.tensor([1.0, 3.0])).sum(), logits)
    torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
