"""Protocols without gradient steps against independent implementations, and bad input."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.neighbors import KNeighborsClassifier

from probe.closed import Logistic, Neighbours, Ridge, Selection, Vectors, make_closed
from probe.closed.neighbours import nearest
from probe.metrics import MULTILABEL
from probe.subsets import hold_out
from store import BeyondClsError
from tests.blobs import blobs, several

TRAINING, TEST = blobs(offset=1.0), blobs(60, seed=1, offset=1.0)
NAN, INF = math.nan, math.inf


def scaled(training: Vectors, test: Vectors) -> tuple[np.ndarray, np.ndarray]:
    x, z = training.x.double().numpy(), test.x.double().numpy()
    return (x - x.mean(0)) / x.std(0), (z - x.mean(0)) / x.std(0)


def signs(training: Vectors) -> np.ndarray:
    """1 for the classes of an image and -1 for the others, [N, K]."""
    y = training.labels if training.multilabel else training.labels[:, None] == torch.arange(training.n_classes)
    return 2.0 * y.numpy() - 1


class TestLogistic:
    @pytest.mark.parametrize("standardise", [True, False])
    def test_is_scikit_learns(self, standardise):
        x, z = scaled(TRAINING, TEST) if standardise else (TRAINING.x.double().numpy(), TEST.x.double().numpy())
        expected = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(x, TRAINING.labels).decision_function(z)
        scores = Logistic(cs=(0.5,), standardise=standardise).fit(TRAINING, TEST).scores
        np.testing.assert_allclose(scores, expected, atol=1e-4)

    def test_selects_as_fits_without_a_warm_start_would(self):
        grid = (1e-4, 1e-2, 1.0, 100.0)
        selection = Logistic(cs=grid, share=0.3, seed=2).fit(TRAINING, TEST).selection
        learnt, held = (TRAINING.rows(rows) for rows in hold_out(TRAINING.labels.numpy(), 0.3, 2))
        x, z = scaled(learnt, held)
        fitted = (LogisticRegression(C=c, tol=1e-8, max_iter=1000).fit(x, learnt.labels) for c in grid)
        expected = [100 * model.score(z, held.labels) for model in fitted]
        assert selection.percent == pytest.approx(expected)
        assert (selection.on, selection.by, selection.n_images) == ("hold-out", "top1", 36)
        assert selection.best == grid[int(np.argmax(expected))]

    def test_two_classes_have_two_scores(self):
        training, test = blobs(n_classes=2, offset=1.0), blobs(30, n_classes=2, offset=1.0, seed=1)
        x, z = scaled(training, test)
        expected = LogisticRegression(C=0.5, tol=1e-8).fit(x, training.labels).predict_proba(z)
        np.testing.assert_allclose(Logistic(cs=(0.5,)).fit(training, test).scores.softmax(1), expected, atol=1e-5)

    def test_several_labels_are_one_regression_each(self):
        """Of a label that no image has, or every one, it is certain."""
        training, test = several(offset=1.0), several(40, offset=1.0, seed=1)
        training.labels[:, 1], training.labels[:, 2] = 0, 1
        x, z = scaled(training, test)
        scores = Logistic(cs=(0.5,)).fit(training, test).scores
        for k in (0, 3):
            expected = LogisticRegression(C=0.5, tol=1e-8).fit(x, training.labels[:, k]).decision_function(z)
            np.testing.assert_allclose(scores[:, k], expected, atol=1e-4)
        assert (scores[:, 1:3] == torch.tensor([-INF, INF])).all()

    def test_what_does_not_converge_is_noted(self):
        def noted(sets, **options):
            return {
                note.partition(" did not converge")[0] for note in Logistic(**options).fit(*sets).notes if "converge" in note
            }

        whole, held_out = "the fit with C = 1 on all training images", "the fit with C = 1 on hold-out"
        assert {held_out} <= noted((TRAINING, TEST), cs=(1.0, 10.0), max_iter=1)
        assert noted((TRAINING, TEST), cs=(1.0,), max_iter=1) == {whole}
        assert noted((several(), several(seed=1)), cs=(1.0,), max_iter=1) == {whole}
        assert noted((TRAINING, TEST), cs=(1.0, 10.0)) == set()
        # Fewer images than channels: nothing varies along some directions, which must not slow the others down.
        few = Vectors(torch.randn(96, 192, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 10, 10)
        assert noted((few, few), cs=(1e4, 1e5), max_iter=150) == set()

    def test_the_edge_of_the_grid_is_noted(self):
        assert any("of the grid" in note for note in Logistic(cs=(1e-6, 1e-5)).fit(TRAINING, TEST).notes)
        assert not Logistic(cs=(1.0,)).fit(TRAINING, TEST).notes


@pytest.mark.parametrize("name", ["logistic", "ridge"])
@pytest.mark.parametrize("standardise", [True, False])
def test_a_constant_feature_changes_nothing(name, standardise):
    wider = [Vectors(torch.cat([v.x, torch.full((len(v), 1), 0.1)], 1), v.labels, 4) for v in (TRAINING, TEST)]
    protocol = make_closed(name, standardise=standardise)
    torch.testing.assert_close(protocol.fit(*wider).scores, protocol.fit(TRAINING, TEST).scores, rtol=1e-3, atol=1e-4)


def cosine_votes(training: Vectors, test: Vectors, k: int) -> np.ndarray:
    """Shares of the votes of k neighbours at temperature 0.07, [N, K]."""
    x, z = (torch.nn.functional.normalize(v.x.double()).numpy() for v in (training, test))
    similarity = z @ x.T
    near = np.argsort(-similarity, 1, kind="stable")[:, :k]
    weights = np.exp(np.take_along_axis(similarity, near, 1) / 0.07)
    votes = np.einsum("nk,nkc->nc", weights, (signs(training)[near] + 1) / 2)
    return votes / weights.sum(1, keepdims=True)


class TestNeighbours:
    @pytest.mark.parametrize(("k", "make"), [(1, blobs), (7, blobs), (120, blobs), (9, several)])
    def test_weighted_votes(self, k, make):
        training, test = make(offset=1.0), make(60, offset=1.0, seed=1)
        scores = Neighbours(ks=(k,)).fit(training, test).scores
        shares = cosine_votes(training, test, k)
        expected = shares - 0.5 if make is several else np.where(shares > 0, shares, -INF)
        np.testing.assert_allclose(scores, expected, atol=1e-5)

    def test_a_far_neighbour_votes_at_any_temperature(self):
        """Its share is below the smallest float32, and its class the second of two; nothing overflows."""
        training = Vectors(torch.tensor([[1.0, 0.0], [-1.0, 0.1]]), torch.tensor([5, 2]), 8)
        test = Vectors(torch.tensor([[1.0, 0.0]] * 8), torch.arange(8), 8)
        result = Neighbours(ks=(2,), temperature=1e-3).fit(training, test)
        assert result.scores[0].tolist() == [-INF, -INF, 0.0, -INF, -INF, 1.0, -INF, -INF]
        assert result.metrics == {"top1": 12.5, "top5": 25.0}
        cold, one = (Neighbours(ks=(k,), temperature=1e-5).fit(TRAINING, TEST).scores.clamp(min=0) for k in (20, 1))
        torch.testing.assert_close(cold, one)

    @pytest.mark.parametrize(("k", "metric"), [(1, "cosine"), (8, "euclidean"), (31, "cosine")])
    def test_majority_is_scikit_learns(self, k, metric):
        result = Neighbours(ks=(k,), votes="majority", metric=metric).fit(TRAINING, TEST)
        peer = KNeighborsClassifier(k, metric=metric, algorithm="brute").fit(TRAINING.x.double(), TRAINING.labels)
        np.testing.assert_allclose(result.scores.clamp(min=0), peer.predict_proba(TEST.x.double()), atol=1e-6)
        assert result.metrics["top1"] == pytest.approx(100 * peer.score(TEST.x.double(), TEST.labels))

    @pytest.mark.parametrize("metric", ["cosine", "euclidean"])
    @pytest.mark.parametrize(("block", "chunk"), [(1, 7), (13, 50), (512, 2048)])
    def test_blocks_change_nothing(self, metric, block, chunk):
        torch.manual_seed(0)
        known = torch.randn(40, 5).repeat(3, 1)[torch.randperm(120)]  # each vector three times
        queries = torch.cat([torch.randn(20, 5), known[:10], torch.zeros(1, 5)])
        similarity, rows = nearest(queries, known, 25, metric, block, chunk)
        for i, query in enumerate(queries.double()):
            if metric == "cosine":
                exact = torch.nn.functional.cosine_similarity(query[None], known.double())
            else:
                exact = -(query - known.double()).square().sum(1)
            order = exact.float().sort(descending=True, stable=True).indices[:25]
            expected = exact[order]
            torch.testing.assert_close(similarity[i], expected, rtol=1e-6, atol=1e-6)
            # Equal ones in the order of their rows, none skipped and none twice.
            is_tie = similarity[i, :-1] == similarity[i, 1:]
            assert (rows[i].diff()[is_tie] > 0).all()
            if len(exact[exact.float() == expected[-1].float()]) == 1:
                assert rows[i].tolist() == order.tolist()

    def test_a_far_centre_does_not_blur_distances(self):
        torch.manual_seed(0)
        known, queries = torch.randn(50, 4).double(), torch.randn(9, 4).double()
        near, far = (nearest(queries + shift, known + shift, 10, "euclidean") for shift in (0, 1e6))
        assert torch.equal(near[1], far[1])

    def test_k_and_temperature_are_selected_together(self):
        """On the hold-out; what is chosen is what it would be alone."""
        ks, temperatures = (1, 5, 40), (0.5, 0.01, 0.07)
        result = Neighbours(ks=ks, temperature=temperatures, share=0.3).fit(TRAINING, TEST)
        learnt, held = (TRAINING.rows(rows) for rows in hold_out(TRAINING.labels.numpy(), 0.3))
        grid = [(k, t) for k in ks for t in sorted(temperatures)]
        alone = {(k, t): Neighbours(ks=(k,), temperature=t).fit(learnt, held).metrics["top1"] for k, t in grid}
        assert dict(zip(result.selection.candidates, result.selection.percent, strict=True)) == pytest.approx(alone)
        assert len(set(alone.values())) > 3
        best = max(grid, key=lambda pair: alone[pair])
        assert result.chosen == dict(zip(("k", "temperature"), best, strict=True))
        assert torch.equal(result.scores, Neighbours(ks=best[:1], temperature=best[1]).fit(TRAINING, TEST).scores)
        assert any("chosen temperature" in note for note in result.notes) == (best[1] != 0.07)
        one, number = (Neighbours(ks=(5,), temperature=t).fit(TRAINING, TEST) for t in ((0.07,), 0.07))
        assert (one.chosen, number.chosen) == ({"k": 5, "temperature": 0.07}, {"k": 5})
        assert (number.selection.candidates, one.selection.on) == ((5,), "nothing")
        assert torch.equal(one.scores, number.scores)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("knn", {"temperature": (0.1, 0.1)}, "temperature is .* once"),
        ("knn", {"temperature": ()}, "temperature is empty"),
        ("knn", {"temperature": 0.0}, "temperature is 0.0, expected a positive"),
        ("knn", {"temperature": (0.1, 0.2), "votes": "majority"}, "votes 'majority' have none"),
        ("knn", {"votes": "weigthed"}, "did you mean 'weighted'"),
        ("knn", {"metric": "cosin"}, "did you mean 'cosine'"),
        ("knn", {"metric": "euclidean"}, "'weighted' need .* 'cosine', got 'euclidean'"),
        ("knn", {"ks": (1.5,)}, r"ks holds 1\.5, expected positive whole"),
        ("knn", {"ks": (121,)}, "k is 121, but there are 120 images"),
        ("knn", {"ks": (1, 120)}, r"k is 120, but there are 108 images to vote \(a hold-out"),
        ("ridge", {"constant": -1.0}, r"constant is -1\.0, expected 0"),
        ("ridge", {"alpha": 1.0}, "did you mean 'alphas'"),
        ("logistik", {}, "did you mean 'logistic'"),
        ("logistic", {"max_iter": 0}, "max_iter is 0"),
    ],
    ids=str,
)
def test_options_that_cannot_be(name, options, message):
    with pytest.raises(BeyondClsError, match=message):
        make_closed(name, **options).fit(TRAINING, TEST)


@pytest.mark.parametrize(("name", "grid"), [("logistic", "cs"), ("knn", "ks")])
def test_held_out_images_without_a_label_select_nothing(name, grid):
    """Else the first of the grid would be taken, as no number is better than another."""
    training = several(40)
    training.labels[hold_out(training.labels.numpy(), 0.1, 0)[1]] = 0
    with pytest.raises(BeyondClsError, match=r"map of the 4 images held out .*share is 0\.1"):
        make_closed(name, **{grid: [1, 5]}).fit(training, several(20, seed=1))
    make_closed(name, **{grid: [5]}).fit(training, several(20, seed=1))


class TestRidge:
    @pytest.mark.parametrize(("n", "dim", "alpha"), [(120, 6, 1e-3), (20, 40, 1.0), (30, 30, 1e4)])
    def test_is_scikit_learns(self, n, dim, alpha):
        training, test = blobs(n, dim=dim, offset=1.0), blobs(30, dim=dim, offset=1.0, seed=1)
        scores = Ridge(alphas=(alpha,), standardise=False).fit(training, test).scores
        peer = SklearnRidge(alpha, solver="svd").fit(training.x.double().numpy(), signs(training))
        np.testing.assert_allclose(scores, peer.predict(test.x.double().numpy()), atol=1e-5)

    def test_dependent_features(self):
        """Copies of a feature share its weight: the decomposition must not divide by its zeros."""
        sides = [Vectors(torch.cat([v.x, v.x, v.x[:, :1]], 1), v.labels, 4) for v in (TRAINING, TEST)]
        x, z = scaled(*sides)
        peer = SklearnRidge(1.0, solver="svd").fit(x, signs(TRAINING))
        np.testing.assert_allclose(Ridge(alphas=(1.0,)).fit(*sides).scores, peer.predict(z), atol=1e-5)

    @pytest.mark.parametrize("make", [blobs, several])
    @pytest.mark.parametrize("dim", [6, 60])
    def test_selects_as_leaving_out_each_image_in_turn_would(self, make, dim):
        training, test = make(40, dim=dim, offset=0.7), make(10, dim=dim, seed=1)
        selection = Ridge(alphas=(0.1, 10.0, 1000.0)).fit(training, test).selection
        (x, _), y = scaled(training, test), signs(training)
        for alpha, percent in zip(selection.candidates, selection.percent, strict=True):
            rest = [np.arange(40) != i for i in range(40)]
            scores = torch.from_numpy(np.stack([SklearnRidge(alpha).fit(x[r], y[r]).predict(x[~r])[0] for r in rest]))
            hits = (scores.argmax(1) == training.labels).double().mean() * 100 if make is blobs else None
            expected = MULTILABEL["map"](scores, training.labels) if make is several else hits
            assert percent == pytest.approx(float(expected), abs=1e-9)
        assert (selection.on, selection.n_images) == ("leave-one-out", 40)
        assert selection.candidates == (1000.0, 10.0, 0.1)  # of equally good ones the largest

    @pytest.mark.parametrize("dim", [6, 60])
    def test_a_constant_in_place_of_a_free_intercept(self, dim):
        """As big_vision's least squares, and each image left out of it, by solving for every one."""
        training, test = blobs(40, dim=dim, offset=0.7), blobs(30, dim=dim, seed=1)
        x, z = (torch.nn.functional.pad(torch.from_numpy(v), (0, 1), value=100.0) for v in scaled(training, test))
        y = torch.from_numpy(signs(training))

        def solved(rows, alpha):
            return torch.linalg.solve(x[rows].T @ x[rows] + alpha * torch.eye(dim + 1), x[rows].T @ y[rows])

        result = Ridge(alphas=(1024.0,), constant=100.0).fit(training, test)
        torch.testing.assert_close(result.scores.double(), z @ solved(slice(None), 1024.0), atol=1e-6, rtol=1e-6)
        selection = Ridge(alphas=(1.0, 1000.0), constant=100.0).fit(training, test).selection
        for alpha, percent in zip(selection.candidates, selection.percent, strict=True):
            left = torch.stack([x[i] @ solved(torch.arange(40) != i, alpha) for i in range(40)])
            assert percent == pytest.approx(100 * (left.argmax(1) == training.labels).double().mean().item())


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (torch.zeros(3, 2, 2), torch.zeros(3), r"vectors \(3, 2, 2\) and labels \(3,\) .*pool"),
        (torch.zeros(0, 2), torch.zeros(0), r"vectors \(0, 2\) and labels \(0,\)"),
        (torch.zeros(3, 2).half(), torch.zeros(3), r"torch\.float16, expected float32 or float64"),
        (torch.tensor([[1.0], [NAN], [INF]]), torch.zeros(3), "2 of 3 vectors hold NaN or infinity, first row 1"),
        (torch.zeros(3, 2), torch.tensor([0, -1, 1]), r"labels are -1 to 1, expected 0 to 2; .*store\.labelled"),
        (torch.zeros(3, 2), torch.zeros(3, 2), "2 columns, expected 3"),
        (torch.zeros(3, 2), torch.full((3, 3), 2), "labels are 2 to 2, expected 0 to 1"),
    ],
)
def test_vectors_that_cannot_be(x, labels, message):
    with pytest.raises(BeyondClsError, match=message):
        Vectors(x, labels, 3)


def test_arrays_are_taken():
    vectors = Vectors(TRAINING.x.numpy(), TRAINING.labels.numpy().astype(np.int32), 4)
    assert torch.equal(vectors.labels, TRAINING.labels)
    assert torch.equal(vectors.rows(np.array([3, 1])).x, TRAINING.x[[3, 1]])


def test_best_of_measures_that_are_nan():
    assert Selection("hold-out", "map", 3, (1, 2, 3), (NAN, 5.0, 5.0)).best == 2
    assert Selection("hold-out", "map", 3, (1, 2), (NAN, NAN)).best == 1
