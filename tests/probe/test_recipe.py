"""Recipes, the protocols that have names, heads and their grids."""

import math
from dataclasses import asdict

import pytest
import torch

from probe.grid import HeadPlan, HeadSpec, Member
from probe.recipe import PRESET_INITS, PRESETS, Recipe, make_recipe, preset_of
from store import BeyondClsError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected 1 or more"),
        ({"batch_size": 1}, "batch_size is 1, expected 2 or more"),
        ({"epochs": 5, "warmup_epochs": 5}, r"epochs is 5, and .* during 5 of them \(warmup_epochs\), expected 0 to 4; set"),
        ({"warmup_epochs": -1}, r"epochs is 90, and .* during -1 of them \(warmup_epochs\), expected 0 to 89"),
        ({"batch_size": 64, "rows_at_once": 48}, r"rows_at_once is 48, expected a divisor of batch_size \(64\) from 2 on"),
        ({"batch_size": 64, "rows_at_once": 128}, "rows_at_once is 128, expected a divisor"),
        ({"rows_at_once": 1}, "rows_at_once is 1, expected a divisor"),
        ({"rows_at_once": 0}, "rows_at_once is 0, expected a divisor"),
        ({"optimiser": "sdg"}, "unknown optimiser 'sdg'; did you mean 'sgd'"),
        ({"base_lr": 0}, "base_lr is 0, expected a positive number"),
        ({"base_lr": math.nan}, "base_lr is nan, expected a positive number"),
        ({"base_lr": math.inf}, "base_lr is inf, expected a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1, expected 0 or more"),
        ({"weight_decay": math.nan}, "weight_decay is nan, expected 0 or more"),
        ({"momentum": 1.0}, "momentum is 1.0, expected 0 or more and less than 1"),
        ({"momentum": -0.1}, "momentum is -0.1, expected 0"),
        ({"order": "mine"}, "unknown order 'mine'"),
    ],
)
def test_recipes_that_cannot_be(values, message):
    with pytest.raises(BeyondClsError, match=message):
        Recipe(**values)


def test_the_learning_rate_is_of_256_images():
    recipe = Recipe(base_lr=0.1, batch_size=1024)
    assert recipe.lr == pytest.approx(0.4)
    assert recipe.peak(2.0) == 8


def test_images_at_once():
    assert Recipe(batch_size=64).at_once == 64
    assert Recipe(batch_size=64, rows_at_once=16).at_once == 16


def test_shares_of_several_processes():
    recipe = Recipe(batch_size=64, rows_at_once=16)
    assert recipe.per_process(1) == (64, 16)
    assert recipe.per_process(4) == (16, 4)
    with pytest.raises(BeyondClsError, match=r"batch_size 64 \(at once 16\) cannot be shared by 3 processes"):
        recipe.per_process(3)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_made_and_changed(name):
    recipe = make_recipe(name)
    assert {field: getattr(recipe, field) for field in PRESETS[name]} == PRESETS[name]
    assert make_recipe(name, epochs=17) == Recipe(**{**PRESETS[name], "epochs": 17})


def test_the_protocol_of_mae():
    lars = make_recipe("mae-lars")
    assert (lars.optimiser, lars.batch_size, lars.at_once, lars.epochs, lars.warmup_epochs) == ("lars", 16384, 2048, 90, 10)
    assert (lars.base_lr, lars.lr, lars.momentum, lars.weight_decay) == (0.1, 6.4, 0.9, 0)


def test_the_protocol_of_efficient_probing():
    """The settings of its commands, and the defaults of its program."""
    lars = make_recipe("ep-lars")
    assert (lars.optimiser, lars.batch_size, lars.at_once, lars.epochs, lars.warmup_epochs) == ("lars", 4096, 256, 90, 10)
    assert (lars.base_lr, lars.lr, lars.momentum, lars.weight_decay) == (0.1, 1.6, 0.9, 0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_recognised_whatever_was_chosen_in_a_grid(name):
    recorded = asdict(make_recipe(name, base_lr=0.7, weight_decay=0.3))
    assert preset_of(recorded) == name
    assert preset_of(recorded | {"epochs": 3}) == ""
    assert preset_of({setting: value for setting, value in recorded.items() if value != getattr(Recipe, setting)}) == name


def test_the_protocols_of_others_say_what_their_code_adds():
    """Order of the images, the rest of an epoch, and where the classifier starts."""
    of_others = {"mae-lars", "mae-lars-large", "ep-lars", "small-sgd"}
    for name in PRESETS:
        assert ({"order", "drop_last"} <= PRESETS[name].keys()) == (name in of_others)
        assert make_recipe(name).drop_last == (name in of_others)
        assert PRESET_INITS.get(name, "normal") == ("uniform" if name in of_others else "normal")
    assert not Recipe().drop_last


def test_without_a_preset():
    assert make_recipe() == Recipe()


def test_unknown_names():
    with pytest.raises(BeyondClsError, match="unknown preset 'mae-lasr'; did you mean 'mae-lars'"):
        make_recipe("mae-lasr")
    with pytest.raises(BeyondClsError, match="unknown parameter of the recipe 'batchsize'; did you mean 'batch_size'"):
        make_recipe(batchsize=3)


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
