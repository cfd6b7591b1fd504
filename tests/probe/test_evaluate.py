"""Measures of stacks against a loop over single images."""

import math

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss

from probe.evaluate import evaluate
from probe.grid import HeadSpec
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.stack import Stack
from tests.probe.training import D, Images, K, T

M = 3


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
