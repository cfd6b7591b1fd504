"""`beyondcls probe --study`: heads and parameters of a study, where its results go, and what is refused."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from pipelines.parameters.groups import PLACES, plans_of_study, studies_of
from pipelines.parameters.params import read_params
from probe.aggregators import make_aggregator
from probe.cost import Cost
from probe.recipe import PRESETS, Recipe
from probe.result_files import read_result
from store import BeyondClsError
from tests.features import write_features

ROOT = Path(__file__).resolve().parents[3]
FILE = """
heads: {abmilp: {depth: 4}}
probe: {epochs: 9, batch_size: 32, warmup_epochs: 0, base_lr: 0.2, seeds: [0, 1, 2], base_lrs: null}
studies:
  pair:
    study: variants
    encoder: mae
    joined: dino
    heads: &heads
      abmilp: {}
      deep: {aggregator: abmilp, depth: 2, base_lr: 0.4}
    epochs: 2
    seeds: [3]
  again: {study: variants, encoder: dino, joined: dino, heads: *heads, preset: adamw, epochs: 2, warmup_epochs: 0}
  one: {heads: {cls: }, epochs: 1, views: 1}
  foreign: {heads: {cls-attention: {of: joined}, cls: {}}, epochs: 1}
  empty: {study: variants, encoder: mae}
  misspelt: {heads: {abmilp: {}}, epoch: 3}
  both: {heads: {abmilp: {}}, base_lr: 0.1, base_lrs: [0.1, 0.2]}
  stored: {heads: {abmilp: {}}, stored: "3,-1"}
block_studies:
  deep: {study: blocks, encoder: mae, stored: "3,-1", heads: {both: {aggregator: abmilp, blocks: [3, 5]}}, epochs: 3}
  joined: {joined: mae, heads: {abmilp: {}}}
  words: {stored: last, heads: {abmilp: {}}}
"""


def plans(name, **command_line):
    return plans_of_study(yaml.safe_load(FILE), name, command_line)


class TestWhatAStudySays:
    @pytest.mark.parametrize(
        ("name", "options", "run"),
        [
            ("pair", {"abmilp": {}, "deep": {"depth": 2}}, {}),
            ("one", {"cls": {}}, {"views": 1}),
            ("deep", {"both": {"blocks": [3, 5]}}, {}),
        ],
    )
    def test_its_heads_are_those_that_stand_in_it(self, name, options, run):
        head_plans, of_run = plans(name)
        assert {head: dict(plan.head.options) for head, plan in head_plans.items()} == options
        assert of_run == run

    def test_its_parameters_win_over_those_of_probe_a_heads_own_over_both_and_the_command_line_over_all(self):
        head_plans, _ = plans("pair")
        common = {"epochs": 2, "batch_size": 32, "warmup_epochs": 0}
        assert head_plans["abmilp"].recipe == Recipe(**common, base_lr=0.2)
        assert head_plans["deep"].recipe == Recipe(**common, base_lr=0.4)
        assert {plan.seeds for plan in head_plans.values()} == {(3,)}
        head_plans, _ = plans("pair", epochs=5, base_lr=0.7)
        assert {(plan.recipe.epochs, plan.recipe.base_lr) for plan in head_plans.values()} == {(5, 0.7)}
        abmilp = plans("again")[0]["abmilp"]
        assert abmilp.recipe == Recipe(**{**PRESETS["adamw"], "epochs": 2, "warmup_epochs": 0})
        assert abmilp.seeds == (0, 1, 2)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("pairs", "unknown study 'pairs'; did you mean 'pair'"),
            ("empty", "studies.empty has no heads"),
            ("misspelt", "studies.misspelt 'epoch'; did you mean 'epochs'"),
            ("stored", "unknown parameter in studies.stored 'stored'"),
            ("joined", "unknown parameter in block_studies.joined 'joined'"),
            ("words", "block_studies.words.stored is 'last', expected integers"),
            ("both", "--base-lr 0.1 and --base-lrs 0.1,0.2 exclude each other"),
            ("twice", "study 'twice' is in block_studies and in another section"),
        ],
    )
    def test_what_is_refused(self, name, message):
        content = yaml.safe_load(FILE)
        if name == "twice":
            content["studies"][name] = content["block_studies"][name] = {}
        with pytest.raises(BeyondClsError, match=message):
            plans_of_study(content, name, {})


class TestStudiesOfTheRepository:
    PARAMS = read_params(ROOT / "params.yaml")

    @pytest.mark.parametrize("name", studies_of(PARAMS))
    def test_each_can_be_made_and_says_all_that_the_pipeline_asks(self, name):
        (section, study), encoders = studies_of(self.PARAMS)[name], self.PARAMS["encoders"]
        assert set(PLACES[section]) <= set(study)
        assert {study["encoder"], study.get("joined", study["encoder"])} <= set(encoders)
        head_plans, _ = plans_of_study(self.PARAMS, name)
        assert len({plan.recipe for plan in head_plans.values()}) == 1  # rows compare
        for plan in head_plans.values():
            make_aggregator(plan.head.aggregator, 192, 64, **plan.head.options)

    def test_no_two_write_into_one_folder(self):
        folders = [(study["study"], study["encoder"]) for _, study in studies_of(self.PARAMS).values()]
        assert len(set(folders)) == len(folders)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Pairs of feature sets, for training and testing, by the weights of their encoders."""
    folder, pairs = tmp_path_factory.mktemp("sets"), (("train", 96), ("test", 40))
    return {
        weights: [
            write_features(folder / weights / split, n, seed=seed, weights=weights, crops=True).path
            for seed, (split, n) in enumerate(pairs)
        ]
        for weights in ("w", "v")
    }


