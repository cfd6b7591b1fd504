"""What the contracts find: entries that break them in one way each."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

import beyondcls.testing
from beyondcls.testing import check_aggregator, check_dataset, check_encoder, check_metric, check_statistic
from beyondcls.testing.checking import CHECKED
from extract.attention.declared import declares, infinity
from extract.datasets import DATASETS
from extract.datasets.form import Plain
from extract.encoders.wrapped import wrap
from probe.aggregators import AGGREGATORS, Average, Pooled, Weighted
from probe.metrics import PER_IMAGE
from tests.extract.datasets.examples import EXAMPLES


class Unweighted(Average):
    """Says that it weights tokens, and gives no weights."""

    weighted = True

    def forward(self, features):
        return Pooled(super().forward(features).vector, None)


class Heavy(Weighted):
    """Its weights sum to 2."""

    reads = ("patch",)

    def forward(self, features):
        patch = features["patch"]
        return self.weigh(patch, torch.full_like(patch[..., 0], 2 / patch.shape[1]))


class Changing(Average):
    def forward(self, features):
        features["patch"].add_(1)
        return super().forward(features)


class First(Average):
    """Depends on the order of the patches, and does not say so."""

    weighted = False

    def forward(self, features):
        return Pooled(features["patch"][:, 0], None)


class Failing(Average):
    def forward(self, features):
        raise RuntimeError("out of order")


@declares("A share that is too large by far", "share, 0–1", highest=lambda n, t: 1, uniform=lambda n, t: 2)
def too_large(attention):
    return attention.z[..., 0] * 0 + 2


@declares("A share that is what it says", "share, 0–1", highest=lambda n, t: 1, uniform=lambda n, t: 0.25)
def not_uniform(attention):
    return attention.to_itself[..., 0] / attention.z[..., 0]


@declares("A mean that is said to be a norm", "a mean", highest=infinity, of_norms=True)
def not_of_norms(residual, branch, layout):
    return residual[:, layout.n_prefix :].mean((1, 2)).abs()


def always(logits, labels):
    return torch.ones(logits.shape[:-1], dtype=torch.bool)


def shaped(logits, labels):
    return logits.argmax(-1).eq(labels).double()


def make_no_vit():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8))


def make_unfixed():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2)
    return wrap(model, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def make_trained():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = make_unfixed()
    encoder.model.requires_grad_(True)
    return encoder


def renamed(entry):
    """A form whose example has another class than its images."""
    return Plain(entry.open, replace(EXAMPLES["csv"], classes=("other",)))


BROKEN: list[tuple[Callable[[object], None], object, str]] = [
    (check_aggregator, Unweighted, "weights sum to one"),
    (check_aggregator, Heavy, "weights sum to one: sums of weights"),
    (check_aggregator, Changing, "leaves the features untouched: patch was changed"),
    (check_aggregator, First, "moves its weights with the patches: uses_position is False"),
    (check_aggregator, Failing, "gives one vector .*RuntimeError: out of order"),
    (check_aggregator, "no-such", "unknown aggregator 'no-such'"),
    (check_statistic, too_large, "stays in its range: 2.* expected 0 to 1"),
    (check_statistic, not_uniform, "has its value of uniform attention"),
    (check_statistic, lambda attention: attention.z, "declares nothing"),
    (check_statistic, not_of_norms, "of_norms is True, and more"),
    (check_metric, always, "who says the same of every class does not: .*100%"),
    (check_metric, shaped, "many members at once are each of them: .*float64.* expected .*bool"),
    (check_encoder, make_no_vit, "no blocks were found in Sequential"),
    (check_encoder, make_unfixed, "has a plain key: weights are others"),
    (check_encoder, make_trained, "is frozen: parameters want gradients"),
    (check_encoder, "no-such-vit", "unknown encoder 'no-such-vit'"),
    (check_dataset, renamed(DATASETS["csv"]), "has the images and classes of its example"),
]


@pytest.mark.parametrize(("check", "entry", "message"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_what_is_broken_is_named(check, entry, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(entry)
    assert CHECKED not in (*AGGREGATORS, *DATASETS, *PER_IMAGE), "nothing stays behind"


def test_random_numbers_of_the_caller_stay() -> None:
    before = torch.get_rng_state()
    check_aggregator("abmilp")
    assert torch.equal(torch.get_rng_state(), before)


def test_no_checker_needs_pytest() -> None:
    for path in Path(beyondcls.testing.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(import|from) pytest", path.read_text(), re.M), path
        assert "assert " not in path.read_text().replace("assert_close", ""), f"{path}: python -O drops it"
