"""Recipes, the protocols that have names, heads and their grids."""

import math
from dataclasses import asdict

import pytest
import torch

from probe.grid import HeadPlan, HeadSpec
from probe.recipe import PRESET_INITS, PRESETS, Recipe, make_recipe, preset_of
from store import BeyondClsError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Recipe, {"epochs": 0}, "epochs is 0, expected 1"),
        (Recipe, {"batch_size": 1}, "batch_size is 1, expected 2"),
        (Recipe, {"epochs": 5, "warmup_epochs": 5}, "epochs is 5, .* 5 of them .*, expected 0 to 4"),
        (Recipe, {"warmup_epochs": -1}, "epochs is 90, .* -1 of them .*, expected 0 to 89"),
        *((Recipe, {"batch_size": 64, "rows_at_once": n}, rf"rows_at_once is {n}, .* \(64\) from 2") for n in (48, 128, 1, 0)),
        (Recipe, {"optimiser": "sdg"}, "optimiser 'sdg'; did you mean 'sgd'"),
        *((Recipe, {"base_lr": rate}, f"base_lr is {rate}, expected") for rate in (0, NAN, INF)),
        *((Recipe, {"weight_decay": decay}, f"weight_decay is {decay}, expected 0") for decay in (-0.1, NAN)),
        *((Recipe, {"momentum": momentum}, f"momentum is {momentum}, expected 0") for momentum in (1.0, -0.1)),
        (Recipe, {"order": "mine"}, "order 'mine'"),
        (make_recipe, {"preset": "mae-lasr"}, "preset 'mae-lasr'; did you mean 'mae-lars'"),
        (make_recipe, {"batchsize": 3}, "'batchsize'; did you mean 'batch_size'"),
        (HeadPlan, {"seeds": ()}, "no seed"),
        *((HeadPlan, {"seeds": (seed,)}, f"seeds hold {seed}, expected whole") for seed in (-1, 0.5, True)),
        *((HeadPlan, {name: (1, 1)}, rf"{name} are \[1, 1\], .* once") for name in ("seeds", "base_lrs", "weight_decays")),
        *((HeadPlan, {"base_lrs": (0.1, rate)}, f"base_lrs hold {rate!r}, expected positive") for rate in (0, "0.1", NAN, INF)),
        *((HeadPlan, {"weight_decays": (decay,)}, f"weight_decays hold {decay}, expected") for decay in (-0.1, None)),
    ],
)
def test_what_cannot_be(make, values, message):
    with pytest.raises(BeyondClsError, match=message):
        make(**values)


def test_learning_rates_and_images_at_once():
    recipe = Recipe(base_lr=0.1, batch_size=1024)
    assert (recipe.lr, recipe.peak(2.0)) == (pytest.approx(0.4), 8)
    assert Recipe(batch_size=64).at_once == 64
    parts = Recipe(batch_size=64, rows_at_once=16)
    assert (parts.at_once, parts.per_process(1), parts.per_process(4)) == (16, (64, 16), (16, 4))
    with pytest.raises(BeyondClsError, match=r"batch_size 64 \(at once 16\) .* 3 processes"):
        parts.per_process(3)


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    """They can be changed, and are recognised whatever was chosen in a grid; those of others say what their code adds."""
    assert make_recipe(name, epochs=17) == Recipe(**{**PRESETS[name], "epochs": 17})
    recorded = asdict(make_recipe(name, base_lr=0.7, weight_decay=0.3))
    assert preset_of(recorded) == name
    assert preset_of(recorded | {"epochs": 3}) == ""
    assert preset_of({setting: value for setting, value in recorded.items() if value != getattr(Recipe, setting)}) == name
    of_others = name in {"mae-lars", "mae-lars-large", "ep-lars", "small-sgd"}
    assert ({"order", "drop_last"} <= PRESETS[name].keys()) == make_recipe(name).drop_last == of_others
    assert PRESET_INITS.get(name, "normal") == ("uniform" if of_others else "normal")


@pytest.mark.parametrize(("name", "batch_size", "at_once", "lr"), [("mae-lars", 16384, 2048, 6.4), ("ep-lars", 4096, 256, 1.6)])
def test_the_protocols_of_mae_and_of_efficient_probing(name, batch_size, at_once, lr):
    """The settings of its commands, and the defaults of its program."""
    lars = make_recipe(name)
    assert (lars.optimiser, lars.epochs, lars.warmup_epochs) == ("lars", 90, 10)
    assert (lars.batch_size, lars.at_once) == (batch_size, at_once)
    assert (lars.base_lr, lars.lr, lars.momentum, lars.weight_decay) == (0.1, lr, 0.9, 0)
    assert make_recipe() == Recipe()
    assert not Recipe().drop_last


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


def test_the_classifier_starts_as_maes_or_as_torchs_or_as_simmims():
    """SimMIM's N(0, 0.02²) times 0.001 has other values than N(0, 0.01²) but for that factor."""
    normal, uniform, small, default = (
        HeadSpec("cls", **start).build(400, None, 100).classifier
        for start in ({"init": "normal"}, {"init": "uniform"}, {"init": "small"}, {})
    )
    assert normal.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert normal.weight.abs().max() > 0.03
    assert not normal.bias.any()
    for values in (uniform.weight, uniform.bias):  # ±1/√400
        assert 0.045 < values.abs().max().item() <= 0.05
        assert values.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.2)
    torch.testing.assert_close(small.weight, normal.weight * 2e-3, rtol=1e-5, atol=0)
    assert not small.bias.any()
    assert torch.equal(default.weight, normal.weight)


@pytest.mark.parametrize(("given", "meant"), [({"init": "norml"}, "normal"), ({"normalisation": "bach"}, "batch")])
def test_heads_that_cannot_be(given, meant):
    with pytest.raises(BeyondClsError, match=f"did you mean '{meant}'"):
        HeadSpec("cls", **given).build(8, None, 3)