@pytest.fixture
def study(beyondcls, sets, tmp_path):
    """What `beyondcls probe` says; metrics of all heads below OUT, by folder."""
    (tmp_path / "params.yaml").write_text(FILE)

    def run(*arguments, fails=False):
        places = ("--features", sets["w"][0], "--test", sets["w"][1], "--out", tmp_path / "out", "--device", "cpu")
        shown = beyondcls("probe", *places, *arguments, fails=fails)
        return shown, {p.parent.name: read_result(p) for p in sorted((tmp_path / "out").rglob("metrics.json"))}

    return run


class TestRun:
    def test_a_head_that_reads_the_joined_set_stands_beside_one_that_does_not(self, study, sets, tmp_path):
        given = ("--params", tmp_path / "params.yaml", "--study", "foreign")
        assert "second feature set; name it with --joined" in study(*given, fails=True)[0]
        _, written = study(*given, "--joined", sets["v"][0], "--joined-test", sets["v"][1])
        assert set(written) == {"cls", "cls-attention"}
        counted = Cost(0, 8 * 3 + 3, 2 * 9 * 8 + 2 * 8 * 3, 2 * (9 * 8 + 3 * 9), memory_per_image=4 * (9 * 8 + 9 + 8))
        assert written["cls-attention"]["cost"] == asdict(counted)

    def test_what_is_refused(self, study, tmp_path):
        assert "--study pair is in a parameter file; name it with --params" in study("--study", "pair", fails=True)[0]
        given = ("--params", tmp_path / "params.yaml", "--study", "pair", "--head", "cls")
        shown, written = study(*given, fails=True)
        assert written == {}
        assert "--study pair and --head cls exclude each other" in shown

    def test_of_one_that_is_run_again_what_agrees_stays_and_what_it_has_no_more_goes(self, study, tmp_path):
        given = ("--params", tmp_path / "params.yaml", "--study", "pair")
        _, before = study(*given)
        edited = yaml.safe_load(FILE)
        edited["studies"]["pair"]["heads"] = {"abmilp": {}, "wide": {"aggregator": "abmilp", "branches": 2}}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(edited))
        shown, after = study(*given)
        assert f"{tmp_path}/out/abmilp: kept, " in shown
        assert f"{tmp_path}/out/deep: removed" in shown
        assert set(after) == {"abmilp", "wide"}
        assert after["abmilp"] == before["abmilp"]
