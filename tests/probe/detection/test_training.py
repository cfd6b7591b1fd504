"""Training a detector: it learns, and every draw follows from seed and step (runs that are killed: test_run.py)."""

import math

import pytest
import torch

from probe.detection import training
from probe.detection.recipe import DetectionRecipe, make_detection_recipe
from probe.detection.training import new_detector, optimiser_of, train_detector
from store import BeyondClsError
from tests.probe.detection.tiny import Objects, tiny_detector

RECIPE = DetectionRecipe(epochs=2, batch_size=2, lr=3e-3, warmup_steps=2, clip=1.0)


def same(ours, theirs) -> bool:
    return all(torch.equal(p, theirs.state_dict()[name]) for name, p in ours.state_dict().items())


def test_learns():
    detector, objects = tiny_detector(), Objects(4)
    recipe = DetectionRecipe(epochs=15, batch_size=2, lr=1e-2, warmup_steps=5, schedule="cosine", clip=1.0)
    curve = train_detector(detector, objects, recipe, 0)
    assert [entry["epoch"] for entry in curve] == list(range(1, 16))
    assert curve[-1]["loss"] < curve[0]["loss"] * 0.8
    assert curve[-1]["loss_objectness"] < 0.1
    parts = [value for name, value in curve[-1].items() if name.startswith("loss_")]
    assert curve[-1]["loss"] == pytest.approx(sum(parts))


def test_the_start_follows_from_the_seed():
    one, again, other = (new_detector(lambda: tiny_detector(int(torch.randint(2**31, ()))), seed) for seed in (0, 0, 1))
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_each_step_has_its_learning_rate_and_no_longer_gradient(clip, monkeypatch):
    rates, norms = [], []
    step = torch.optim.AdamW.step

    def recorded(optimiser):
        gradients = [p.grad.norm() for group in optimiser.param_groups for p in group["params"]]
        norms.append(float(torch.stack(gradients).norm()))
        rates.append([group["lr"] for group in optimiser.param_groups])
        step(optimiser)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    recipe = DetectionRecipe(epochs=2, batch_size=2, lr=3e-3, warmup_steps=2, clip=clip)
    train_detector(tiny_detector(), Objects(4), recipe, 0)
    assert rates == [[recipe.lr_at(number, 2)] * 2 for number in range(4)]
    assert norms == pytest.approx([1e-3] * 4, rel=1e-2) if clip else min(norms) > 0.1


def test_no_two_draws_are_the_same(monkeypatch):
    """Of orders and of what losses are computed from: each epoch, step and seed has its own."""
    drawn, isolated = [], training.isolated_randomness
    monkeypatch.setattr(training, "isolated_randomness", lambda seed: drawn.append(seed) or isolated(seed))

    class Recorded(Objects):
        def epoch(self, seed, start=0):
            drawn.append(seed)
            return super().epoch(seed, start)

    for seed in (0, 1):
        train_detector(tiny_detector(), Recorded(4), RECIPE, seed)
    assert len(set(drawn)) == len(drawn) == 2 * (2 + 2 * 2)


def test_images_without_objects_are_negatives():
    objects, empty = Objects(2), Objects(2)
    empty.targets[0] = {name: values[:0] for name, values in empty.targets[0].items()}
    recipe = DetectionRecipe(epochs=1, batch_size=2, warmup_steps=0)
    losses = [train_detector(tiny_detector(), one, recipe, 0)[0]["loss"] for one in (objects, empty)]
    assert math.isfinite(losses[1])
    assert losses[0] != losses[1]


def test_the_curve_has_means_over_the_steps_of_each_epoch(monkeypatch):
    losses = ({"loss_a": float(step), "loss_b": 2.0 * step} for step in range(4))
    monkeypatch.setattr(training, "_step", lambda *_: next(losses))
    curve = train_detector(tiny_detector(), Objects(4), RECIPE, 0)
    assert [(one["loss"], one["loss_a"], one["loss_b"]) for one in curve] == [(1.5, 0.5, 1.0), (7.5, 2.5, 5.0)]


def test_norms_and_biases_have_no_decay():
    detector = tiny_detector()
    decayed, free = optimiser_of(detector, RECIPE).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (RECIPE.weight_decay, 0)
    assert {p.ndim for p in free["params"]} == {1}
    assert len(decayed["params"]) + len(free["params"]) == len(list(detector.parameters()))
    sgd = optimiser_of(detector, DetectionRecipe(optimiser="sgd", lr=0.5))
    assert {(group["lr"], group["momentum"]) for group in sgd.param_groups} == {(0.5, 0.9)}


def test_steps_of_the_paper():
    """36 epochs: a tenth after 27, a hundredth after 33; 12: after 9 and 11. Warm-up from a thousandth."""
    recipe = make_detection_recipe("v1")
    assert (recipe.epochs, recipe.batch_size, recipe.optimiser, recipe.weight_decay) == (36, 16, "adamw", 0.05)
    rates = [recipe.lr_at(step, 1000) for step in (0, 250, 500, 26_999, 27_000, 32_999, 33_000)]
    assert rates == pytest.approx([1e-7, 1e-4 * (0.001 + 0.999 / 2), 1e-4, 1e-4, 1e-5, 1e-5, 1e-6])
    shorter = make_detection_recipe("v1", epochs=10)
    assert [shorter.lr_at(step, 1000) for step in (7999, 8000, 8999, 9000)] == pytest.approx([1e-4, 1e-5, 1e-5, 1e-6])
    cosine = DetectionRecipe(epochs=2, lr=1.0, warmup_steps=0, schedule="cosine")
    assert [cosine.lr_at(step, 10) for step in (0, 10, 20)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected 1 or more"),
        ({"lr": 0.0}, "lr is 0.0, expected a positive number"),
        ({"clip": 0.0}, "clip is 0.0, expected"),
        ({"optimiser": "adam"}, "'adam'; did you mean 'adamw'"),
        ({"rate": 1}, "unknown parameter of detection 'rate'"),
    ],
)
def test_recipes_that_cannot_be(changed, message):
    with pytest.raises(BeyondClsError, match=message):
        make_detection_recipe(**changed)


def test_a_loss_that_is_not_finite(monkeypatch):
    monkeypatch.setattr(training, "_step", lambda *_: {"loss_a": 1.0, "loss_b": math.inf})
    with pytest.raises(BeyondClsError, match=r"the loss of seed 4 is inf in epoch 1, step 1, .*give a lower --lr"):
        train_detector(tiny_detector(), Objects(2), RECIPE, 4)
