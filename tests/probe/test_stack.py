"""Stacked members against torch's modules, one by one, and their measures against a loop over single images."""

import math

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss
from torch import nn

from probe.aggregators import AGGREGATORS
from probe.evaluate import evaluate
from probe.grid import HeadSpec
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.stack import Stack
from store import BeyondClsError
from tests.probe.training import D, Images, K, T

SPECS = {
    "abmilp": HeadSpec("abmilp"),
    "three branches": HeadSpec("abmilp", {"branches": 3}),
    "batch-normalised tokens": HeadSpec("ap", {"heads": 2, "form": "aim"}),
    "cls": HeadSpec("cls"),
    "average": HeadSpec("average"),
    "plain": HeadSpec("abmilp", {}, "none"),
    "plain cls": HeadSpec("cls", {}, "none"),
}
M = 3


def heads_of(spec, dtype=torch.float64, n=M):
    return [spec.build(D, T, K, seed=seed).to(dtype) for seed in range(n)]


@pytest.fixture
def batches():
    return list(Images(45, 15).epoch())


@pytest.mark.parametrize("name", SPECS)
class TestEveryStack:
    def test_is_its_heads_in_training_and_evaluation(self, name, batches):
        heads = heads_of(SPECS[name])
        stack = Stack(heads)
        for batch in batches:
            ours, weights = stack(batch, training=True)
            for m, head in enumerate(heads):  # heads are torch's modules: BatchNorm1d, Linear
                logits, head_weights = head.train()(batch)
                torch.testing.assert_close(ours[m], logits)
                if head_weights is not None:
                    torch.testing.assert_close(weights if weights.ndim == 2 else weights[m], head_weights)
        for m, head in enumerate(heads):
            if isinstance(head.norm, nn.BatchNorm1d):
                torch.testing.assert_close(stack.running["mean"][m], head.norm.running_mean)
                torch.testing.assert_close(stack.running["var"][m], head.norm.running_var)
            for buffer, values in head.aggregator.named_buffers():
                torch.testing.assert_close(stack.statistics[f"aggregator.{buffer}"], values)
        before = {name: values.clone() for name, values in stack.statistics.items()}
        ours, _ = stack(batches[0])
        for m, head in enumerate(heads):
            torch.testing.assert_close(ours[m], head.eval()(batches[0])[0])
        assert all(torch.equal(values, before[name]) for name, values in stack.statistics.items())

    def test_gives_heads_of_their_own(self, name, batches):
        stack = Stack(heads_of(SPECS[name]))
        stack(batches[0], training=True)
        head = stack.head(1)
        assert not head.training
        assert all(p.requires_grad for p in head.parameters())
        torch.testing.assert_close(head(batches[1])[0], stack(batches[1])[0][1])
        with torch.no_grad():
            head.classifier.weight.zero_()
        assert stack.parameters["classifier.weight"][1].abs().sum() > 0
        assert stack.head(0).classifier.weight.abs().sum() > 0
        assert head.classifier.weight.abs().sum() == 0


def test_one_image_has_no_variance(batches):
    one = {kind: values[:1] for kind, values in batches[0].items()}
    stack = Stack(heads_of(SPECS["abmilp"]))
    with pytest.raises(BeyondClsError, match="there is 1 image to train on at once, expected 2 or more: batch normalisation"):
        stack(one, training=True)
    assert stack(one)[0].isfinite().all()


def test_an_aggregator_is_in_the_mode_that_it_is_asked_for(batches, monkeypatch):
    class Mine(AGGREGATORS["cls"]):
        def __init__(self, dim):
            super().__init__(dim)
            self.scale, self.drop = nn.Linear(dim, dim), nn.Dropout(0.5)

        def forward(self, features):
            return super().forward({"cls": self.drop(self.scale(features["cls"]))})

    monkeypatch.setitem(AGGREGATORS, "mine", Mine)
    stack = Stack(heads_of(HeadSpec("mine")))
    with torch.random.fork_rng():
        one, other = (stack(batches[0], training=True)[0] for _ in range(2))
    assert not torch.allclose(one, other)
    torch.testing.assert_close(stack(batches[0])[0], stack(batches[0])[0], rtol=0, atol=0)


