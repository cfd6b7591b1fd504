"""Training against a plain implementation of one head, written out here; members of a grid against themselves alone."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from probe.aggregators import AGGREGATORS, Aggregator, Pooled
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.metrics import PER_IMAGE
from probe.optim import LARS, OPTIMISERS
from probe.recipe import Recipe
from probe.stack import Stack
from probe.train import Family, epoch_seed, losses_of, pieces, train
from store import BeyondClsError
from tests.probe.training import D, Images, K, T, equal, family, member, trained

GRID = [member(seed, lr, decay) for seed, lr, decay in ((0, 0.3, 0.0), (1, 0.3, 0.1), (0, 5.0, 0.01), (2, 0.02, 0.0))]


def sgd(w, g, state, lr, decay, momentum, step):
    state["m"] = momentum * state.get("m", 0) + g + decay * w
    return w - lr * state["m"]


def lars(w, g, state, lr, decay, momentum, step):
    if w.ndim > 1:
        g = g + decay * w
        norms = math.sqrt((w**2).sum()), math.sqrt((g**2).sum())
        g = g * (0.001 * norms[0] / norms[1] if min(norms) > 0 else 1)
    state["m"] = momentum * state.get("m", 0) + g
    return w - lr * state["m"]


def adamw(w, g, state, lr, decay, momentum, step):
    state["m"] = momentum * state.get("m", 0) + (1 - momentum) * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g**2
    w = w - lr * decay * w
    return w - lr * (state["m"] / (1 - momentum**step)) / (np.sqrt(state["v"] / (1 - 0.999**step)) + 1e-8)


RULES = {"sgd": sgd, "lars": lars, "adamw": adamw}


def plain_training(head, member, images, recipe):
    """The head that MAE's loop makes, with a step of what is left at the end of an epoch; losses, and percent right."""
    head.norm = nn.BatchNorm1d(D, affine=False, eps=1e-6)
    head = head.double().train()
    states = [(p, {}) for p in head.parameters()]
    losses, rights, n_steps, n_taken = [], [], math.ceil(images.n_rows / recipe.batch_size), 0
    if recipe.drop_last and images.n_rows >= recipe.batch_size:
        n_steps = images.n_rows // recipe.batch_size
    per_step = recipe.batch_size // recipe.at_once
    for epoch in range(recipe.epochs):
        total, right, n_seen = 0.0, 0, 0
        micro = list(images.epoch(epoch_seed(0, epoch)))
        for step in range(n_steps):
            group = [b for b in micro[step * per_step : (step + 1) * per_step] if len(b["label"]) > 1]
            if not group:
                continue
            for p, _ in states:
                p.grad = None
            for batch in group:
                vector = batch["cls"]
                if head.aggregator.trainable:
                    weights = torch.exp(head.aggregator.score(batch["patch"]))  # [B, T, 1]
                    vector = (batch["patch"] * weights / weights.sum(1, keepdim=True)).sum(1)
                logits = head.classifier(head.norm(vector))
                loss = nn.functional.cross_entropy(logits, batch["label"], reduction="sum")
                (loss / sum(len(b["label"]) for b in group)).backward()
                total, n_seen = total + loss.item(), n_seen + len(batch["label"])
                right += sum(row.index(max(row)) == y for row, y in zip(logits.tolist(), batch["label"].tolist(), strict=True))
            now, n_taken = epoch + step / n_steps, n_taken + 1
            if now < recipe.warmup_epochs:
                share = now / recipe.warmup_epochs
            else:
                share = 0.5 * (1 + math.cos(math.pi * (now - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)))
            lr = member.base_lr * recipe.batch_size / 256 * share
            for p, state in states:
                moved = RULES[recipe.optimiser](
                    p.detach().numpy(), p.grad.numpy(), state, lr, member.weight_decay, recipe.momentum, n_taken
                )
                p.data.copy_(torch.as_tensor(moved))
        losses.append(total / n_seen)
        rights.append(100 * right / n_seen)
    return head.eval(), losses, rights


