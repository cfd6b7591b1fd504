"""Closed forms of the statistics, and what every statistic must do."""

import math
import re

import pytest
import torch

from beyondcls.testing.checking import run
from beyondcls.testing.statistics import ATTENTION_CHECKS, BLOCK_CHECKS, LAYOUTS, T, cases
from extract.attention import PER_BLOCK, STATISTICS, Attention, TokenLayout, facts_of
from extract.attention.declared import declared_by

OF_EITHER = {**STATISTICS, **PER_BLOCK}


def statistic(name: str, attention: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Of an attention map [B, H, N, N] whose rows sum to 1."""
    return STATISTICS[name](Attention.from_logits(attention.log2(), layout, bounded=True))


@pytest.mark.parametrize("check", ATTENTION_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", [case for name in STATISTICS for case in cases(name)], ids=str)
def test_every_statistic_of_attention(case, check):
    run([check], case)


@pytest.mark.parametrize("check", BLOCK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", [case for name in PER_BLOCK for case in cases(name)], ids=str)
def test_every_statistic_of_blocks(case, check):
    run([check], case)


@pytest.mark.parametrize("name", [*STATISTICS, *PER_BLOCK])
def test_what_is_declared_is_what_is_said(name):
    """In the docstring, where a reader looks."""
    of = OF_EITHER[name]
    facts, text = declared_by(of), of.__doc__ or ""
    assert ("infinity" in text) == (not facts.is_bounded)
    uniform_value = re.search(r"Uniform attention: (1 / N|1 / T|ln T)\.", text)
    if uniform_value is not None and facts.uniform is not None:
        assert facts.uniform(20, 16) == {"1 / N": 1 / 20, "1 / T": 1 / 16, "ln T": math.log(16)}[uniform_value[1]]


@pytest.mark.parametrize("name", [*STATISTICS, *PER_BLOCK])
def test_title_and_unit_stand_on_a_page(name):
    facts = facts_of(name)
    assert re.fullmatch(r"[A-Z][^_.]{10,70}", facts.title), "a heading"
    assert [declared_by(of).title for of in OF_EITHER.values()].count(facts.title) == 1
    highest = facts.highest(20, 16)
    range_of_it = {math.inf: "without bound", math.log(16): "nats", 1: "0–1", 1 / 16: "0–1 / T"}[highest]
    assert facts.unit.endswith(range_of_it), "the axis gives the range of values"
    assert facts.unit.startswith("share" if highest <= 1 else "entropy" if facts.is_bounded else "ratio")


def test_a_statistic_must_declare_its_facts():
    expected = r"the statistic mine declares nothing, expected @declares\(title, unit, highest=…, uniform=…\)"
    with pytest.raises(TypeError, match=expected):
        declared_by(mine)


def mine(attention: Attention) -> torch.Tensor:
    return attention.z[..., 0]


# By hand, of those that the paper has and their relatives; one that is added brings its own.
BY_HAND = (
    "cls_self",
    "cls_patch_entropy",
    "patch_self",
    "patch_patch_entropy",
    "cls_self_adjusted",
    "patch_self_raw",
    "cls_to_patches",
    "patches_to_cls",
)


def test_identity():
    layout = LAYOUTS["cls and registers"]
    attention = torch.eye(layout.n_prefix + T)[None, None]
    values = {name: statistic(name, attention, layout).item() for name in BY_HAND}
    # [cls] gives nothing to the patches: there is no distribution, and no number is made up for it.
    assert math.isnan(values.pop("cls_patch_entropy"))
    assert values == {
        "cls_self": 1,
        "patch_self": 1,
        "patch_patch_entropy": 0,
        "cls_self_adjusted": math.inf,
        "patch_self_raw": 1,
        "cls_to_patches": 0,
        "patches_to_cls": 0,
    }


def test_two_patches_in_unequal_parts():
    """By hand: [cls] gives 0.5 to itself, 0.3 and 0.2 to two patches, so 0.6 and 0.4 after renormalising."""
    attention = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.0, 0.9, 0.1]])[None, None]
    h = {p: -p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.6, 0.25, 0.9)}
    values = {name: statistic(name, attention, LAYOUTS["cls"]).item() for name in BY_HAND}
    assert values == {
        "cls_self": pytest.approx(0.5),
        "cls_patch_entropy": pytest.approx(h[0.6], abs=1e-6),
        "patch_self": pytest.approx((0.25 + 0.1) / 2, abs=1e-6),
        "patch_patch_entropy": pytest.approx((h[0.25] + h[0.9]) / 2, abs=1e-6),
        "cls_self_adjusted": pytest.approx(1),
        "patch_self_raw": pytest.approx(0.15),
        "cls_to_patches": pytest.approx(0.25),
        "patches_to_cls": pytest.approx(0.1),
    }


def test_logits_that_are_far_apart():
    """Entropy of a row that is nearly all on one patch, in float32, against float64."""
    logits = 30 * torch.randn(4, 2, 60, 60, generator=torch.Generator().manual_seed(0))
    p = logits.double()[..., 1:].softmax(-1)
    exact = -(p * p.log()).nan_to_num().sum(-1)[:, :, 0]
    given = STATISTICS["cls_patch_entropy"](Attention.from_logits((logits + 200) * math.log2(math.e), LAYOUTS["cls"]))
    assert exact.min() < 0.01
    torch.testing.assert_close(given.double(), exact, rtol=0, atol=5e-6)
