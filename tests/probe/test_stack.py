"""Stacked members against torch's modules, one by one, and their measures against scikit-learn's."""

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss, top_k_accuracy_score
from torch import nn

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


def heads_of(spec, n_classes=K):
    return [spec.build(D, T, n_classes, seed=seed).double() for seed in range(M)]


@pytest.fixture
def batches():
    return list(Images(45, 15).epoch())


@pytest.mark.parametrize("name", SPECS)
def test_is_its_heads_in_training_and_evaluation(name, batches):
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


def test_gives_heads_of_their_own(batches):
    stack = Stack(heads_of(SPECS["batch-normalised tokens"]))
    stack(batches[0], training=True)
    head = stack.head(1)
    assert not head.training
    assert all(p.requires_grad for p in head.parameters())
    torch.testing.assert_close(head(batches[1])[0], stack(batches[1])[0][1])
    with torch.no_grad():
        head.classifier.weight.zero_()
    assert stack.parameters["classifier.weight"][1].any()
    assert stack.head(0).classifier.weight.any()


def test_one_image_has_no_variance(batches):
    one = {kind: values[:1] for kind, values in batches[0].items()}
    stack = Stack(heads_of(SPECS["abmilp"]))
    with pytest.raises(BeyondClsError, match="1 image to train on at once, expected 2"):
        stack(one, training=True)
    assert stack(one)[0].isfinite().all()


@pytest.mark.parametrize(
    ("aggregator", "several"), [("abmilp", False), ("average", False), ("cls", False), ("abmilp", True)], ids=str
)
def test_measures_are_those_of_all_images(aggregator, several):
    images = Images(47, 10, several=several)
    n_classes = K if several else 7
    heads = heads_of(HeadSpec(aggregator), n_classes)
    for head in heads:
        head.classifier.weight.data *= 50
    stack = Stack(heads)
    before = {name: values.clone() for name, values in stack.state().items()}
    [measured] = evaluate([stack], images, last=True)
    rows = torch.cat([batch["row"] for batch in images.epoch()])
    labels = images.labels[rows].numpy()
    assert len(measured.measures) == M
    for m, values in enumerate(measured.measures):
        with torch.no_grad():
            logits, weights = stack.head(m)({kind: values[rows] for kind, values in images.tokens.items()})
        if several:
            expected = {name: measure(logits, torch.from_numpy(labels)).item() for name, measure in MULTILABEL.items()}
        else:
            p, known = logits.softmax(1).numpy(), {"labels": range(n_classes)}
            expected = {f"top{k}": 100 * top_k_accuracy_score(labels, p, k=k, **known) for k in (1, 5)}
            expected |= {"nll": log_loss(labels, p, **known)}
            expected |= {"balanced_accuracy": 100 * balanced_accuracy_score(labels, p.argmax(1))}
            assert PER_IMAGE.keys() <= expected.keys()
        if weights is not None:
            expected["entropy"] = torch.distributions.Categorical(weights).entropy().mean().item()
            torch.testing.assert_close(measured.weights[m], weights)  # in the order of the rows
        assert values == pytest.approx(expected)
    assert (measured.weights is None) == (aggregator == "cls")
    assert all(torch.equal(values, before[name]) for name, values in stack.state().items())
    stack(next(images.epoch()), training=True)[0].sum().backward()  # nothing of inference mode is left
