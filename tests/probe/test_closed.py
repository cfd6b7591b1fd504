"""Protocols without gradient steps against independent implementations, and bad input."""

import math
from collections.abc import Sequence
from statistics import mode

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


class TestLogistic:
    def scaled(self, training: Vectors, test: Vectors) -> tuple[np.ndarray, np.ndarray]:
        x, z = training.x.double().numpy(), test.x.double().numpy()
        return (x - x.mean(0)) / x.std(0), (z - x.mean(0)) / x.std(0)

    def test_is_that_of_standardised_features(self):
        x, z = self.scaled(TRAINING, TEST)
        expected = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(x, TRAINING.labels).decision_function(z)
        result = Logistic(cs=(0.5,)).fit(TRAINING, TEST)
        np.testing.assert_allclose(result.scores, expected, atol=1e-4)
        raw = Logistic(cs=(0.5,), standardise=False).fit(TRAINING, TEST)
        x, z = TRAINING.x.double().numpy(), TEST.x.double().numpy()
        expected = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(x, TRAINING.labels).decision_function(z)
        np.testing.assert_allclose(raw.scores, expected, atol=1e-4)

    def test_selects_as_fits_without_a_warm_start_would(self):
        grid = (1e-4, 1e-2, 1.0, 100.0)
        selection = Logistic(cs=grid, share=0.3, seed=2).fit(TRAINING, TEST).selection
        learnt, held = (TRAINING.rows(rows) for rows in hold_out(TRAINING.labels.numpy(), 0.3, 2))
        x, z = self.scaled(learnt, held)
        expected = [
            100 * LogisticRegression(C=c, tol=1e-8, max_iter=1000).fit(x, learnt.labels).score(z, held.labels) for c in grid
        ]
        assert selection.percent == pytest.approx(expected)
        assert (selection.on, selection.by, selection.n_images) == ("hold-out", "top1", 36)
        assert selection.best == grid[int(np.argmax(expected))]

    def test_two_classes_have_two_scores(self):
        training, test = blobs(n_classes=2, offset=1.0), blobs(30, n_classes=2, offset=1.0, seed=1)
        x, z = self.scaled(training, test)
        expected = LogisticRegression(C=0.5, tol=1e-8).fit(x, training.labels).predict_proba(z)
        np.testing.assert_allclose(Logistic(cs=(0.5,)).fit(training, test).scores.softmax(1), expected, atol=1e-5)

    def test_several_labels_are_one_regression_each(self):
        training, test = several(offset=1.0), several(40, offset=1.0, seed=1)
        x, z = self.scaled(training, test)
        scores = Logistic(cs=(0.5,)).fit(training, test).scores
        for k in range(4):
            expected = LogisticRegression(C=0.5, tol=1e-8).fit(x, training.labels[:, k]).decision_function(z)
            np.testing.assert_allclose(scores[:, k], expected, atol=1e-4)

    def test_a_label_of_no_or_every_image(self):
        training, test = several(), several(30, seed=1)
        training.labels[:, 1], training.labels[:, 2] = 0, 1
        scores = Logistic(cs=(0.1, 1.0)).fit(training, test).scores
        assert (scores[:, 1] == -math.inf).all()
        assert (scores[:, 2] == math.inf).all()
        assert scores[:, [0, 3]].isfinite().all()

    def test_fewer_images_than_channels(self):
        """Nothing varies along some directions: they must not slow the others down."""
        torch.manual_seed(0)
        x, y = torch.randn(96, 192), torch.arange(96) % 10
        result = Logistic(cs=(1e4, 1e5), max_iter=150).fit(Vectors(x, y, 10), Vectors(x, y, 10))
        assert not any("converge" in note for note in result.notes)

    def test_what_does_not_converge_is_noted(self):
        result = Logistic(cs=(1.0, 10.0), max_iter=1).fit(TRAINING, TEST)
        assert any("the fit with C = 1 on hold-out did not converge after max_iter = 1; raise" in note for note in result.notes)
        assert any("on all training images did not converge" in note for note in result.notes)
        many = Logistic(cs=(1.0,), max_iter=1).fit(several(), several(seed=1))
        assert any("the fit with C = 1 on all training images" in note for note in many.notes)
        assert not any("converge" in note for note in Logistic(cs=(1.0, 10.0)).fit(TRAINING, TEST).notes)

    def test_the_edge_of_the_grid_is_noted(self):
        notes = Logistic(cs=(1e-6, 1e-5)).fit(TRAINING, TEST).notes
        assert any("is the" in note and "of the grid; a wider grid may give more" in note for note in notes)
        assert not Logistic(cs=(1.0,)).fit(TRAINING, TEST).notes


