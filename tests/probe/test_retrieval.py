"""Retrieval: against counting along each ranking, scikit-learn, ROxford's layout made small, and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from sklearn.metrics import average_precision_score

from beyondcls import read_rows
from pipelines.retrieve import main, read_search
from probe.geometry import vectors, vectors_in
from probe.retrieval import KS, PROTOCOLS, Search, _measure_ranks, ranked, retrieval, vectors_of_both
from probe.subsets import groups_of
from store import BeyondClsError, FeatureStore
from tests.extract.datasets.test_matlab import DEPTH, file, nested
from tests.extract.pictures import write_file, write_text
from tests.features import write_features

N, N_QUERIES = 60, 25


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return write_features(tmp_path_factory.mktemp("set") / "set", n=N, blocks=(0, 1), invalid=(59,))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return write_features(tmp_path_factory.mktemp("set") / "queries", n=N_QUERIES, seed=1, blocks=(0, 1))


def ids(rows: Any) -> list[str]:
    return [f"{row:06d}" for row in rows]


@pytest.fixture(scope="module")
def search() -> Search:
    """Some queries have no hard image, one nothing but junk."""
    generator, relations = np.random.default_rng(0), []
    for query in range(N_QUERIES):
        drawn = generator.permutation(N - 1)
        easy, hard = drawn[: query % 4 + 1], drawn[10 : 10 + query % 3]
        relations.append({"easy": ids(easy if query else []), "hard": ids(hard), "junk": ids(drawn[20:23])})
    return Search(ids(range(N_QUERIES)), relations)


def along(ranking: list[int], right: set[int], junk: set[int]) -> list[float]:
    """Average precision and precision at KS, image by image. Before the first, precision is 1, as in the authors' code."""
    flags = [image in right for image in ranking if image not in junk]
    precisions = [1.0, *(sum(flags[:rank]) / rank for rank in range(1, len(flags) + 1))]
    area = sum((precisions[i] + precisions[i + 1]) / 2 / len(right) for i, flag in enumerate(flags) if flag)
    last = max(i for i, flag in enumerate(flags) if flag) + 1
    return [area, *(sum(flags[: min(k, last)]) / min(k, last) for k in KS)]


def test_along_each_ranking(store: FeatureStore, asked: FeatureStore, search: Search) -> None:
    (name,) = vectors_in(store, ["cls"])[-1:]
    measured = retrieval(store, asked, (name, name), ranked(search, store, asked))
    x, y = (vectors(some, name, np.arange(n)) for some, n in ((asked, N_QUERIES), (store, N - 1)))
    cosines = x @ y.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(y, axis=1)
    for protocol, (right, junk) in PROTOCOLS.items():
        expected, found, scores = [], [], []
        for query, relations in enumerate(search.relations):
            sets = [{int(image) for relation in some for image in relations[relation]} for some in (right, junk)]
            if sets[0]:
                expected.append(along(np.argsort(-cosines[query]).tolist(), *sets))
                kept = [image for image in range(N - 1) if image not in sets[1]]
                found += [image in sets[0] for image in kept]
                scores += cosines[query, kept].tolist()
        one = measured[protocol]
        means = 100 * np.mean(expected, 0)
        assert [one[key]["mean"] for key in ("map", *(f"precision_{k}" for k in KS))] == pytest.approx(means.tolist())
        assert one["micro_ap"]["mean"] == pytest.approx(100 * average_precision_score(found, scores))
        assert one["n_queries"] == len(expected)


def test_queries_are_left_out_in_turn(store: FeatureStore, asked: FeatureStore, search: Search) -> None:
    (name,) = vectors_in(store, ["cls"])[-1:]
    whole = retrieval(store, asked, (name, name), ranked(search, store, asked))["medium"]
    used = np.flatnonzero([any(of_query[r] for r in PROTOCOLS["medium"][0]) for of_query in search.relations])
    groups = groups_of(len(used))
    for group in (0, 3):
        kept = used[groups != group].tolist()
        fewer = Search([search.queries[q] for q in kept], [search.relations[q] for q in kept])
        without = retrieval(store, asked, (name, name), ranked(fewer, store, asked))["medium"]
        for key in ("map", "precision_5", "micro_ap"):
            assert whole[key]["without"][group] == pytest.approx(without[key]["mean"])


def test_a_query_is_not_found_for_itself_and_ties_count_against(tmp_path: Path) -> None:
    """Where all images are alike, the one that is to be found comes last."""
    store = write_features(tmp_path / "set", n=40, signal=0.0)
    name = vectors_in(store, ["cls"])[0]
    itself = Search(ids([7, 8]), [{"easy": ids([7, 9])}, {"easy": ids([9])}])
    found = ranked(itself, store, store)
    assert [len(some) for some in found.to_find["medium"]] == [1, 1]
    assert found.left_out["medium"][0].tolist() == [7]
    alike = [np.ones((n, 4), np.float32) / 2 for n in (2, 40)]
    cosines = [alike[1] @ query for query in alike[0]]
    measured = _measure_ranks(cosines, found.to_find["medium"], found.left_out["medium"])
    assert measured["map"]["mean"] == pytest.approx(100 * (0 + 1 / 39) / 2)
    assert measured["precision_10"]["mean"] == 0
    assert list(retrieval(store, store, (name, name), found)) == ["medium"], "no image is hard"


