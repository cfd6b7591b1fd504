"""What settings are selected on, what is learnt from at last, and what is noted; the protocols themselves are tested beside."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from probe.checkpoint import Unfinished
from probe.grid import HeadPlan, Member
from probe.recipe import Recipe
from probe.segmentation import run as runs
from probe.segmentation.linear import NAME, SPEC, TrainedMember
from probe.segmentation.logistic import PatchLogistic
from probe.segmentation.neighbours import PatchNeighbours
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.run import Protocols, drawn, segment
from probe.segmentation.sets import Sets
from store import BeyondClsError
from tests.probe.segmentation.features import SIDE, write_segmented

PLAN = HeadPlan(SPEC, Recipe(epochs=3, batch_size=8, optimiser="sgd", warmup_epochs=0), (0, 1), (1.0, 4.0))
PROTOCOLS = Protocols(("knn", "logistic", "linear"), PatchNeighbours((1, 3), ("cosine",)), PatchLogistic((0.1, 10.0)), PLAN, 16)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return [write_segmented(folder / name, n, seed=i) for i, (name, n) in enumerate((("train", 12), ("test", 5), ("val", 4)))]


@pytest.fixture
def learnt_from(monkeypatch):
    """The images that each protocol is given to learn from, with the number of settings; and those that k-NN labels."""
    calls = []

    def recorded(owner, name, place_of_settings):
        call = getattr(owner, name)

        def record(*given, **options):
            patches = [one.rows.tolist() for one in given if hasattr(one, "rows")]
            calls.append((name, *patches, len(given[place_of_settings])))
            return call(*given, **options)

        monkeypatch.setattr(owner, name, record)

    recorded(PatchNeighbours, "predict", 3)
    recorded(PatchLogistic, "fit", 2)
    recorded(runs, "train_linear", 3)
    return calls


def test_a_share_of_the_training_images_selects(stores, learnt_from):
    sets = Sets(*stores[:2])
    result = segment(sets, replace(PROTOCOLS, logistic=PatchLogistic((1e3, 1e5), max_passes=2)))
    learn, judge = (rows.tolist() for rows in sets.split)
    everything, test = list(range(12)), list(range(5))
    first = [("predict", learn, judge, 2), ("fit", learn, 2), ("train_linear", learn, 4)]
    last = [("predict", everything, test, 1), ("fit", everything, 1), ("train_linear", everything, 2)]
    assert learnt_from == [call for both in zip(first, last, strict=True) for call in both]
    for name in PROTOCOLS.names:
        selection = result.outcomes[name].selection
        assert (selection.on, selection.n_images, len(selection.candidates)) == ("hold-out", len(judge), 2)
        assert [note for note in result.outcomes[name].notes if "of the grid; a wider grid may give more" in note]
    notes = result.outcomes["logistic"].notes
    assert sum("did not converge in 2 passes" in note for note in notes) == 3, "each fit that is compared, and the last one"
    assert [len(outcome.measured) for outcome in result.outcomes.values()] == [1, 1, 2, 1, 1]
    constant = result.outcomes["most-frequent-class"]
    assert (constant.models[0].labels == sets.learnt.counts.argmax()).all()
    assert constant.chosen == {"class": sets.classes[sets.learnt.counts.argmax()]}


def test_validation_images_select_without_a_second_pass(stores, learnt_from):
    result = segment(Sets(*stores), PROTOCOLS)
    everything = list(range(12))
    assert learnt_from == [
        ("predict", everything, list(range(4)), 2),
        ("predict", everything, list(range(5)), 1),
        ("fit", everything, 2),
        ("train_linear", everything, 4),
    ]
    assert {result.outcomes[name].selection.on for name in PROTOCOLS.names} == {"validation set"}
    seeds = [trained.member.seed for trained in result.outcomes["linear"].trained]
    assert seeds == [0, 1], "those of the chosen setting"


def test_logistic_regression_is_covered_by_patches_and_the_linear_head_is_not(stores):
    """Kept are maps of the first seed; logistic regression knows patches, not what is between them."""
    kept, plan = {}, replace(PLAN, base_lrs=(4.0,))
    protocols = replace(PROTOCOLS, names=("logistic", "linear"), logistic=PatchLogistic((1.0,)), linear=plan)
    result = segment(
        Sets(*stores[:2]), protocols, keep=lambda name, row, values: kept.setdefault((name, row), []).append(values)
    )
    assert {len(maps) for maps in kept.values()} == {1}
    for name, is_covered in (("logistic", True), ("linear", False)):
        (values,) = kept[name, 3]
        of_patches = values.reshape(SIDE, 8, SIDE, 8).swapaxes(1, 2).reshape(SIDE**2, 64)
        assert (of_patches == of_patches[:, :1]).all() == is_covered
    assert result.outcomes["linear"].selection is None


def test_a_setting_whose_seed_diverged_is_not_selected(stores, monkeypatch):
    """However good its other seed is; and if all diverge, or those that are chosen, this is said."""
    lost_at = {4.0: (1,)}
    best = int(Sets(*stores[:2]).learnt.counts.argmax())

    def train_linear(patches, maps, loss_size, members, *_, **__):
        assert patches.placement == "memory"
        lost = {m: "diverged in epoch 2" for m in members if m.seed in lost_at.get(m.base_lr, ())}
        bias = {m: torch.eye(3)[best if m.base_lr == 4 else best - 1] for m in members if m not in lost}  # says one class
        zeros = torch.zeros(6), torch.ones(6), torch.zeros(3, 6)
        return [TrainedMember(m, PatchHead(*zeros, of_m, (SIDE, SIDE)), []) for m, of_m in bias.items()], lost

    monkeypatch.setattr(runs, "train_linear", train_linear)
    protocols = replace(PROTOCOLS, names=("linear",))
    sets = Sets(*stores[:2], placement="memory")
    result = segment(sets, protocols)
    assert result.outcomes["linear"].chosen["base_lr"] == 1.0
    assert np.isnan(result.outcomes["linear"].selection.percent[1])
    lost_at[1.0] = (0,)
    with pytest.raises(BeyondClsError, match=r"the linear head diverged with every setting: diverged .*; give lower base_lrs"):
        segment(sets, protocols)
    with pytest.raises(BeyondClsError, match=r"linear.* diverged in epoch 2"):
        segment(sets, replace(protocols, linear=replace(PLAN, base_lrs=(4.0,))))


def test_an_interrupted_run_goes_on_and_another_does_not(stores, tmp_path, monkeypatch):
    """Another in images, in the size of its loss, or in whatever else its results depend on."""
    monkeypatch.setattr("probe.checkpoint.EVERY_S", 0)
    sets, protocols = Sets(*stores[:2]), replace(PROTOCOLS, names=("linear",), linear=replace(PLAN, base_lrs=(4.0,)))
    progress = Mock(side_effect=[None, None, KeyboardInterrupt])  # after two epochs
    with pytest.raises(KeyboardInterrupt):
        segment(sets, protocols, unfinished=Unfinished(tmp_path), bars=lambda *_: nullcontext(progress))
    part = Sets(*stores[:2])
    part.__dict__["learnt"] = part.learnt.part(np.arange(7))
    for one, options in (
        (sets, replace(protocols, loss_size=8)),
        (Sets(*stores[:2], views=(0, 0)), protocols),
        (Sets(stores[2], stores[1]), protocols),
        (part, protocols),
    ):
        said = []
        segment(one, options, unfinished=Unfinished(tmp_path), say=said.append)
        assert said == []
    said, epochs = [], []
    again = segment(sets, protocols, unfinished=Unfinished(tmp_path), say=said.append, on_epoch=epochs.append)
    assert said == ["going on after 2 of 3 epochs"]
    assert [(one.stage, one.is_replayed) for one in epochs] == [("training", number < 4) for number in range(6)]
    fresh = segment(sets, protocols)
    for ours, theirs in zip(again.outcomes["linear"].trained, fresh.outcomes["linear"].trained, strict=True):
        assert ours.member == theirs.member == Member(NAME, 4.0, 0.0, ours.member.seed)
        assert torch.equal(ours.head.weight, theirs.head.weight)
        assert ours.curve == theirs.curve


def test_classes_that_are_drawn_occur_as_in_training():
    counts = np.array([100, 0, 600, 300])
    labels = drawn(counts, 50, 200)
    assert (labels.shape, labels.dtype) == ((50, 200), np.int16)
    np.testing.assert_allclose(np.bincount(labels.ravel(), minlength=4) / 10_000, counts / 1000, atol=0.02)
    assert not np.array_equal(labels[0], labels[1]), "each patch by itself"
    np.testing.assert_array_equal(labels, drawn(counts, 50, 200), "the same each time")