@pytest.mark.parametrize("name", ["logistic", "ridge"])
@pytest.mark.parametrize("standardise", [True, False])
def test_a_constant_feature_changes_nothing(name, standardise):
    wider = [Vectors(torch.cat([v.x, torch.full((len(v), 1), 0.1)], 1), v.labels, 4) for v in (TRAINING, TEST)]
    protocol = make_closed(name, standardise=standardise)
    torch.testing.assert_close(protocol.fit(*wider).scores, protocol.fit(TRAINING, TEST).scores, rtol=1e-3, atol=1e-4)


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def brute_force(training: Vectors, query: list[float], metric: str) -> list[tuple[float, int]]:
    """(distance, row) of every training image, nearest first, in plain Python."""

    def distance(x: list[float]) -> float:
        if metric == "euclidean":
            return math.dist(x, query)
        return -dot(x, query) / math.hypot(*x) / math.hypot(*query)

    return sorted((distance(x), row) for row, x in enumerate(training.x.tolist()))


class TestNeighbours:
    @pytest.mark.parametrize("k", [1, 7, 120])
    def test_weighted_votes_by_brute_force(self, k):
        scores = Neighbours(ks=(k,)).fit(TRAINING, TEST).scores
        for query, row in zip(TEST.x.tolist(), scores.tolist(), strict=True):
            votes = [0.0] * 4
            for distance, i in brute_force(TRAINING, query, "cosine")[:k]:
                votes[int(TRAINING.labels[i])] += math.exp(-distance / 0.07)
            assert row == pytest.approx([v / sum(votes) if v else -math.inf for v in votes], abs=1e-5)

    @pytest.mark.parametrize("votes", ["weighted", "majority"])
    @pytest.mark.parametrize("n_classes", [4, 6, 10])
    def test_top5_counts_no_class_without_a_vote(self, n_classes, votes):
        training, test = (blobs(n, n_classes, 12, seed=s, offset=1.0) for n, s in ((120, 0), (60, 1)))
        rows = nearest(test.x, training.x, 120, "cosine")[1]
        for k in (1, 2, 5, 9, 120):
            has_neighbour = (training.labels[rows[:, :k]] == test.labels[:, None]).any(1).double().mean().item()
            top1, top5 = (Neighbours(ks=(k,), votes=votes).fit(training, test).metrics[name] for name in ("top1", "top5"))
            assert top1 <= top5 <= 100 * has_neighbour
            assert k > 5 or top5 == pytest.approx(100 * has_neighbour), "five neighbours have five classes at most"
            assert (top5 == top1) == (k == 1)
            assert has_neighbour < 1 or k > 5
        assert top5 == 100 if n_classes < 6 else top5 < 100

    def test_a_far_neighbour_votes_at_any_temperature(self):
        """Its share is below the smallest float32, and its class the second of two."""
        training = Vectors(torch.tensor([[1.0, 0.0], [-1.0, 0.1]]), torch.tensor([5, 2]), 8)
        test = Vectors(torch.tensor([[1.0, 0.0]] * 8), torch.arange(8), 8)
        result = Neighbours(ks=(2,), temperature=1e-3).fit(training, test)
        assert result.scores[0].tolist() == [-math.inf, -math.inf, 0.0, -math.inf, -math.inf, 1.0, -math.inf, -math.inf]
        assert result.metrics == {"top1": 12.5, "top5": 25.0}

    @pytest.mark.parametrize("metric", ["cosine", "euclidean"])
    @pytest.mark.parametrize("k", [1, 8, 31])
    def test_majority_is_scikit_learns(self, k, metric):
        result = Neighbours(ks=(k,), votes="majority", metric=metric).fit(TRAINING, TEST)
        peer = KNeighborsClassifier(k, metric=metric, algorithm="brute").fit(TRAINING.x.double(), TRAINING.labels)
        np.testing.assert_allclose(result.scores.clamp(min=0), peer.predict_proba(TEST.x.double()), atol=1e-6)
        assert result.metrics["top1"] == pytest.approx(100 * peer.score(TEST.x.double(), TEST.labels))
        for query, row in zip(TEST.x.tolist()[:5], result.scores[:5], strict=True):
            near = [int(TRAINING.labels[i]) for _, i in brute_force(TRAINING, query, metric)[:k]]
            assert row[mode(near)] == row.max()

    def test_several_labels_by_brute_force(self):
        training, test = several(offset=1.0), several(20, offset=1.0, seed=1)
        scores = Neighbours(ks=(9,)).fit(training, test).scores
        for query, row in zip(test.x.tolist(), scores.tolist(), strict=True):
            near = brute_force(training, query, "cosine")[:9]
            weights = [math.exp(-d / 0.07) for d, _ in near]
            y = [training.labels[i].tolist() for _, i in near]
            expected = [dot(weights, column) / sum(weights) - 0.5 for column in zip(*y, strict=True)]
            assert row == pytest.approx(expected, abs=1e-5)

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
            assert all(
                a < b for s, t, a, b in zip(similarity[i], similarity[i, 1:], rows[i], rows[i, 1:], strict=False) if s == t
            )
            if len(exact[exact.float() == expected[-1].float()]) == 1:
                assert rows[i].tolist() == order.tolist()

    def test_the_lower_of_equal_rows_is_taken(self):
        """Without a rule, which of ten equal images votes would depend on the machine."""
        known = torch.tensor([[1.0, 0.1], [0.3, 0.7]]).repeat(10, 1)
        for metric in ("cosine", "euclidean"):
            similarity, rows = nearest(known[:2] * 1.0, known, 4, metric)
            assert rows.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
            assert similarity.tolist() == [[pytest.approx(1.0 if metric == "cosine" else 0.0)] * 4] * 2

    def test_equal_vectors_are_at_no_distance(self):
        """Else rounding would put the third copy of an image before the first."""
        torch.manual_seed(0)
        known = torch.randn(30, 64).repeat(3, 1)
        similarity, rows = nearest(known, known, 3, "euclidean", 7, 11)
        assert (similarity == 0).all()
        assert torch.equal(rows, torch.arange(30).repeat(3)[:, None] + torch.tensor([0, 30, 60]))
        assert torch.equal(nearest(known, known, 3, "cosine", 7, 11)[1], rows)

    def test_a_far_centre_does_not_blur_distances(self):
        torch.manual_seed(0)
        known, queries = torch.randn(50, 4).double(), torch.randn(9, 4).double()
        near, far = (nearest(queries + shift, known + shift, 10, "euclidean") for shift in (0, 1e6))
        assert torch.equal(near[1], far[1])

    def test_a_small_temperature_does_not_overflow(self):
        cold = Neighbours(ks=(20,), temperature=1e-5).fit(TRAINING, TEST)
        torch.testing.assert_close(cold.scores.clamp(min=0), Neighbours(ks=(1,)).fit(TRAINING, TEST).scores.clamp(min=0))

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
        edges = [note for note in result.notes if "chosen temperature" in note]
        assert len(edges) == (best[1] != 0.07)

    def test_one_temperature_of_a_list_is_a_grid_of_one(self):
        one, number = (Neighbours(ks=(5,), temperature=t).fit(TRAINING, TEST) for t in ((0.07,), 0.07))
        assert one.chosen == {"k": 5, "temperature": 0.07}
        assert (number.chosen, number.selection.candidates, one.selection.on) == ({"k": 5}, (5,), "nothing")
        assert torch.equal(one.scores, number.scores)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": (0.1, 0.1)}, "temperature is .*, expected every value once"),
            ({"temperature": ()}, "the grid temperature is empty"),
            ({"temperature": (0.1, -1.0)}, "temperature holds -1.0, expected positive numbers"),
            ({"temperature": (0.1, 0.2), "votes": "majority"}, "but votes 'majority' have none; leave it out"),
        ],
    )
    def test_temperatures_that_cannot_be(self, options, message):
        with pytest.raises(BeyondClsError, match=message):
            Neighbours(**options)

    def test_bad_options(self):
        with pytest.raises(BeyondClsError, match="unknown votes 'weigthed'; did you mean 'weighted'"):
            Neighbours(votes="weigthed")
        with pytest.raises(BeyondClsError, match="unknown metric 'cosin'; did you mean 'cosine'"):
            Neighbours(metric="cosin")
        with pytest.raises(BeyondClsError, match="'weighted' need the metric 'cosine', got 'euclidean'; choose"):
            Neighbours(metric="euclidean")
        with pytest.raises(BeyondClsError, match="temperature is 0, expected a positive"):
            Neighbours(temperature=0)
        with pytest.raises(BeyondClsError, match=r"ks holds 1\.5, expected positive whole numbers"):
            Neighbours(ks=(1.5,))

    def test_more_neighbours_than_images(self):
        with pytest.raises(BeyondClsError, match=r"k is 121, but there are 120 images to vote; choose a smaller k"):
            Neighbours(ks=(121,)).fit(TRAINING, TEST)
        with pytest.raises(BeyondClsError, match=r"k is 120, but there are 108 images to vote \(a hold-out to select k is not"):
            Neighbours(ks=(1, 120)).fit(TRAINING, TEST)