def roxford(folder: Path, search: Search, **changed: Any) -> Path:
    """As gnd_roxford5k.mat has it: cells of names, a structure for each query with images counted from 1 on."""
    images = ids(range(N - 1))
    dtype = [(name, object) for name in ("bbx", "easy", "hard", "junk")]
    truth = np.zeros((1, len(search.queries)), dtype)
    for query, relations in enumerate(search.relations):
        truth["bbx"][0, query] = np.array([[1.0, 2.0, 30.0, 40.0]])
        for relation, names in relations.items():
            truth[relation][0, query] = np.array([[images.index(image) + 1 for image in names]], float)
    content = {"gnd": truth, "imlist": cells(images), "qimlist": cells(search.queries)}
    folder.mkdir(exist_ok=True)
    savemat(folder / "gnd_roxford5k.mat", content | changed)
    return folder / "gnd_roxford5k.mat"


def cells(names: Any) -> np.ndarray:
    array = np.empty((len(names), 1), object)
    array[:, 0] = list(names)
    return array


def test_the_layout_of_roxford(store: FeatureStore, asked: FeatureStore, search: Search, tmp_path: Path) -> None:
    read = read_search(roxford(tmp_path, search))
    assert read.queries == search.queries
    assert [{key: list(names) for key, names in of_query.items()} for of_query in read.relations] == search.relations
    assert read.images == ids(range(N - 1))
    rows = [f"{query},{i},{r}" for query, of in zip(search.queries, search.relations, strict=True) for r in of for i in of[r]]
    table = write_text(tmp_path / "relevant.csv", "query,image,relation", *rows)
    for relevant in (tmp_path / "gnd_roxford5k.mat", table):
        main(store.where, relevant, tmp_path / "retrieval/data" / relevant.stem, queries=asked.where)
    one, other = (
        json.loads((tmp_path / f"retrieval/data/{name}/description.json").read_text()) for name in ("gnd_roxford5k", "relevant")
    )
    assert one["searches"] == other["searches"]
    assert {(s["vector"], s["block"], s["protocol"]) for s in one["searches"]} == {
        (vector, block, protocol) for vector in ("cls", "average") for block in (0, 1) for protocol in PROTOCOLS
    }
    found = read_rows(tmp_path).query("kind == 'retrieval' and encoder == 'relevant' and block == 1 and metric == 'map'")
    found = found[(found["head"] == "cls") & (found["recipe"] == '{"name": "hard"}')]
    expected = next(s for s in one["searches"] if (s["vector"], s["block"], s["protocol"]) == ("cls", 1, "hard"))
    assert found["value"].tolist() == pytest.approx([expected["map"]["mean"]])


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("truth.pkl", ["x"], r"truth.pkl is no file of this kind; expected gnd_roxford5k.mat"),
        ("truth.csv", ["query,image,relation", "a,b,nice"], "relation 'nice', expected one of easy, hard, junk"),
        ("truth.csv", ["query,picture", "a,b"], "KeyError.*'image'"),
        ("truth.csv", ["query,image,relation", "a,b,junk"], "has no image that is to be found"),
        ("truth.mat", ["MATLAB 5.0 MAT-file"], "truth.mat cannot be read"),
    ],
)
def test_no_such_truth(name: str, lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=message):
        read_search(write_text(tmp_path / name, *lines))


def test_cells_in_cells_do_not_end_the_process(tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"gnd_roxford5k.mat cannot be read \(RecursionError"):
        read_search(write_file(tmp_path / "gnd_roxford5k.mat", file(nested(DEPTH))))


def test_truth_that_does_not_fit(store: FeatureStore, asked: FeatureStore, search: Search, tmp_path: Path) -> None:
    file = roxford(tmp_path, Search(search.queries[1:], search.relations[1:]), qimlist=cells(search.queries))
    with pytest.raises(BeyondClsError, match="25 queries, and what is to be found for 24"):
        read_search(file)
    for image, message in (("000059", r"1 of 1 images could not be read when .* first '000059'"), ("nowhere", "nowhere")):
        with pytest.raises(BeyondClsError, match=message):
            ranked(Search(ids([1]), [{"easy": [image]}]), store, asked)
    other = write_features(tmp_path / "other", n=N_QUERIES, weights="other", blocks=(0, 1))
    with pytest.raises(BeyondClsError, match="are of two encoders or extractions: weights differ"):
        vectors_of_both(store, other, ["cls"])


def test_sets_of_other_blocks_have_some_in_common(store: FeatureStore, tmp_path: Path) -> None:
    fewer, others = (write_features(tmp_path / str(b), n=N_QUERIES, blocks=(b,), vectors=(b,)) for b in (1, 2))
    found = [tuple(map(str, names)) for names in vectors_of_both(store, fewer, ["average", "cls"])]
    assert found == [("patch/block1/view0", "average/block1/view0"), ("cls/block1/view0", "cls/block1/view0")]
    with pytest.raises(BeyondClsError, match=r"have vectors of no block in common, cls/block0/view0, .* and cls/block2/view0;"):
        vectors_of_both(store, others, ["cls"])
