"""Correspondence: against a computation point by point, images that are left out, SPair-71k's form, and bad input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from beyondcls import read_rows
from pipelines.correspond import main
from probe.correspondence import Pair, correspondence, read_pairs, shown_points
from probe.subsets import groups_of
from store import BeyondClsError, FeatureStore
from tests.extract.pictures import write_text
from tests.features import write_features
from tests.probe.navi import NAMES, navi
from tests.test_docs import block

CROP, SIDE = 2.0, 28.0  # of what the views show: pixels 2 to 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("set") / "set"
    return write_features(folder, n=60, n_tokens=49, blocks=(0, 1), crops=True, invalid=(3,))


def drawn(n: int = 40, seed: int = 0) -> list[Pair]:
    generator = np.random.default_rng(seed)
    images = generator.permutation([i for i in range(60) if i != 3])
    pairs = []
    for i in range(n):
        some = [generator.uniform(3, 29, size=(2 + 3 * (i % 2), 2)) for _ in range(2)]
        pairs.append(Pair(f"{images[i]:06d}", f"{images[i + 1]:06d}", "ab"[i % 2], *some, size=15.0))
    return pairs


def answer(store: FeatureStore, pair: Pair, k: int) -> np.ndarray:
    """The centre of the patch most like the token at a point, which scipy interpolates; in pixels."""
    tokens = store.tokens("patch", block=1)
    one, other = (tokens.rows(np.array([int(name)]))[0].astype(float) for name in (pair.source, pair.target))
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    at = ((pair.points[k] - CROP) / SIDE * 7 - 0.5)[::-1, None]
    token = [map_coordinates(channel, at, order=1, mode="nearest")[0] for channel in one.T.reshape(-1, 7, 7)]
    best = int((other @ token).argmax())
    return CROP + SIDE * (np.array([best % 7, best // 7]) + 0.5) / 7


def test_point_by_point(store):
    pairs = drawn()
    measured = correspondence(store, shown_points(store, pairs), 1, (0.1, 0.4))
    errors = {"a": [], "b": []}
    for pair in pairs:
        for k, point in enumerate(pair.target_points):
            errors[pair.category].append(np.linalg.norm(answer(store, pair, k) - point) / pair.size)
    of_all, of_a = np.concatenate([*errors.values()]), np.array(errors["a"])
    assert 5 < measured["pck_0.4_point"]["mean"] < 95
    for share in (0.1, 0.4):
        assert measured[f"pck_{share}_point"]["mean"] == pytest.approx(100 * (of_all <= share).mean())
        assert measured["categories"]["a"][str(share)] == pytest.approx(100 * (of_a <= share).mean())
    assert measured["categories"]["a"]["pairs"] == 20
    centres = CROP + SIDE * (np.stack(np.meshgrid(np.arange(7), np.arange(7)), -1).reshape(-1, 2) + 0.5) / 7
    near = [np.linalg.norm(centres - point, axis=1) <= 0.4 * 15 for pair in pairs for point in pair.target_points]
    assert measured["chance"]["0.4"] == pytest.approx(100 * np.mean(near))


def test_pairs_count_alike_per_image_and_points_per_point(store):
    """Of one image with itself all four points are found, of a pair with one point it is not."""
    centres = CROP + SIDE * (np.array([[0, 0], [3, 2], [6, 6], [2, 5]]) + 0.5) / 7
    same = Pair("000001", "000001", "", centres, centres, 10.0)
    far = Pair("000001", "000002", "", centres[:1], np.array([[29.0, 29.0]]), 1e-3)
    measured = correspondence(store, shown_points(store, [same, far]), 1, (0.05,))
    assert measured["pck_0.05_point"]["mean"] == 80
    assert measured["pck_0.05_image"]["mean"] == 50


def test_images_are_left_out_with_all_their_pairs(store):
    pairs = drawn()
    seen = shown_points(store, pairs)
    measured = correspondence(store, seen, 1, (0.4,))
    images = np.unique(seen.rows)
    for group in (0, 13):
        left = set(images[groups_of(len(images)) == group].tolist())
        kept = [pair for pair in pairs if not left & {int(pair.source), int(pair.target)}]
        assert 0 < len(kept) < len(pairs)
        for name in ("pck_0.4_point", "pck_0.4_image"):
            without = correspondence(store, shown_points(store, kept), 1, (0.4,))[name]["mean"]
            assert measured[name]["without"][group] == pytest.approx(without)


def test_points_outside_of_a_view_are_counted(store):
    inside, outside = np.array([[10.0, 10.0]]), np.array([[1.0, 10.0]])
    both = np.concatenate([inside, outside])
    named = ("000001", "000002", "")
    seen = shown_points(store, [Pair(*named, both, both[[0, 0]], 5.0), Pair(*named, outside, inside, 5.0)])
    assert (len(seen.pairs), seen.n_points, seen.n_outside) == (1, 1, 2)
    with pytest.raises(BeyondClsError, match="shows a point of these pairs; extract whole images"):
        shown_points(store, [Pair(*named, inside, outside, 5.0)])


def spair(folder: Path, pair: Pair, number: int, **other: Any) -> None:
    content = {
        **{"src_imname": f"{pair.source}.jpg", "trg_imname": f"{pair.target}.jpg", "category": pair.category},
        **{"src_kps": pair.points.tolist(), "trg_kps": pair.target_points.tolist(), "mirror": 0},
        **{"src_bndbox": [0, 0, 32, 32], "trg_bndbox": [5, 9, 14, 9 + pair.size]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:06d}.json").write_text(json.dumps(content | other))


def test_the_command_reads_either_form(store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [replace(pair, category="a") for pair in drawn(30)]
    for number, pair in enumerate(pairs):
        spair(tmp_path / "spair", pair, number)
    points = [(p, *p.points[k], *p.target_points[k]) for p in pairs for k in range(len(p.points))]
    rows = [f"{p.source},{p.target},{p.category},{','.join(map(repr, map(float, at)))},{p.size}" for p, *at in points]
    write_text(tmp_path / "pairs.csv", "source,target,category,x,y,target_x,target_y,size", *rows)
    described = {}
    for name in ("spair", "pairs.csv"):
        main(store.where, tmp_path / name, tmp_path / "correspondence/data" / name, at="0.1,0.4")
        described[name] = json.loads((tmp_path / "correspondence/data" / name / "description.json").read_text())
    assert described["spair"]["blocks"] == described["pairs.csv"]["blocks"]
    assert [row["block"] for row in described["spair"]["blocks"]] == [0, 1]
    assert (described["spair"]["n_pairs"], described["spair"]["n_points"]) == (30, 105)
    assert "by chance" in capsys.readouterr().out
    found = read_rows(tmp_path).query(
        "kind == 'correspondence' and block == 1 and metric == 'pck_0.4_point' and encoder == 'spair'"
    )
    assert found["value"].tolist() == [described["spair"]["blocks"][1]["pck_0.4_point"]["mean"]]


@pytest.mark.parametrize(
    ("other", "options", "message"),
    [
        ({"src_kps": [[1, 2]]}, {}, r"points \(1, 2\) and \(2, 2\), expected as many"),
        ({"src_kps": [[1, 2, 3]] * 2}, {}, r"points \(2, 3\)"),
        ({"src_kps": [[1, float("nan")]] * 2}, {}, "expected as many x, y"),
        ({"trg_bndbox": [5, 9, 5, 9]}, {}, "a size of 0 pixels"),
        ({"trg_bndbox": [5, 9]}, {}, "trg|values to unpack"),
        ({"src_kps": "no"}, {}, "ValueError"),
        ({"src_imname": "000003.jpg"}, {}, "1 of 2 images could not be read .* first 'a/000003.jpg'"),
        ({"src_imname": "none.jpg"}, {}, "1 of 2 ids are not in"),
        ({}, {"at": "0"}, "thresholds are"),
        ({}, {"at": "x"}, "--at is 'x'"),
        ({}, {"block": 7}, "of blocks 0, 1, and --block is 7"),
    ],
)
def test_pairs_and_options_that_cannot_be(store, tmp_path, other, options, message):
    spair(tmp_path / "pairs", drawn(1)[0], 0, **other)
    with pytest.raises(BeyondClsError, match=message):
        main(store.where, tmp_path / "pairs", tmp_path / "out", **options)
    assert not (tmp_path / "out/metrics.json").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "is neither; expected a folder of SPair-71k"),
        (["source,target,x,y"], "there are no pairs"),
        (["source,target,x,y", "a,b,1,2"], "KeyError: 'target_x'"),
        (["source,target,x,y,target_x,target_y,size", "a,b,1,q,3,4,5"], "could not convert"),
        (["source,target,x,y,target_x,target_y,size", "a,b,1,1,3,4,-5"], "a size of -5 pixels"),
    ],
)
def test_tables_that_cannot_be(tmp_path, lines, message):
    if lines is not None:
        write_text(tmp_path / "pairs.csv", *lines)
    with pytest.raises(BeyondClsError, match=message):
        read_pairs(tmp_path / "pairs.csv")


def test_points_of_navi_as_the_page_makes_them(tmp_path, monkeypatch):
    """The homography of a plane before two cameras says where each point goes; a part is seen by one of them alone."""
    monkeypatch.chdir(tmp_path)
    homography = navi(tmp_path / "navi")
    exec(block("python", "annotations.json"), {})
    (pair,) = read_pairs(tmp_path / "navi/points.csv")
    assert [pair.source, pair.target] == NAMES
    assert len(pair.points) == 50
    moved = np.column_stack([pair.points, np.ones(50)]) @ homography.T
    np.testing.assert_allclose(pair.target_points, moved[:, :2] / moved[:, 2:], atol=0.5)
    for points in (pair.points, pair.target_points):
        assert (points[:, 1] >= 40).all(), "nothing is above"
    assert pair.size == 4 * 120
    assert (tmp_path / "navi/images.csv").read_text().split() == ["id,path,label", *(f"{name},{name}," for name in NAMES)]
