"""Closed forms of the statistics, and what every statistic must do."""

import math

import pytest
import torch

from beyondcls.testing.checking import run
from beyondcls.testing.statistics import ATTENTION_CHECKS, BLOCK_CHECKS, LAYOUTS, Case, T, cases
from extract.attention import PER_BLOCK, STATISTICS, Attention
from extract.attention.declared import declared_by

CHECKS = [
    (name, check)
    for of, checks in ((STATISTICS, ATTENTION_CHECKS), (PER_BLOCK, BLOCK_CHECKS))
    for name in of
    for check in checks
]


@pytest.mark.parametrize(("name", "check"), CHECKS, ids=lambda part: getattr(part, "__name__", part))
def test_every_statistic(name, check):
    for case in cases(name):
        run([check], case)


def test_a_statistic_must_declare_its_facts():
    with pytest.raises(TypeError, match=r"the statistic mine declares nothing, expected @declares\(title, unit, highest=…"):
        declared_by(mine)


def mine(attention: Attention) -> torch.Tensor:
    return attention.z[..., 0]


H = {p: -p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.6, 0.25, 0.9)}
# Where every token attends to itself alone: where nothing is given to patches there is no distribution, and no number is made
# up for it. And where [cls] gives 0.5 to itself, 0.3 and 0.2 to two patches, so 0.6 and 0.4 after renormalising.
BY_HAND = {
    "cls_self": (1, 0.5),
    "cls_patch_entropy": (math.nan, H[0.6]),
    "patch_self": (1, (0.25 + 0.1) / 2),
    "patch_patch_entropy": (0, (H[0.25] + H[0.9]) / 2),
    "cls_self_adjusted": (math.inf, 1),
    "patch_self_raw": (1, 0.15),
    "cls_to_patches": (0, 0.25),
    "patches_to_cls": (0, 0.1),
}


@pytest.mark.parametrize(("name", "values"), BY_HAND.items())
def test_by_hand(name, values):
    identity = torch.eye(LAYOUTS["cls and registers"].n_prefix + T)[None, None]
    assert Case(name, "cls and registers").of(identity).item() == pytest.approx(values[0], abs=0, nan_ok=True)
    parts = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.0, 0.9, 0.1]])[None, None]
    assert Case(name, "cls").of(parts).item() == pytest.approx(values[1], abs=1e-6)


def test_logits_that_are_far_apart():
    """Entropy of a row that is nearly all on one patch, in float32, against float64."""
    logits = 30 * torch.randn(4, 2, 60, 60, generator=torch.Generator().manual_seed(0))
    exact = torch.special.entr(logits.double()[:, :, 0, 1:].softmax(-1)).sum(-1)
    given = STATISTICS["cls_patch_entropy"](Attention.from_logits((logits + 200) * math.log2(math.e), LAYOUTS["cls"]))
    assert exact.min() < 0.01
    torch.testing.assert_close(given.double(), exact, rtol=0, atol=5e-6)