class InOrder(Images):
    """Images that are not shuffled."""

    def epoch(self, seed=0, start=0):
        for rows in torch.arange(len(self.labels)).split(self.batch_size)[start:]:
            yield {**{kind: values[rows] for kind, values in self.tokens.items()}, "label": self.labels[rows], "row": rows}


def stack_of(aggregator, n_classes=K, **options):
    heads = [HeadSpec(aggregator, options).build(D, T, n_classes, seed=seed).double() for seed in range(M)]
    with torch.no_grad():
        for head in heads:
            head.classifier.weight *= 50
    return Stack(heads)


def by_image(stack, images):
    """Logits and weights of each member, one image after the other."""
    for m in range(len(stack)):
        head = stack.head(m)
        rows = [head({kind: values[i : i + 1] for kind, values in images.tokens.items()}) for i in range(len(images.labels))]
        yield torch.cat([logits for logits, _ in rows]), None if rows[0][1] is None else torch.cat([w for _, w in rows])


@pytest.mark.parametrize("aggregator", ["abmilp", "average", "cls"])
def test_measures_are_those_of_image_after_image(aggregator):
    images, stack = InOrder(47, 10), stack_of(aggregator, 7)
    [measured] = evaluate([stack], images, last=True)
    for m, (logits, weights) in enumerate(by_image(stack, images)):
        logits = logits.detach()
        n_right = dict.fromkeys((1, 5), 0)
        for row, label in zip(logits.tolist(), images.labels.tolist(), strict=True):
            best = sorted(range(7), key=lambda c, row=row: -row[c])
            for k in n_right:
                n_right[k] += label in best[:k]
        assert measured.measures[m]["top1"] == pytest.approx(100 * n_right[1] / 47, abs=1e-12)
        assert measured.measures[m]["top5"] == pytest.approx(100 * n_right[5] / 47, abs=1e-12)
        best = logits.argmax(1).numpy()
        assert measured.measures[m]["balanced_accuracy"] == pytest.approx(
            100 * balanced_accuracy_score(images.labels.numpy(), best)
        )
        assert measured.measures[m]["nll"] == pytest.approx(log_loss(images.labels.numpy(), logits.softmax(1), labels=range(7)))
        if weights is None:
            assert measured.measures[m].keys() == {*PER_IMAGE, "balanced_accuracy", "nll"}
            assert measured.weights is None
            continue
        entropies = [-sum(w * math.log(w) for w in row) for row in weights.tolist()]
        assert all(0 < entropy <= math.log(T) + 1e-12 for entropy in entropies)
        assert measured.measures[m]["entropy"] == pytest.approx(sum(entropies) / 47)
        torch.testing.assert_close(measured.weights[m], weights)  # in the order of the rows
    assert len(measured.measures) == M


def test_several_labels_are_measured_over_all_images():
    images, stack = InOrder(47, 10, several=True), stack_of("abmilp")
    [measured] = evaluate([stack], images)
    for m, (logits, _) in enumerate(by_image(stack, images)):
        expected = {name: measure(logits, images.labels).item() for name, measure in MULTILABEL.items()}
        assert {n: v for n, v in measured.measures[m].items() if n != "entropy"} == pytest.approx(expected)
    assert measured.weights is None


def test_changes_nothing():
    stack, images = stack_of("abmilp"), InOrder(20, 10)
    before = {name: values.clone() for name, values in stack.state().items()}
    evaluate([stack], images)
    assert all(torch.equal(values, before[name]) for name, values in stack.state().items())
    stack(next(images.epoch()), training=True)[0].sum().backward()  # nothing of inference mode is left
