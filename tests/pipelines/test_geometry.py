"""Measures of vectors without a head: against what is known of vectors that were made for it, and images left out in turn."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.stats import entropy
from sklearn.metrics import average_precision_score

import beyondcls
from pipelines.geometry import main
from probe.geometry import GEOMETRY, N_NEAREST, Points, geometry, rows_of_all, vectors, vectors_in
from probe.result_files import read_result
from probe.subsets import groups_of
from store import BeyondClsError
from tests.features import write_features


def spread(values: list[float] | np.ndarray, n: int = 400, centred: bool = True) -> np.ndarray:
    """Vectors [n, D] with these standard deviations along directions that are drawn; exactly."""
    drawn = np.random.default_rng(0).normal(size=(n, len(values)))
    columns = np.linalg.qr(drawn - drawn.mean(0) * centred)[0] * math.sqrt(n - 1)
    turned = scipy.linalg.qr(np.random.default_rng(1).normal(size=(len(values),) * 2))[0]
    return columns * np.asarray(values) @ turned


def value(measure: str, x: np.ndarray, chosen: np.ndarray | None = None, **of_points: object) -> float:
    points = Points(x, **of_points)  # type: ignore[arg-type]
    return GEOMETRY[measure](points, np.full(len(x), True) if chosen is None else chosen)


class TestKnownVectors:
    @pytest.mark.parametrize("rank", [1, 7])
    def test_equal_directions_count_one_each(self, rank):
        x = spread([1.0] * rank + [0.0] * (24 - rank), centred=False)
        assert value("rankme", x) == pytest.approx(rank, rel=1e-5)
        assert value("participation_ratio", spread([1.0] * rank + [0.0] * (24 - rank))) == pytest.approx(rank)

    def test_rankme_by_its_definition(self):
        x = np.random.default_rng(3).normal(size=(60, 24)) * np.linspace(1, 3, 24) + 1
        assert value("rankme", x) == pytest.approx(math.exp(entropy(np.linalg.svd(x, compute_uv=False))), rel=1e-9)

    @pytest.mark.parametrize("alpha", [0.5, 2.5])
    def test_a_spectrum_that_is_a_power_law(self, alpha):
        x = spread(np.arange(1, 65.0) ** (-alpha / 2))
        assert value("alpha_req", x) == pytest.approx(alpha, rel=1e-6)
        assert math.isnan(value("alpha_req", spread([1.0] * 19))), "too few eigenvalues for a line"

    @pytest.mark.parametrize("dimension", [1, 5])
    @pytest.mark.parametrize("measure", ["two_nn", "mle_dimension"])
    def test_points_of_a_flat_sheet_in_a_wide_space(self, measure, dimension):
        sheet = np.random.default_rng(4).uniform(size=(3000, dimension))
        x = sheet @ np.linalg.qr(np.random.default_rng(5).normal(size=(16, dimension)))[0].T
        assert value(measure, x) == pytest.approx(dimension, rel=0.12)

    def test_copies_are_one_point(self):
        x = np.random.default_rng(6).normal(size=(300, 4))
        twice = np.concatenate([x, x[::3]])
        for measure in ("two_nn", "mle_dimension"):
            assert value(measure, twice) == value(measure, x)

    def test_lidar_counts_what_differs_between_images(self):
        """Images differ in 3 directions, views of one in all, alike in each; so 3 directions, but for noise."""
        generator = np.random.default_rng(7)
        x = spread([1.0, 1.0, 1.0] + [0.0] * 9)[:, None] * 10 + generator.normal(size=(400, 8, 12)) * 0.01
        assert value("lidar", x[:, 0], views=x) == pytest.approx(3, abs=0.02)
        assert math.isnan(value("lidar", x[:, 0])), "of one view"

    def test_clusters_that_are_the_classes_and_ones_that_are_not(self):
        generator = np.random.default_rng(8)
        labels = np.arange(300) % 3
        x = generator.normal(size=(300, 5)) * 0.1 + 10 * np.eye(5)[labels]
        for measure in ("cluster_nmi", "cluster_ari"):
            assert value(measure, x, labels=labels, n_classes=3) == pytest.approx(1)
            assert value(measure, x, labels=generator.permutation(labels), n_classes=3) == pytest.approx(0, abs=0.03)
            assert math.isnan(value(measure, x))


def test_retrieval_by_sorting_everything():
    generator = np.random.default_rng(10)
    labels = np.append(generator.integers(0, 9, 149), 9)  # the last one is alone in its class
    x = generator.normal(size=(150, 6)) + np.eye(10)[labels][:, :6]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    precisions, nearest = [], []
    for query in range(149):
        others = np.delete(np.arange(150), query)
        scores, of_class = unit[others] @ unit[query], labels[others] == labels[query]
        precisions.append(average_precision_score(of_class, scores))
        nearest.append(of_class[scores.argsort()[::-1][:10]])
    of_points = {"labels": labels, "n_classes": 10}
    assert value("retrieval_map", x, **of_points) == pytest.approx(100 * np.mean(precisions))
    assert value("recall_at_1", x, **of_points) == pytest.approx(100 * np.mean([of[0] for of in nearest]))
    assert value("recall_at_10", x, **of_points) == pytest.approx(100 * np.mean([of.any() for of in nearest]))
    assert math.isnan(value("retrieval_map", x))
    # Of equal ones those of the class are first.
    assert value("retrieval_map", np.ones((60, 3)), labels=np.arange(60) % 2, n_classes=2) == 100


@pytest.mark.parametrize("measure", ["rankme", "participation_ratio", "alpha_req", "two_nn", "mle_dimension", "lidar"])
def test_images_that_are_left_out_are_as_if_they_were_not_there(measure):
    generator = np.random.default_rng(9)
    views = generator.normal(size=(200, 2, 40))
    for group in (0, 19):
        chosen = groups_of(200) != group
        without = value(measure, views[:, 0], chosen, views=views)
        assert without == pytest.approx(value(measure, views[chosen, 0], views=views[chosen]), rel=1e-9)
        assert without != value(measure, views[:, 0], views=views)


class TestFeatureSets:
    def test_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_features(tmp_path / "set", vectors=(0, 1), pooled=True, invalid=(4,), dim=24, views=2)
        main(features=str(tmp_path / "set"), out=tmp_path / "out")
        described = json.loads((tmp_path / "out/description.json").read_text())
        measured = {(row["vector"], row["block"]): row for row in described["vectors"]}
        assert set(measured) == {("cls", 0), ("cls", 1), ("average", 0), ("average", 1), ("pooled", None)}
        assert described["n_images"] == 95
        for name, row in measured.items():
            assert set(GEOMETRY) - set(row) <= {"alpha_req", "lidar"}
            assert len(row["rankme"]["without"]) == 20, name
        shown = json.loads((tmp_path / "out/metrics.json").read_text())
        assert shown["cls/block1"]["rankme"] == measured["cls", 1]["rankme"]["mean"]
        assert "cls/block1: rankme" in capsys.readouterr().out

    def test_an_average_that_is_not_kept_is_taken_of_patch_tokens(self, tmp_path: Path) -> None:
        store = write_features(tmp_path / "set", n=96, vectors=())
        (name,) = vectors_in(store, ["average"])
        rows = np.arange(5, 90)
        expected = store.tokens("patch").rows(rows).astype(np.float64).mean(1)
        np.testing.assert_allclose(vectors(store, name, rows), expected, rtol=1e-12)

    def test_an_entry_says_how_many_images(self, tmp_path: Path) -> None:
        write_features(tmp_path / "set", n=96, vectors=(1,))
        params = tmp_path / "params.yaml"
        params.write_text("geometry: { few: { images: 60 }, all: {}, none: { images: 0 }, text: { images: many } }")

        def n_images(entry: str, **options: Any) -> int:
            main(
                features=str(tmp_path / "set"), out=tmp_path / "out", measure=["rankme"], entry=entry, params=params, **options
            )
            return int(read_result(tmp_path / "out/metrics.json")["n_images"])

        assert [n_images("few"), n_images("all"), n_images("few", images=70)] == [60, 96, 70]
        for entry, shown in (("none", "geometry.none.images is 0"), ("text", "is 'many'"), ("fwe", "did you mean 'few'")):
            with pytest.raises(BeyondClsError, match=shown):
                n_images(entry)

    def test_one_number_from_python(self, tmp_path: Path) -> None:
        store = write_features(tmp_path / "set", vectors=(0, 1), dim=24)
        rows = rows_of_all([store])
        measured = [geometry(store, array, rows, ["rankme"])["rankme"]["mean"] for array in vectors_in(store)]
        assert beyondcls.measure(store, "rankme") == measured[1]
        assert beyondcls.measure(tmp_path / "set", "rankme", "average", block=0) == measured[2]
        assert math.isnan(beyondcls.measure(store, "lidar"))
        with pytest.raises(BeyondClsError, match=r"block is 7, expected one of 0, 1"):
            beyondcls.measure(store, "rankme", block=7)

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"vector": ["clss"]}, "clss.*cls"),
            ({"measure": ["rankm"]}, "rankm.*rankme"),
            ({"vector": ["pooled"]}, "pooled.*--vectors all"),
            ({"images": 0}, "0.*1 or more"),
            ({"images": 40}, f"40.*{N_NEAREST}"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, Any], named: str, tmp_path: Path) -> None:
        write_features(tmp_path / "set", vectors=(1,))
        with pytest.raises(BeyondClsError, match=named):
            main(features=str(tmp_path / "set"), out=tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