@pytest.mark.parametrize("name", ["logistic", "knn"])
def test_held_out_images_without_a_label_select_nothing(name):
    """Else the first of the grid would be taken, as no number is better than another."""
    training = several(40)
    held_out = hold_out(training.labels.numpy(), 0.1, 0)[1]
    training.labels[held_out] = 0
    grid = {"logistic": "cs", "knn": "ks"}[name]
    with pytest.raises(
        BeyondClsError, match=r"map of the 4 images held out is not a number.* \(share is 0\.1\), or give a single"
    ):
        make_closed(name, **{grid: [1, 5]}).fit(training, several(20, seed=1))
    make_closed(name, **{grid: [5]}).fit(training, several(20, seed=1))


class TestRidge:
    @pytest.mark.parametrize(("n", "dim"), [(120, 6), (20, 40), (30, 30)])
    @pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e4])
    def test_is_scikit_learns(self, n, dim, alpha):
        training, test = blobs(n, dim=dim, offset=1.0), blobs(30, dim=dim, offset=1.0, seed=1)
        scores = Ridge(alphas=(alpha,), standardise=False).fit(training, test).scores
        y = np.where(training.labels[:, None] == torch.arange(4), 1, -1)
        peer = SklearnRidge(alpha, solver="svd").fit(training.x.double().numpy(), y)
        np.testing.assert_allclose(scores, peer.predict(test.x.double().numpy()), atol=1e-5)

    def test_dependent_features(self):
        """Copies of a feature share its weight: the decomposition must not divide by its zeros."""
        x, z = (torch.cat([v.x, v.x, v.x[:, :1]], 1) for v in (TRAINING, TEST))
        scores = Ridge(alphas=(1.0,)).fit(Vectors(x, TRAINING.labels, 4), Vectors(z, TEST.labels, 4)).scores
        scaled = (x.double() - x.double().mean(0)) / x.double().std(0, correction=0)
        y = np.where(TRAINING.labels[:, None] == torch.arange(4), 1, -1)
        peer = SklearnRidge(1.0, solver="svd").fit(scaled.numpy(), y)
        other = (z.double() - x.double().mean(0)) / x.double().std(0, correction=0)
        np.testing.assert_allclose(scores, peer.predict(other.numpy()), atol=1e-5)

    @pytest.mark.parametrize("make", [blobs, several])
    @pytest.mark.parametrize("dim", [6, 60])
    def test_selects_as_leaving_out_each_image_in_turn_would(self, make, dim):
        training, test = make(40, dim=dim, offset=0.7), make(10, dim=dim, seed=1)
        grid = (0.1, 10.0, 1000.0)
        selection = Ridge(alphas=grid).fit(training, test).selection
        x = training.x.double()
        scaled = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
        y = training.labels.numpy() if make is several else (training.labels[:, None] == torch.arange(4)).numpy()
        for alpha, percent in zip(selection.candidates, selection.percent, strict=True):
            rest = [np.arange(40) != i for i in range(40)]
            left = [SklearnRidge(alpha).fit(scaled[r], 2.0 * y[r] - 1).predict(scaled[~r])[0] for r in rest]
            scores = torch.from_numpy(np.stack(left))
            hits = (scores.argmax(1) == training.labels).double().mean() * 100 if make is blobs else None
            expected = MULTILABEL["map"](scores, training.labels) if make is several else hits
            assert percent == pytest.approx(float(expected), abs=1e-9)
        assert (selection.on, selection.n_images) == ("leave-one-out", 40)
        assert selection.candidates == (1000.0, 10.0, 0.1)  # of equally good ones the largest

    @pytest.mark.parametrize("dim", [6, 60])
    def test_a_constant_in_place_of_a_free_intercept(self, dim):
        """As big_vision's least squares, and each image left out of it, by solving for every one."""
        training, test = blobs(40, dim=dim, offset=0.7), blobs(30, dim=dim, seed=1)
        x, z = training.x.double(), test.x.double()
        scaled, other = (
            (torch.cat([(v - x.mean(0)) / x.std(0, correction=0), torch.full((len(v), 1), 100.0)], 1)) for v in (x, z)
        )
        y = 2.0 * (training.labels[:, None] == torch.arange(4)).double() - 1

        def solved(rows, alpha):
            some = scaled[rows]
            return torch.linalg.solve(some.T @ some + alpha * torch.eye(dim + 1), some.T @ y[rows])

        everything = torch.full((40,), True)
        result = Ridge(alphas=(1024.0,), constant=100.0).fit(training, test)
        torch.testing.assert_close(result.scores.double(), other @ solved(everything, 1024.0), atol=1e-6, rtol=1e-6)
        selection = Ridge(alphas=(1.0, 1000.0), constant=100.0).fit(training, test).selection
        for alpha, percent in zip(selection.candidates, selection.percent, strict=True):
            left = [scaled[i] @ solved(torch.arange(40) != i, alpha) for i in range(40)]
            assert percent == pytest.approx(100 * (torch.stack(left).argmax(1) == training.labels).double().mean().item())

    def test_a_constant_that_cannot_be(self):
        with pytest.raises(BeyondClsError, match=r"constant is -1\.0, expected 0 or a positive number"):
            Ridge(constant=-1.0)

    def test_two_classes(self):
        result = Ridge().fit(blobs(n_classes=2), blobs(30, n_classes=2, seed=1))
        torch.testing.assert_close(result.scores[:, 0], -result.scores[:, 1])


