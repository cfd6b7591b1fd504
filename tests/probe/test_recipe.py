"""Recipes, and the protocols that have names."""

import math
from dataclasses import asdict

import pytest

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
    with pytest.raises(
        BeyondClsError, match=r"batch_size 64 \(at once 16\) cannot be shared by 3 processes; choose multiples of 3"
    ):
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
