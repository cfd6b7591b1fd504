"""The linear head: trained like torch's layers would be, on the views that are shown."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probe.grid import Member
from probe.head import FinalNorm
from probe.recipe import Recipe
from probe.segmentation import linear
from probe.segmentation.label_maps import LabelMapsOfView
from probe.segmentation.linear import SPEC, patch_batches, train_linear
from probe.segmentation.sets import Sets
from tests.probe.segmentation.features import SIDE, write_segmented

RECIPE = Recipe(epochs=3, batch_size=12, optimiser="sgd", warmup_epochs=0)
MEMBERS = [Member("linear", lr, 0.0, seed) for lr in (2.0, 20.0) for seed in (0, 1)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    store = write_segmented(tmp_path_factory.mktemp("sets") / "train", 12)
    return Sets(store, store)


def weights(trained):
    return torch.stack([t.head.weight for t in trained])


def test_steps_are_those_of_plain_layers(sets):
    """Batch normalisation, a 1x1 convolution, interpolation, cross-entropy without void: a step takes all images."""
    trained, lost = train_linear(sets.learnt, sets.training_maps, 16, MEMBERS, RECIPE)
    assert not lost
    tokens = torch.from_numpy(sets.training.tokens("patch").rows(range(12))).float().mT.unflatten(2, (SIDE, SIDE))
    labels = [torch.from_numpy(sets.training_maps[0].in_frame(row, (16, 16))).long() for row in range(12)]
    for one in trained:
        start = SPEC.build(6, 16, 3, seed=one.member.seed).classifier
        norm, convolution = nn.BatchNorm2d(6, affine=False, eps=1e-6), nn.Conv2d(6, 3, 1)
        convolution.weight.data, convolution.bias.data = start.weight.data[..., None, None].clone(), start.bias.data.clone()
        optimiser = torch.optim.SGD(convolution.parameters(), lr=1.0, momentum=0.9)
        for epoch in range(3):
            optimiser.param_groups[0]["lr"] = (
                one.member.base_lr * 12 / 256 * (1 + torch.cos(torch.tensor(epoch / 3) * torch.pi).item()) / 2
            )
            pixels = F.interpolate(convolution(norm(tokens)), size=(16, 16), mode="bilinear")
            loss = sum(F.cross_entropy(p[None], y[None], ignore_index=-1) for p, y in zip(pixels, labels, strict=True)) / 12
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.testing.assert_close(one.head.weight, convolution.weight[..., 0, 0].detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            one.head({"patch": tokens.flatten(2).mT}), convolution(norm.eval()(tokens)).detach(), rtol=1e-4, atol=1e-4
        )


def test_label_maps_are_kept_while_there_is_room(sets, monkeypatch):
    monkeypatch.setattr(linear, "KEPT_NBYTES", 5 * 16 * 16 * 2)
    batches = patch_batches(sets.learnt, sets.training_maps, (16, 16), 4)
    first, second = (
        {row: truth for batch in batches.epoch(seed) for row, truth in zip(batch["row"].tolist(), batch["truths"], strict=True)}
        for seed in (0, 1)
    )
    assert sum(first[row] is second[row] for row in range(12)) == 5
    assert all((truth == sets.training_maps[0].in_frame(row, (16, 16))).all() for row, truth in second.items())


def test_other_processes_decode_the_same_label_maps(tmp_path, monkeypatch):
    """Of the view that an epoch shows of each image, also where some are kept."""
    sets = Sets(*[write_segmented(tmp_path / "train", 12, views=2)] * 2, views=(0, 1))
    sets.training_maps[1].flips[:] = True
    monkeypatch.setattr(linear, "KEPT_NBYTES", 5 * 16 * 16 * 2)
    shown = []
    for workers in (0, 1):
        batches = patch_batches(sets.learnt, sets.training_maps, (16, 16), 4, workers)
        shown.append([truth for seed in (0, 1) for batch in batches.epoch(seed) for truth in batch["truths"]])
        monkeypatch.setattr(LabelMapsOfView, "in_frame", None)  # of this process; others import it anew
    assert len(shown[0]) == 24
    np.testing.assert_array_equal(*shown)


def test_each_view_has_its_own_labels(tmp_path):
    """A mirrored view teaches the same as the first one, alone and where each epoch shows either."""
    store = write_segmented(tmp_path / "train", 12, views=2, mirrored=[1])
    trained = []
    for views in ((0,), (1,), (0, 1)):
        sets = Sets(store, store, views=views)
        assert tuple(maps.view for maps in sets.training_maps) == views
        trained.append(weights(train_linear(sets.learnt, sets.training_maps, 16, MEMBERS, RECIPE)[0]))
    for other in trained[1:]:
        torch.testing.assert_close(other, trained[0], rtol=1e-4, atol=1e-5)


def test_the_final_norm_is_part_of_the_head(tmp_path):
    store = write_segmented(tmp_path / "train", 12, norm=True)
    sets = Sets(store, store, final_norm=True)
    (one, *_), _ = train_linear(sets.learnt, sets.training_maps, 16, MEMBERS, RECIPE)
    tokens = torch.from_numpy(store.tokens("patch").rows(range(12))).float()
    _, normed = next(iter(sets.learnt.part(range(12)).images()))
    torch.testing.assert_close(normed, FinalNorm.from_store(store)({"patch": tokens})["patch"])
    assert torch.equal(one.head({"patch": tokens}), one.head.of_tokens(normed))
    running = (1 - 0.9**3) * normed.mean((0, 1))  # of batch normalisation, after three steps from 0
    torch.testing.assert_close(one.head.mean, running, rtol=1e-4, atol=1e-4)


def test_a_member_that_diverges_is_left_out(sets):
    """The others are as they would be without it."""
    wild, tame = Member("linear", 1e60, 0.0, 0), MEMBERS[0]
    (one,), lost = train_linear(sets.learnt, sets.training_maps, 16, [wild, tame], RECIPE)
    ((alone, *_), _) = train_linear(sets.learnt, sets.training_maps, 16, MEMBERS, RECIPE)
    assert (one.member, list(lost)) == (tame, [wild])
    torch.testing.assert_close(one.head.weight, alone.head.weight, rtol=1e-4, atol=1e-5)
