"""Epochs over images that have several views: a random one of each image, the same in all arrays."""

import numpy as np
import pytest

from store import FeatureStore, Loader, StoreError
from store.format.array import ArrayReader
from store.loading.placement import Placement
from tests.store.tiny import Tiny

N, VIEWS = 200, 3
BOTH = pytest.mark.parametrize("placement", ["memory", "stream"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return FeatureStore.open(Tiny(N, blocks=(3, 5), views=VIEWS).make(tmp_path_factory.mktemp("views") / "set"))


def views(store: FeatureStore, block: int, n: int = VIEWS) -> list[ArrayReader]:
    return [store.tokens("patch", block, view) for view in range(n)]


def loader(store: FeatureStore, placement: Placement, **options: object) -> Loader:
    arrays = {"patch": views(store, 3), "deep": views(store, 5), "valid": store.array("images/valid")}
    return Loader(arrays, np.arange(N), **{"batch_size": 32, "placement": placement, "dtype": None, **options})  # type: ignore[arg-type]


def read(of: Loader, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values of an epoch in the order of the rows, and the rows as they came."""
    batches = list(of.epoch(seed))
    rows = np.concatenate([batch["row"] for batch in batches])
    order = np.argsort(rows)
    names = [name for name in batches[0] if name not in ("label", "row")]
    return {name: np.concatenate([batch[name] for batch in batches])[order] for name in names}, rows


@BOTH
def test_each_image_shows_the_view_of_the_epoch(store: FeatureStore, placement: Placement) -> None:
    of = loader(store, placement)
    for seed in (0, 1):
        values, rows = read(of, seed)
        assert sorted(rows) == list(range(N))
        chosen = of.views_of(seed)
        assert chosen is not None
        for name, block in (("patch", 3), ("deep", 5)):
            every = np.stack([array.all() for array in views(store, block)])
            np.testing.assert_array_equal(values[name], every[chosen.numpy(), np.arange(N)])
        np.testing.assert_array_equal(values["valid"], store.array("images/valid").all())


def test_views_are_random_and_fixed_by_the_seed(store: FeatureStore) -> None:
    one, same, other = (loader(store, "memory").views_of(seed).numpy() for seed in (1, 1, 2))  # type: ignore[union-attr]
    np.testing.assert_array_equal(one, same)
    assert set(one) == set(range(VIEWS))
    assert 0.5 < (one != other).mean() < 0.85  # 2/3 for three views
    assert np.bincount(one).min() > N / VIEWS * 0.7


@BOTH
def test_one_view_is_read_as_before(store: FeatureStore, placement: Placement) -> None:
    of = Loader({"patch": views(store, 3, 1)}, np.arange(N), placement=placement, dtype=None)
    assert of.views_of(0) is None
    np.testing.assert_array_equal(read(of, 0)[0]["patch"], store.tokens("patch", 3).all())


@BOTH
def test_of_rows_and_of_another_set(store: FeatureStore, placement: Placement) -> None:
    backwards, subset = np.arange(N)[::-1].copy(), np.array([5, 190, 64, 63])
    loaded = loader(store, placement, rows=subset, joined={"deep": backwards})
    values, _ = read(loaded, 0)
    chosen, rows = loaded.views_of(0).numpy()[np.sort(subset)], np.sort(subset)  # type: ignore[union-attr]
    for name, block, at in (("patch", 3, rows), ("deep", 5, backwards[rows])):
        every = np.stack([array.all() for array in views(store, block)])
        np.testing.assert_array_equal(values[name], every[chosen, at])


def test_all_views_count(store: FeatureStore) -> None:
    one = Loader({"patch": views(store, 3, 1)}, np.arange(N))
    all_of_them = Loader({"patch": views(store, 3)}, np.arange(N))
    size = [float(loaded.reason.split()[1]) for loaded in (one, all_of_them)]
    assert size[1] == pytest.approx(VIEWS * size[0], rel=0.05)


def test_bad_views(store: FeatureStore) -> None:
    with pytest.raises(StoreError, match=r"different numbers of views \(patch has 3, deep has 2\); give as many of each"):
        Loader({"patch": views(store, 3), "deep": views(store, 5, 2)}, np.arange(N))
    with pytest.raises(StoreError, match=r"different numbers of views \(patch has 0\)"):
        Loader({"patch": []}, np.arange(N))
    with pytest.raises(StoreError, match="images/valid has another shape than patch/block3/view0"):
        Loader({"patch": [store.tokens("patch", 3), store.array("images/valid")]}, np.arange(N))
