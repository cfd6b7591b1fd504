"""Settings are chosen on training images alone."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from probe import run
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses, Outcome
from probe.recipe import Recipe
from probe.select import select
from probe.sources import Source
from probe.subsets import hold_out
from store import BeyondClsError
from tests.features import write_features

probe = partial(run.probe, converged=False)  # converged classifiers: test_convergence.py
RECIPE = Recipe(epochs=8, batch_size=32, warmup_epochs=0)
PLAN = HeadPlan(HeadSpec("abmilp"), RECIPE, seeds=(0, 1, 2), base_lrs=(0.001, 0.03, 1.0))
N = 64


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 160), write_features(folder / "test", 70, seed=1)


class Scripted(HeadPasses):
    """Results as tables say them, without training: top-1, or which images are right; and the entropy of weights."""

    def __init__(self, heads, table, sets, subset=None, entropy=lambda m: 4.0):
        super().__init__({name: plan.head for name, plan in heads.items()}, Source(sets[0], subset=subset), Source(sets[1]))
        self.table, self.entropy, self.calls, self.members = table, entropy, [], []

    def train(self, members, recipe, rows=None, judged_by=None):
        self.calls.append((rows, judged_by))
        self.members += members
        return [self.outcome(m) for m in members if self.table(m) is not None]

    def outcome(self, m):
        result, correct = self.table(m), None
        if not isinstance(result, float):
            correct = torch.tensor(result, dtype=torch.bool)
            result = 100 * correct.double().mean().item()
        return Outcome(m, self.template(m.head), [], {"top1": result, "map": 0.0, "entropy": self.entropy(m)}, None, correct)


@pytest.fixture
def chosen(sets):
    """What is selected for a plan, and the passes, where members have the results of a table."""

    def run(table, plan=PLAN, share=0.1, sets=sets, **options):
        passes = Scripted({"h": plan}, table, sets, **options)
        return select({"h": plan}, passes, RECIPE, share)["h"], passes

    return run


def test_the_best_mean_over_seeds_is_taken(chosen, sets):
    values = {0.001: (90.0, 10.0, 10.0), 0.03: (40.0, 50.0, 45.0), 1.0: (60.0, 30.0, 30.0)}
    best, passes = chosen(lambda m: values[m.base_lr][m.seed], share=0.2)
    assert (best.base_lr, best.weight_decay, best.by, best.n_images) == (0.03, 0.0, "top1", 3 * 32)
    assert best.on == "20 % of the training images, stratified, others for each seed"
    assert [c["mean"] for c in best.candidates] == [pytest.approx(np.mean(v)) for v in values.values()]
    assert [c["std"] for c in best.candidates] == [pytest.approx(np.std(v, ddof=1)) for v in values.values()]
    assert best.notes == ()
    for call, split in zip(passes.calls, [hold_out(sets[0].labels, 0.2, seed) for seed in range(3)], strict=True):
        assert [np.array_equal(*pair) for pair in zip(call, split, strict=True)] == [True, True]
        assert not set(split[0]) & set(split[1])


def test_where_many_images_are_held_out_all_seeds_share_them(chosen, monkeypatch):
    monkeypatch.setattr("probe.select.ENOUGH", 32)
    best, passes = chosen(lambda m: 50.0, share=0.2)
    assert (len(passes.calls), best.n_images) == (1, 32)
    assert best.on == "20 % of the training images, stratified"


def test_neither_side_has_images_outside_of_the_subset(chosen, sets, tmp_path):
    train, subset = write_features(tmp_path / "t", invalid=(4, 10)), np.arange(0, 96, 2)
    best, passes = chosen(lambda m: 50.0, share=0.25, sets=(train, sets[1]), subset=subset)
    for learn, held in passes.calls:
        assert sorted([*learn, *held]) == [row for row in subset if row not in (4, 10)]
        assert len(held) == 12  # a quarter of 46
    assert best.n_images == 36


def test_of_equal_ones_the_first_and_only_heads_with_a_grid(sets):
    plans = {"one": HeadPlan(HeadSpec("cls"), replace(RECIPE, base_lr=0.7, weight_decay=0.2)), "grid": PLAN}
    best = select(plans, Scripted(plans, lambda m: 50.0, sets), RECIPE, 0.1)
    assert best["grid"].base_lr == 0.001
    nothing = {"on": "nothing", "by": None, "n_images": 0, "candidates": []}
    assert best["one"].to_dict() == {"base_lr": 0.7, "weight_decay": 0.2, **nothing}
    del plans["grid"]
    passes = Scripted(plans, None, sets)
    select(plans, passes, RECIPE, 0.1)
    assert passes.calls == []


def right(n: int, first: int = 0) -> list[int]:
    """Which of N images are right: n, from `first` on."""
    return [int(first <= i < first + n) for i in range(N)]


class TestOneStandardError:
    """Settings (rate, decay) by which of N images they are right about, with every seed, all of which are judged by these."""

    @pytest.fixture(autouse=True)
    def shared_images(self, monkeypatch):
        monkeypatch.setattr("probe.select.ENOUGH", 1)

    @pytest.fixture
    def of_table(self, chosen):
        def run(table, **options):
            rates, decays = (tuple(sorted({key[i] for key in table})) for i in (0, 1))
            plan = replace(PLAN, base_lrs=rates, weight_decays=decays)
            return chosen(lambda m: table[m.base_lr, m.weight_decay], plan, **options)[0]

        return run

    def test_the_strongest_decay_that_is_not_told_from_the_best(self, of_table):
        # The difference of two sets of images of which one has k more is k / N ± sqrt(k (1 - k / N) / (N - 1) / N).
        table = {(0.1, 0.0): right(40), (0.1, 0.1): right(39, 3), (0.1, 0.2): right(34)}
        table |= {(0.2, decay): right(40, 2) if decay else right(1) for _, decay in table}
        best = of_table(table)
        assert (best.base_lr, best.weight_decay) == (0.1, 0.1)
        assert best.candidates[2]["behind"] == pytest.approx(100 * 6 / N)
        assert best.candidates[2]["error"] == pytest.approx(100 * math.sqrt(6 * (1 - 6 / N) / (N - 1) / N))
        assert any("4 of 6 settings apart" in note for note in best.notes)

    def test_a_lower_rate_is_no_simpler(self, of_table):
        table = {(0.1, 0.0): right(39), (0.3, 0.0): right(40, 2), (1.0, 0.0): right(40, 1), (3.0, 0.0): right(41, 4)}
        assert of_table(table).base_lr == 3.0
        assert of_table(table | {(0.1, 0.0): right(41, 3)}).base_lr == 0.1  # of equally good ones the first

    def test_seeds_count_too(self, chosen, monkeypatch):
        """They may disagree on the same images; with images of their own three times as many tell, unless seeds spread more."""
        plan, apart = replace(PLAN, base_lrs=(0.1, 1.0)), (20, 40, 54)

        def error(n, first=0):
            table = lambda m: right(40) if m.base_lr == 1.0 else right(n[m.seed], first)  # noqa: E731
            return chosen(table, plan)[0].candidates[0]["error"]

        difference = np.array([right(40)]) - np.array([right(n) for n in apart])
        of_seeds = difference.mean(1).std(ddof=1) / math.sqrt(3)
        assert error(apart) == pytest.approx(100 * np.hypot(difference.mean(0).std(ddof=1) / math.sqrt(N), of_seeds))
        monkeypatch.setattr("probe.select.ENOUGH", 1_000)
        difference = np.array(right(40)) - np.array(right(37, 3))
        assert error((37, 37, 37), 3) == pytest.approx(100 * difference.std(ddof=1) / math.sqrt(3 * N))
        assert error(apart, 3) == pytest.approx(100 * of_seeds)

    def test_three_seeds_try_settings(self, chosen):
        best, passes = chosen(lambda m: 50.0, replace(PLAN, seeds=(5, 4, 3, 2, 1)))
        assert (best.base_lr, {m.seed for m in passes.members}) == (0.001, {5, 4, 3})

    def test_collapsed_weights_are_not_chosen(self, of_table):
        table = {(0.1, 0.0): right(30), (1.0, 0.0): right(60)}
        best = of_table(table, entropy=lambda m: 0.6 if m.base_lr == 1.0 and m.seed == 2 else 3.0)
        assert (best.base_lr, [c["collapsed"] for c in best.candidates]) == (0.1, [False, True])
        assert any("weights collapsed with 1 of 2 settings" in note for note in best.notes)
        assert of_table(table, entropy=lambda m: 0.7).base_lr == 1.0  # ln 2 is 0.693
        assert of_table(table, entropy=lambda m: 0.1).base_lr == 1.0  # all did
        alike = {(0.1, 0.0): right(40), (0.1, 0.1): right(39)}
        assert of_table(alike).weight_decay == 0.1
        assert of_table(alike, entropy=lambda m: 0.6 if m.weight_decay else 3.0).weight_decay == 0.0


@pytest.mark.parametrize(
    ("best", "decays", "expected"),
    [
        ((0.001, 0.0), (0.0, 0.1, 0.2), ["base_lr 0.001 is at the edge"]),
        ((0.03, 0.2), (0.0, 0.1, 0.2), ["weight_decay 0.2 is at the edge"]),
        ((0.03, 0.0), (0.0, 0.1, 0.2), []),  # nothing is below 0
        ((0.03, 0.5), (0.5,), []),
    ],
)
def test_the_edge_of_a_grid_is_noted(best, decays, expected, chosen):
    plan = replace(PLAN, weight_decays=decays)
    found, _ = chosen(lambda m: 60.0 if (m.base_lr, m.weight_decay) == best else 50.0, plan)
    assert (found.base_lr, found.weight_decay) == best
    assert [note[: len(want)] for want, note in zip(expected, found.notes, strict=True)] == expected


def test_a_setting_with_which_a_seed_diverged_is_not_taken(chosen):
    best, _ = chosen(lambda m: None if (m.base_lr, m.seed) == (1.0, 2) else 100 * m.base_lr)
    assert best.base_lr == 0.03
    lost = {"base_lr": 1.0, "weight_decay": 0.0, "mean": None, "std": None, "behind": None, "error": None, "collapsed": False}
    assert best.candidates[2] == lost
    assert best.notes == ("base_lr 1 with weight_decay 0 diverged (1 of 3 seeds)",)
    with pytest.raises(BeyondClsError, match=r"head 'h' diverged with every setting: base_lr 0.001 .* lower base_lrs"):
        chosen(lambda m: None)


def test_no_number_to_select_by(chosen):
    with pytest.raises(BeyondClsError, match="top1 of the 48 images held out is not a number"):
        chosen(lambda m: math.nan)


class TestEndToEnd:
    def test_test_images_have_no_influence(self, sets, tmp_path):
        """Noise with wrong labels instead: the same choice, the same probe."""
        noise = write_features(tmp_path / "n", 40, seed=5, signal=0.0, labels=(np.arange(40) + 1) % 3)
        plan = replace(PLAN, recipe=replace(RECIPE, epochs=3))
        heads = {"abmilp": plan, "cls": replace(plan, head=HeadSpec("cls"))}
        ours, other = (probe(sets[0], test, tmp_path / f"{len(test)}", heads) for test in (sets[1], noise))
        for head in heads:
            assert ours[head]["top1"] != other[head]["top1"]
            assert ours[head]["selected"] == other[head]["selected"]
            files = [tmp_path / f"{n}" / head / "trained/seed1.safetensors" for n in (70, 40)]
            assert files[0].read_bytes() == files[1].read_bytes()

    def test_what_was_chosen_is_trained_on_all_images(self, sets, tmp_path):
        written = probe(*sets, tmp_path / "out", PLAN)["out"]
        selected = written["selected"]
        means = {c["base_lr"]: c["mean"] for c in selected["candidates"]}
        assert selected["base_lr"] == max(means, key=means.get) == written["recipe"]["base_lr"]
        assert (selected["by"], selected["n_images"], written["n_training"]) == ("top1", 48, 160)
        alone = replace(PLAN, base_lrs=(), recipe=replace(RECIPE, base_lr=selected["base_lr"]))
        assert probe(*sets, tmp_path / "alone", alone)["alone"]["top1"] == written["top1"]
        assert len({(tmp_path / name / "trained/seed2.safetensors").read_bytes() for name in ("out", "alone")}) == 1