# The rest of an epoch: a short batch; one image, which is no batch; a short batch after one that is whole, then one image;
# a rest that is dropped; fewer images than a batch, which are not.
CUTS = [(50, 16, 8, False), (49, 16, 16, False), (49, 32, 8, False), (45, 16, 8, True), (21, 32, 8, True)]
LRS = {"lars": 60.0, "sgd": 1.0, "adamw": 0.05}
HEADS_AND_RULES = [("lars", "abmilp"), ("adamw", "cls"), ("sgd", "abmilp"), ("lars", "cls"), ("lars", "abmilp")]


@pytest.mark.parametrize(("cut", "rule", "aggregator"), [(cut, *of) for cut, of in zip(CUTS, HEADS_AND_RULES, strict=True)])
def test_forty_steps_as_the_plain_implementation(cut, rule, aggregator):
    (n, batch_size, at_once, drop_last), lr = cut, LRS[rule]
    recipe = Recipe(-(-40 // -(-n // batch_size)), batch_size, at_once, rule, 1.0, 0.9, 0.0, 3, drop_last=drop_last)
    one, images, spec = member(1, lr, 0.01, aggregator), Images(n, at_once), HeadSpec(aggregator)
    reference, losses, rights = plain_training(spec.build(D, T, K, seed=1), one, images, recipe)
    [ours] = trained([family([one], spec)], recipe, images)
    reference.norm.num_batches_tracked.zero_()
    equal(ours.stack.head(0), reference, 1e-9)
    start = spec.build(D, T, K, seed=1)
    assert all((p - q).norm() > 0.01 for p, q in zip(reference.parameters(), start.parameters(), strict=True) if p.ndim > 1)
    assert [entry["loss"] for entry in ours.curves[0]] == pytest.approx(losses, rel=1e-9)
    assert [entry["train_top1"] for entry in ours.curves[0]] == pytest.approx(rights)


def test_first_adam_step_is_the_learning_rate_in_float32():
    leaf = torch.zeros(1, 2, 2, requires_grad=True)
    leaf.grad = torch.full((1, 2, 2), 0.5)
    OPTIMISERS["adamw"]({"weight": leaf}, torch.zeros(1, dtype=torch.float64), 0.9).step(torch.tensor([0.1]).double())
    np.testing.assert_allclose(leaf.detach(), -0.1, rtol=1e-6)  # 1 - 0.999 in float32 would be off by 1e-5


@pytest.mark.parametrize(("w", "g", "after"), [([0, 0], [1, 2], [-1, -2]), ([1, 2], [0, 0], [1, 2])])
def test_the_trust_ratio_is_one_where_a_norm_is_zero(w, g, after):
    leaf = torch.tensor([[w]], dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.tensor([[g]], dtype=torch.float64)
    LARS({"w": leaf}, torch.zeros(1, dtype=torch.float64), 0.0).step(torch.ones(1, dtype=torch.float64))
    assert leaf.tolist() == [[after]]


class Mine(Aggregator):
    """What a user writes, with a parameter that is a single number."""

    reads = ("patch", "cls")

    def __init__(self, dim, p=0.0):
        super().__init__(dim)
        self.query, self.drop = nn.Linear(dim, dim), nn.Dropout(p)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, features):
        scores = (features["patch"] * self.query(features["cls"])[:, None]).sum(-1) * self.temperature
        weights = self.drop(scores).softmax(-1)
        return Pooled((weights[..., None] * features["patch"]).sum(1), weights)


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    monkeypatch.setitem(AGGREGATORS, "mine", Mine)


SPECS = {
    "abmilp": HeadSpec("abmilp"),
    "deep": HeadSpec("abmilp", {"depth": 2, "branches": 2}),
    "mine": HeadSpec("mine"),
    "average": HeadSpec("average"),
    "cls": HeadSpec("cls", {}, "none"),
}


@pytest.mark.parametrize("name", ["deep", "mine", "average", "cls"])
def test_members_of_a_grid_are_those_that_train_alone(name):
    recipe, test = Recipe(4, 16, optimiser="lars", warmup_epochs=1), Images(30, seed=5)
    [together] = trained([family(GRID, SPECS[name])], recipe, test=test)
    for m, one in enumerate(GRID):
        [alone] = trained([family([one], SPECS[name])], recipe, test=test)
        equal(together.stack.head(m), alone.stack.head(0), 1e-10)
        for ours, theirs in zip(together.curves[m], alone.curves[0], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-10)
    assert not torch.equal(together.stack.parameters["classifier.weight"][0], together.stack.parameters["classifier.weight"][2])


def test_several_families_in_one_pass_are_those_of_passes_of_their_own():
    make = lambda: [family(GRID[:2], spec) for spec in SPECS.values()]  # noqa: E731
    together = trained(make())
    for ours, alone in zip(together, make(), strict=True):
        equal(ours.stack, trained([alone])[0].stack)


def test_several_labels_an_image():
    images = Images(several=True)
    [one] = trained([family([member()])], images=images, test=images)
    logits, labels = one.stack(images.tokens)[0][0], images.labels.double()
    p = logits.sigmoid()
    expected = -(labels * p.log() + (1 - labels) * (1 - p).log()).mean(1).sum()
    torch.testing.assert_close(losses_of(logits[None], images.labels), expected[None])
    assert {"map", "OF1", "loss", "epoch"} <= one.curves[0][-1].keys()
    assert "train_top1" not in one.curves[0][-1]


def test_dropout_is_the_same_in_every_run_and_not_the_same_in_members():
    spec, twins = HeadSpec("mine", {"p": 0.5}), [member(0), member(0, weight_decay=1e-30)]
    [one], [again] = (trained([family(twins, spec)]) for _ in range(2))
    equal(one.stack, again.stack)
    assert not torch.allclose(*one.stack.parameters["aggregator.query.weight"])


def test_generators_and_features_are_left_alone():
    torch.manual_seed(3)
    images, before = Images(), torch.get_rng_state()
    values = {kind: values.clone() for kind, values in images.tokens.items()}
    trained([family(GRID, HeadSpec("mine", {"p": 0.5}))], images=images, test=images)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(values[kind], now) for kind, now in images.tokens.items())


def test_every_epoch_has_its_own_order_and_every_order_its_own_epochs():
    assert len({epoch_seed(order, epoch) for order in range(20) for epoch in range(20)}) == 400
    starts, of_dropout = [], []

    class Watched(Images):
        def epoch(self, seed=0, start=0):
            starts.append(seed)
            of_dropout.append(torch.initial_seed())
            return super().epoch(seed, start)

    trained([family([member()])], images=Watched(), order=7)
    assert starts == [epoch_seed(7, epoch) for epoch in range(3)]
    assert len(set(of_dropout)) == 3


def test_the_final_norm_is_for_those_heads_that_want_it():
    norm = FinalNorm(torch.rand(D).double() + 0.5, torch.randn(D).double(), 1e-5)
    images = Images()
    normalised = Images(tokens=norm(images.tokens))
    plain = HeadSpec("abmilp")

    def with_norm():
        one = family([member()], plain)
        one.stack.template.final_norm = norm
        return one

    wants, does_not = trained([with_norm(), family([member()], plain)], images=images, test=images, final_norm=norm)
    [expected] = trained([family([member()], plain)], images=normalised, test=normalised)
    assert wants.curves[0][-1] == pytest.approx(expected.curves[0][-1])
    assert does_not.curves == trained([family([member()], plain)], images=images, test=images)[0].curves


class TestDivergence:
    @pytest.mark.parametrize(("name", "rule"), [("mine", "sgd"), ("average", "lars")])
    def test_a_member_that_diverges_is_dropped_and_touches_no_other(self, name, rule):
        messages, recipe, wild = [], Recipe(3, 16, optimiser=rule, warmup_epochs=1), member(3, 1e30, 1.0)
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            images = Images(dtype=dtype)
            [ours] = trained([family([*GRID[:2], wild, *GRID[2:]], SPECS[name], dtype)], recipe, images, warn=messages.append)
            [without] = trained([family(GRID, SPECS[name], dtype)], recipe, images)
            equal(ours.stack, without.stack, tolerance)
            assert ours.names == GRID
            assert len(ours.weight_decay) == len(ours.stack) == len(GRID)
            assert [len(curve) for curve in ours.curves] == [3] * len(GRID)
            assert ours.base_lr.tolist() == [one.base_lr for one in GRID]
            assert list(ours.lost) == [wild]
            assert ours.lost[wild].startswith("diverged in epoch ")
        assert "abmilp (base_lr 1e+30, weight_decay 1, seed 3) diverged in epoch " in messages[1]
        assert messages[1].endswith(" with base_lr 1e+30; lower it")

    def test_losses_that_are_finite_with_parameters_that_are_not(self):
        images = Images(16, 16, dtype=torch.float32)  # one step an epoch: the loss is of the parameters before it
        wild = member(base_lr=1e38, weight_decay=1e5)
        one = family([member(), wild], HeadSpec("cls"), torch.float32)
        messages, heads = [], Recipe(2, 16, optimiser="adamw", warmup_epochs=0)
        [ours] = trained([one], heads, images, warn=messages.append)
        assert ours.names == [member()]
        assert "diverged in epoch 1 (loss 1.1" in messages[0]

    def test_losses_that_are_not_with_parameters_that_are(self):
        one = family([member(), member(1, 1e-9)], HeadSpec("cls", {}, "none"), torch.float32)
        images = Images(tokens={"cls": torch.eye(1, D).expand(50, D)})
        with torch.no_grad():
            one.stack.parameters["classifier.weight"][1, :2, 0] = torch.tensor([3e38, -3e38])  # apart by more than there is
        [ours] = trained([one], images=images)
        assert ours.names == [member()]
        assert "(loss inf)" in ours.lost[member(1, 1e-9)]

    def test_all_members_end_the_pass(self):
        epochs, wild = [], [member(seed, 1e300, 1.0) for seed in range(3)]
        test = Images(seed=2)
        test.epoch = None  # nothing is left to be measured
        [ours] = trained([family(wild, SPECS["cls"])], test=test, after_epoch=epochs.append)
        assert list(ours.lost) == wild
        assert epochs == [1]
        assert trained([ours]) == [ours]  # nothing is left to train


def test_features_that_are_not_finite():
    images = Images()
    images.tokens["patch"][[17, 23], 2, 3] = torch.nan
    with pytest.raises(BeyondClsError, match=r"'patch' of 2 images are not finite, .* row 17"):
        trained([family(GRID)], images=images)
    trained([family(GRID, HeadSpec("cls"))], images=images)  # which looks elsewhere


def test_fewer_than_two_images():
    with pytest.raises(BeyondClsError, match="images to train on: 1, expected 2"):
        trained([family([member()])], images=Images(1))


def test_one_class_has_no_loss():
    one, images = Family.of(Stack([HeadSpec("cls").build(D, T, 1).double()]), [member(base_lr=1.0)]), Images()
    images.labels.zero_()
    train([one], images, images, Recipe(2, 16, optimiser="lars", warmup_epochs=0))
    assert one.curves[0][-1] == {"epoch": 2, "loss": 0.0, "train_top1": 100.0, **dict.fromkeys(PER_IMAGE, 100.0)}


def test_pieces_of_several_processes(monkeypatch):
    monkeypatch.setattr("probe.train.world_size", lambda: 4)
    plan = pieces(9, Recipe(2, 16, 8, warmup_epochs=0))
    assert [(p.rows, p.rows_of_step, p.skip, p.ends_step) for p in plan] == [
        (2, 16, False, False), (2, 16, False, True), (2, 16, False, False), (2, 16, False, True), (1, 4, False, True)
    ]  # fmt: skip
    with pytest.raises(BeyondClsError, match=r"batch_size 16 \(at once 2\) cannot be shared by 4 processes"):
        pieces(9, Recipe(2, 16, 2, warmup_epochs=0))