class TestVectors:
    @pytest.mark.parametrize(
        ("x", "labels", "message"),
        [
            (torch.zeros(3, 2, 2), torch.zeros(3), r"vectors \(3, 2, 2\) and labels \(3,\) do not fit.*pool tokens"),
            (torch.zeros(3, 2), torch.zeros(4), r"vectors \(3, 2\) and labels \(4,\) do not fit"),
            (torch.zeros(0, 2), torch.zeros(0), r"vectors \(0, 2\) and labels \(0,\) do not fit"),
            (torch.zeros(3, 2).half(), torch.zeros(3), r"vectors are torch\.float16, expected float32 or float64.*\.float\(\)"),
            (torch.tensor([[1.0], [math.nan], [math.inf]]), torch.zeros(3), "2 of 3 vectors hold NaN or infinity, first row 1"),
            (torch.zeros(3, 2), torch.tensor([0, -1, 1]), r"labels are -1 to 1, expected 0 to 2; .*store\.labelled"),
            (torch.zeros(3, 2), torch.tensor([0, 3, 1]), "labels are 0 to 3, expected 0 to 2"),
            (torch.zeros(3, 2), torch.zeros(3, 2), "labels have 2 columns, expected 3, one a class"),
            (torch.zeros(3, 2), torch.full((3, 3), 2), "labels are 2 to 2, expected 0 to 1"),
        ],
    )
    def test_bad_ones(self, x, labels, message):
        with pytest.raises(BeyondClsError, match=message):
            Vectors(x, labels, 3)

    def test_arrays_are_taken(self):
        vectors = Vectors(TRAINING.x.numpy(), TRAINING.labels.numpy().astype(np.int32), 4)
        assert torch.equal(vectors.labels, TRAINING.labels)
        assert torch.equal(vectors.rows(np.array([3, 1])).x, TRAINING.x[[3, 1]])


class TestNames:
    def test_unknown_protocol(self):
        with pytest.raises(BeyondClsError, match="unknown protocol 'logistik'; did you mean 'logistic'\\? known: "):
            make_closed("logistik")

    def test_unknown_option(self):
        with pytest.raises(
            BeyondClsError, match="unknown option of 'ridge' 'alpha'; did you mean 'alphas'\\? known: alphas, constant"
        ):
            make_closed("ridge", alpha=1.0)

    def test_best_of_measures_that_are_nan(self):
        assert Selection("hold-out", "map", 3, (1, 2, 3), (math.nan, 5.0, 5.0)).best == 2
        assert Selection("hold-out", "map", 3, (1, 2), (math.nan, math.nan)).best == 1
