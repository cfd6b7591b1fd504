"""What holds for every protocol without gradient steps."""

import json
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from probe.closed import CLOSED, Result, Vectors, make_closed
from probe.metrics import MULTILABEL, PER_IMAGE
from store import BeyondClsError
from tests.blobs import blobs, several

VALUES = (1, 5, 20)


def run(name: str, training: Vectors, test: Vectors, values: Sequence[float] = VALUES) -> Result:
    return make_closed(name, **{CLOSED[name].grid: values}).fit(training, test)


def swapped(vectors: Vectors, order: torch.Tensor) -> Vectors:
    """Class c is called order[c]."""
    if vectors.multilabel:
        return Vectors(vectors.x, vectors.labels[:, order.argsort()], vectors.n_classes)
    return Vectors(vectors.x, order[vectors.labels], vectors.n_classes)


@pytest.mark.parametrize("make", [blobs, several])
@pytest.mark.parametrize("name", CLOSED)
class TestEveryProtocol:
    def test_scores_every_test_image_and_class(self, name, make):
        result = run(name, make(), make(31, seed=1))
        assert result.scores.shape == (31, 4)
        assert result.scores.dtype == torch.float32
        assert not result.scores.isnan().any()
        assert result.scores.max() < torch.inf

    def test_is_better_than_chance(self, name, make):
        metrics = run(name, make(), make(200, seed=1)).metrics
        assert set(metrics) == set(MULTILABEL if make is several else PER_IMAGE)
        assert metrics["map"] > 80 if make is several else metrics["top1"] > 65  # chance: 40 and 25

    def test_measures_are_those_of_the_scores(self, name, make):
        test = make(40, seed=1)
        result = run(name, make(offset=1.0), test)
        for measure, percent in result.metrics.items():
            if make is several:
                assert percent == float(MULTILABEL[measure](result.scores, test.labels))
            else:
                assert percent == 100 * PER_IMAGE[measure](result.scores, test.labels).double().mean()

    def test_selection_never_sees_test_data(self, name, make):
        training, test = make(offset=1.0), make(50, seed=1)
        one = run(name, training, test)
        noise = Vectors(torch.randn(9, 6) * 100, make(9, seed=5).labels, 4)
        other = run(name, training, noise)
        assert (one.chosen, one.selection) == (other.chosen, other.selection)
        assert one.selection.on in ("hold-out", "leave-one-out")
        assert len(one.selection.percent) == 3

    def test_each_test_image_is_scored_alone(self, name, make):
        training, test = make(offset=1.0), make(20, seed=1)
        whole = run(name, training, test).scores
        alone = torch.cat([run(name, training, test.rows([row])).scores for row in range(3)])
        torch.testing.assert_close(whole[:3], alone)

    def test_names_of_classes_do_not_matter(self, name, make):
        order = torch.tensor([2, 0, 3, 1])
        training, test = make(offset=1.0), make(20, seed=1)
        plain, moved = run(name, training, test), run(name, swapped(training, order), swapped(test, order))
        torch.testing.assert_close(moved.scores[:, order], plain.scores, rtol=1e-3, atol=1e-4)
        assert moved.chosen == plain.chosen

    def test_is_deterministic_and_the_grid_has_no_order(self, name, make):
        plain = run(name, make(offset=1.0), make(20, seed=1))
        described = json.loads(json.dumps(plain.to_dict()))
        assert set(described) == {"chosen", "selection", "metrics", "notes"}
        for values in (VALUES, list(VALUES[::-1])):
            again = run(name, make(offset=1.0), make(20, seed=1), values)
            assert plain.selection == again.selection
            assert torch.equal(plain.scores, again.scores)
            assert json.loads(json.dumps(again.to_dict())) == described

    def test_one_value_needs_no_selection(self, name, make):
        result = run(name, make(8), make(4, seed=1), [5])
        assert (list(result.chosen.values()), result.selection.on) == ([5], "nothing")

    def test_the_chosen_value_is_what_alone_would_be(self, name, make):
        training, test = make(offset=1.0), make(20, seed=1)
        selected = run(name, training, test)
        alone = run(name, training, test, list(selected.chosen.values()))
        assert torch.equal(selected.scores, alone.scores)
        best = max(selected.selection.percent)
        assert selected.selection.percent[selected.selection.candidates.index(alone.selection.best)] == best

    def test_a_class_that_was_never_seen_is_never_predicted(self, name, make):
        def without_class_1(vectors):
            if vectors.multilabel:
                return Vectors(vectors.x, vectors.labels * torch.tensor([1, 0, 1, 1]), 4)
            return vectors.rows(vectors.labels != 1)

        result = run(name, *map(without_class_1, (make(), make(60, seed=1))))
        assert (result.scores[:, 1] < 0).all() if make is several else (result.scores.argmax(1) != 1).all()
        assert result.metrics["map" if make is several else "top1"] > 65
        if make is blobs:
            of_class_1 = torch.ones(len(result.scores), dtype=torch.int64)
            assert not PER_IMAGE["top5"](result.scores, of_class_1).any(), "nor among five"
        assert any("1 of 4 classes have no training image and are never predicted" in note for note in result.notes)
        if make is several:
            assert any("1 of 4 classes have no test image and are in no mean" in note for note in result.notes)

    def test_leaves_the_vectors_and_the_generators_untouched(self, name, make):
        training, test = make(), make(20, seed=1)
        before, state, drawn = training.x.clone(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        with warnings.catch_warnings(action="error"):
            run(name, training, test)
        assert torch.equal(training.x, before)
        assert torch.equal(torch.get_rng_state(), state)
        assert (np.random.get_state()[1] == drawn).all()  # noqa: NPY002

    def test_refuses_what_does_not_fit(self, name, make):
        with pytest.raises(BeyondClsError, match="training vectors are 6 wide, test vectors 7; pool both"):
            run(name, make(), make(dim=7))
        with pytest.raises(BeyondClsError, match=r"training has 4 classes, .*; test has 3 classes, .*; use splits of one"):
            run(name, make(), make(n_classes=3))
        with pytest.raises(BeyondClsError, match=r"one label an image; .*several labels|several.*one"):
            run(name, make(), several() if make is blobs else blobs())

    def test_refuses_a_single_class(self, name, make):
        single = Vectors(torch.randn(20, 6), torch.ones_like(make(20).labels), 4)
        with pytest.raises(BeyondClsError, match=r"are of class 1, expected 2 classes or more|no class tells the 20 training"):
            run(name, single, make())
        if make is several:
            with pytest.raises(BeyondClsError, match="none of the 20 training images has a label"):
                run(name, Vectors(single.x, torch.zeros_like(single.labels), 4), make())

    @pytest.mark.parametrize("grid", [[], [0], [float("nan")], [float("inf")], [5, 5], ["1"], 5])
    def test_refuses_grids_that_cannot_be(self, name, make, grid):
        with pytest.raises(BeyondClsError, match=f"{CLOSED[name].grid}.* (is|holds).*(give|expected)"):
            make_closed(name, **{CLOSED[name].grid: grid})
