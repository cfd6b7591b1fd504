"""Heads and their grids."""

import pytest
import torch

from probe.grid import HeadPlan, HeadSpec, Member
from probe.recipe import Recipe
from store import BeyondClsError


def test_settings_are_all_pairs_or_those_of_the_recipe():
    recipe = Recipe(base_lr=0.3, weight_decay=0.1)
    assert HeadPlan(recipe=recipe).settings == [(0.3, 0.1)]
    assert HeadPlan(recipe=recipe, base_lrs=(1.0, 2.0)).settings == [(1.0, 0.1), (2.0, 0.1)]
    assert HeadPlan(recipe=recipe, weight_decays=(0.0, 2.0)).settings == [(0.3, 0.0), (0.3, 2.0)]
    assert HeadPlan(base_lrs=(1, 2), weight_decays=(3, 4)).settings == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_seed_says_how_a_head_starts():
    spec = HeadSpec("abmilp", {"depth": 2})
    before = torch.get_rng_state()
    one, same, other = (spec.build(8, 9, 3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    for name in ("aggregator.score.0.weight", "classifier.weight"):
        assert not torch.equal(one[name], other[name])


def test_the_classifier_starts_as_maes_or_as_torchs():
    normal, uniform = (HeadSpec("cls", init=init).build(400, None, 100).classifier for init in ("normal", "uniform"))
    assert normal.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert normal.weight.abs().max() > 0.03
    assert not normal.bias.any()
    for values in (uniform.weight, uniform.bias):  # ±1/√400
        assert 0.045 < values.abs().max().item() <= 0.05
        assert values.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.2)
    assert torch.equal(
        HeadSpec("cls").build(8, None, 3).classifier.weight, HeadSpec("cls", init="normal").build(8, None, 3).classifier.weight
    )
    with pytest.raises(BeyondClsError, match="unknown init 'norml'; did you mean 'normal'"):
        HeadSpec("cls", init="norml").build(8, None, 3)
    with pytest.raises(BeyondClsError, match="unknown normalisation 'bach'; did you mean 'batch'"):
        HeadSpec("cls", normalisation="bach").build(8, None, 3)


def test_the_classifier_starts_a_thousandth_as_large_as_that_of_simmim():
    """N(0, 0.02²) times 0.001, with which a draw has other values than N(0, 0.01²) but for that factor."""
    small, normal = (HeadSpec("cls", init=init).build(400, None, 100).classifier for init in ("small", "normal"))
    assert small.weight.std().item() == pytest.approx(2e-5, rel=0.02)
    torch.testing.assert_close(small.weight, normal.weight * 2e-3, rtol=1e-5, atol=0)
    assert not small.bias.any()


def test_plain_values():
    assert HeadSpec("ap", {"heads": 2}, "none", True, "uniform").to_dict() == {
        "aggregator": "ap",
        "options": {"heads": 2},
        "normalisation": "none",
        "final_norm": True,
        "init": "uniform",
    }
    assert str(Member("a", 0.03, 1e-4, 2)) == "a (base_lr 0.03, weight_decay 0.0001, seed 2)"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": ()}, "no seed was given; give at least one"),
        ({"seeds": (1, 1)}, r"seeds are \[1, 1\], expected every value once"),
        ({"seeds": (0, -1)}, "seeds hold -1, expected whole numbers from 0 on"),
        ({"seeds": (0.5,)}, "seeds hold 0.5, expected whole"),
        ({"seeds": (True,)}, "seeds hold True, expected whole"),
        ({"base_lrs": (0.1, 0.1)}, r"base_lrs are \[0.1, 0.1\], expected every value once"),
        ({"base_lrs": (0.1, 0)}, "base_lrs hold 0, expected positive numbers"),
        ({"base_lrs": ("0.1",)}, "base_lrs hold '0.1', expected positive numbers"),
        ({"base_lrs": (float("nan"),)}, "base_lrs hold nan, expected positive numbers"),
        ({"base_lrs": (float("inf"),)}, "base_lrs hold inf, expected positive numbers"),
        ({"weight_decays": (0.1, 0.1)}, "weight_decays are .*, expected every value once"),
        ({"weight_decays": (-0.1,)}, "weight_decays hold -0.1, expected numbers from 0 on"),
        ({"weight_decays": (None,)}, "weight_decays hold None, expected numbers from 0 on"),
    ],
)
def test_plans_that_cannot_be(values, message):
    with pytest.raises(BeyondClsError, match=message):
        HeadPlan(**values)
