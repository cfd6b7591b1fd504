"""Which arrays and images heads get, of one feature set or of two that are joined, and which sets are refused."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.run import probe
from probe.sources import Source, check_pair
from probe.transfer import transfer
from store import FeatureStore, StoreError
from tests.features import write_arrays, write_features

RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=0)
JOINED = HeadPlan(HeadSpec("cls-attention", {"of": "joined"}), RECIPE, seeds=(0,))
SIDES = {"train": {"seed": 0, "n": 96}, "test": {"seed": 1, "n": 70}}


def write(folder, weights, **changes):
    return tuple(
        write_features(folder / f"{weights}-{s}", weights=weights, crops=True, **{**SIDES[s], **changes}) for s in SIDES
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Training and test set of two encoders."""
    folder = tmp_path_factory.mktemp("pairs")
    return write(folder, "a"), write(folder, "b")


def turned(folder):
    """Sets of the second encoder, in another order."""
    orders = {s: np.random.default_rng(3).permutation(v["n"]) for s, v in SIDES.items()}
    sides = SIDES.items()
    return tuple(write_features(folder / f"c-{s}", weights="b", crops=True, order=orders[s], **v) for s, v in sides)


def result(pair, second, out):
    return probe(*pair, out, JOINED, joined=second)[out.name]


class TestArrays:
    def test_by_kind_block_and_view(self, tmp_path):
        store = write_features(tmp_path / "a", views=2, blocks=(0, 1), registers=2)
        source = Source(store)
        assert [a.name for a in source.arrays("patch", (0, 1))] == ["patch/block1/view0", "patch/block1/view1"]
        assert [a.name for a in Source(store, block=0).arrays("cls")] == ["cls/block0/view0"]
        assert [a.name for a in Source(store, block=0).arrays("cls/block1")] == ["cls/block1/view0"]
        assert [a.name for a in source.arrays("registers")] == ["registers/block1/view0"]
        assert [a.name for a in source.arrays("attention/cls")] == ["attention/cls/block1/view0"]
        assert [a.name for a in Source(store, block=0).arrays("attention/cls")] == ["attention/cls/block0/view0"]
        assert [a.name for a in Source(store, block=0).arrays("attention/cls/block1")] == ["attention/cls/block1/view0"]
        assert (source.dim, source.n_patches, source.probed_block) == (8, 9, 1)

    def test_tokens_of_the_joined_set_are_of_its_own_deepest_block(self, tmp_path):
        store, second = (
            write_features(tmp_path / "a", blocks=(0, 1)),
            write_features(tmp_path / "b", blocks=(0, 3), weights="v"),
        )
        source = Source(store, second, block=0)
        for kind, name in (
            ("patch", "patch/block3/view0"),
            ("attention/cls", "attention/cls/block3/view0"),
            ("attention/cls/block0", "attention/cls/block0/view0"),
        ):
            assert source.arrays(f"joined/{kind}") == [second.array(name)]

    def test_a_block_whose_map_is_not_kept(self, tmp_path):
        store = write_features(tmp_path / "a", blocks=(0, 1), map_blocks=(1,))
        says = r"a keeps the attention map 'cls' of block 1, not of block 0; add it: beyondcls extract --extend --blocks 0 "
        for source, kind in ((Source(store, block=0), "attention/cls"), (Source(store), "attention/cls/block0")):
            with pytest.raises(StoreError, match=says):
                source.arrays(kind)
        with pytest.raises(StoreError, match=r"not of block 0"):
            Source(write_features(tmp_path / "b"), store, block=1).arrays("joined/attention/cls/block0")
        assert (store.map_blocks("cls"), store.map_blocks("centre")) == ((1,), ())

    def test_a_copy_without_tokens(self, tmp_path):
        store = write_features(tmp_path / "a")
        for kind in ("patch", "cls"):
            shutil.rmtree(store.path / kind)
        source = Source(FeatureStore.open(store.path))
        with pytest.raises(StoreError, match="has no tokens in this copy; fetch patch or cls: dvc pull"):
            _ = source.dim
        assert source.n_patches is None

    def test_tokens_of_two_widths(self, tmp_path):
        source = Source(write_features(tmp_path / "a"))
        with pytest.raises(StoreError, match=r"patch of .*a is 8 wide, expected 12 as the other tokens"):
            source.check_width(("attention/cls", "patch"), 12)


class TestRows:
    def test_valid_labelled_and_chosen(self, tmp_path):
        labels = np.arange(96) % 3
        labels[7] = -1
        store = write_features(tmp_path / "a", invalid=(3,), labels=labels)
        assert Source(store).rows.tolist() == [i for i in range(96) if i not in (3, 7)]
        assert Source(store, subset=[90, 3, 5, 5, 7]).rows.tolist() == [5, 90]

    def test_a_part_compares_joined_sets_no_more(self, pairs, monkeypatch):
        a, b = pairs
        source = Source(a[0], b[0])
        rows = source.rows
        monkeypatch.setattr("probe.sources.join", None)
        part = source.part(rows[:5])
        assert part.rows.tolist() == [0, 1, 2, 3, 4]
        assert part.row_of_joined is source.row_of_joined


class TestJoined:
    def test_by_image_in_another_order(self, pairs, tmp_path):
        first, same = pairs
        one, second = result(first, same, tmp_path / "one"), result(first, turned(tmp_path), tmp_path / "other")
        assert one["top1"] == second["top1"]
        assert one["entropy"] == second["entropy"]
        assert one["joined"] == {"training": same[0].spec.key, "test": same[1].spec.key}
        weights = [np.load(tmp_path / f"{name}/trained/weights.npy") for name in ("one", "other")]
        np.testing.assert_array_equal(*weights)
        rows = same[1].array("attention/cls/block1/view0").all().astype(np.float32).mean(1)
        np.testing.assert_allclose(weights[0], rows / rows.sum(1, keepdims=True), atol=1e-6)

    def test_pooling_does_not_matter(self, pairs, tmp_path, monkeypatch):
        first, second = pairs[0], turned(tmp_path)
        one = result(first, second, tmp_path / "one")
        monkeypatch.setattr("probe.passes.vectors_fit", lambda *_: False)
        two = result(first, second, tmp_path / "two")
        assert one["top1"]["mean"] == pytest.approx(two["top1"]["mean"], abs=2)
        assert one["entropy"]["mean"] == pytest.approx(two["entropy"]["mean"], abs=1e-5)

    def test_images_that_the_other_lacks_are_left_out(self, tmp_path):
        first = write(tmp_path, "a", invalid=(4,))
        second = write(tmp_path, "b", invalid=(0, 1, 2))
        for out, head in (("map", JOINED), ("cls", HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,)))):
            metrics = probe(*first, tmp_path / out, head, joined=second)[out]
            assert (metrics["n_training"], metrics["n_test"]) == (96 - 4, 70 - 4)
        assert np.load(tmp_path / "map/trained/weights.npy").shape == (66, 9)

    def test_an_image_that_only_we_could_not_read_has_no_crop_to_compare(self, pairs, tmp_path):
        first, second = write(tmp_path, "a", invalid=(4,)), pairs[1]
        assert result(first, second, tmp_path / "out")["n_training"] == 95

    def test_other_crops(self, pairs, tmp_path):
        first, second = pairs
        moved = recropped(tmp_path / "moved", second[0], 2.0)
        with pytest.raises(StoreError, match=r"a-train shows \[2.0, .*\] of image '000007', .*moved shows \[4.0, "):
            result(first, (moved, second[1]), tmp_path / "out")
        rounded = recropped(tmp_path / "rounded", second[0], 1.4)
        assert result(first, (rounded, second[1]), tmp_path / "out")["n_training"] == 96

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"n_classes": 4}, r"image '000003' has label 0 in .*a-train but 3 in "),
            ({"n_tokens": 16}, "joined/attention/cls has 16 patches an image and the tokens 9"),
            (None, "two encoders or extractions: weights differ"),
        ],
    )
    def test_other_images_patches_or_encoders(self, changed, message, pairs, tmp_path):
        first = pairs[0]
        second = (pairs[1][0], first[1]) if changed is None else write(tmp_path, "b", **changed)
        with pytest.raises(ValueError, match=message):
            result(first, second, tmp_path / "out")

    def test_views_must_be_in_both(self, pairs, tmp_path):
        first, second = write(tmp_path, "a", views=2), pairs[1]
        with pytest.raises(StoreError, match=r"b-train has no array 'attention/cls/block1/view1'"):
            result(first, second, tmp_path / "out")
        assert probe(*first, tmp_path / "out", JOINED, joined=second, views=1)["out"]["n_views"] == 1


def recropped(path, store, by):
    """A copy whose image in row 7 was cropped elsewhere."""
    arrays = {name: array.all().copy() for name, array in store.arrays.items()}
    arrays["images/crop/view0"][7] += by
    attributes = {"encoder": "encoder-b", "norm_eps": None, "classes": None, "problems": []}
    return write_arrays(path, store.spec, [a.layout for a in store.arrays.values()], arrays, attributes)


def test_pairs_may_hold_more_than_the_other(tmp_path):
    more = write_features(tmp_path / "a", views=3, blocks=(0, 1), maps=("cls", "centre"))
    less = write_features(tmp_path / "b", 40, seed=1, maps=())
    check_pair(more, less)
    check_pair(less, more)
    HeadPasses({"abmilp": HeadSpec()}, Source(more), Source(less), range(3))


NAMES = ("cat", "dog", "owl")
PLANS = {
    "abmilp": HeadPlan(HeadSpec("abmilp"), RECIPE, seeds=(0,)),
    "cls": HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,)),
    "k-nn": HeadPlan(HeadSpec("cls"), closed=make_closed("knn", ks=(3,))),
    "ridge": HeadPlan(HeadSpec("average"), closed=make_closed("ridge")),
}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Training and test set."""
    folder, common = tmp_path_factory.mktemp("named"), {"classes": NAMES, "invalid": (3,)}
    return write_features(folder / "train", **common), write_features(folder / "test", 70, seed=1, **common)


def renamed(path, store, classes, order=None):
    """A copy whose classes are called otherwise; with `order`, its class c was class order[c]."""
    arrays = {name: array.all().copy() for name, array in store.arrays.items()}
    if order is not None and store.multilabel:
        arrays["images/labels"] = arrays["images/labels"][:, list(order)]
    elif order is not None:
        known = arrays["images/label"] >= 0
        arrays["images/label"][known] = [list(order).index(label) for label in arrays["images/label"][known]]
    attributes = {"encoder": "encoder-w", "norm_eps": None, "classes": list(classes) if classes else None, "problems": []}
    layouts = [array.layout for array in store.arrays.values()]
    return write_arrays(path, replace(store.spec, data=path.name), layouts, arrays, attributes)


class TestClasses:
    """The same images with the same classes, which a set numbers in another order."""

    @pytest.mark.parametrize("multilabel", [False, True])
    def test_results_do_not_depend_on_the_order(self, multilabel, named, tmp_path):
        if multilabel:
            common = {"multilabel": True, "classes": NAMES}
            named = [write_features(tmp_path / f"{i}", 96 - i, seed=i, **common) for i in range(2)]
        plans = {name: plan for name, plan in PLANS.items() if not multilabel or name != "k-nn"}
        other = renamed(tmp_path / "other", named[1], ("owl", "cat", "dog"), (2, 0, 1))
        assert (other.labels != named[1].labels).any()
        written = [probe(named[0], test, tmp_path / f"to-{test.spec.data}", plans) for test in (named[1], other)]
        for name in plans:
            one, two = ({k: v for k, v in of[name].items() if k not in ("features", "cost")} for of in written)
            assert one == two, name
        if not multilabel:
            right = [np.load(tmp_path / f"to-{t.spec.data}/k-nn/trained/correct.npz")["correct"] for t in (named[1], other)]
            np.testing.assert_array_equal(*right)

    def test_transfer_does_not_depend_on_the_order(self, named, tmp_path):
        probe(*named, tmp_path / "a", PLANS["abmilp"])
        other = renamed(tmp_path / "other", named[1], ("owl", "cat", "dog"), (2, 0, 1))
        moved = [transfer(tmp_path / "a", named[0], test, tmp_path / test.spec.data) for test in (named[1], other)]
        assert moved[0]["top1"] == moved[1]["top1"]

    def test_a_head_in_place_is_trained_again_where_names_of_test_classes_move(self, named, tmp_path):
        """The key stays: names are not in it."""
        test, said = renamed(tmp_path / "other", named[1], NAMES), []
        plan = HeadPlan(HeadSpec("cls"), replace(RECIPE, epochs=40), seeds=(0,))  # long enough for a check
        first = probe(named[0], test, tmp_path / "out", plan)["out"]
        moved = renamed(tmp_path / "moved/other", named[1], ("dog", "cat", "owl"))
        assert moved.spec.key == test.spec.key
        second = probe(named[0], moved, tmp_path / "out", plan, say=said.append)["out"]
        assert any("the request differs (test.classes" in line for line in said)
        assert first["top1"] != second["top1"]

    def test_a_test_set_that_lacks_a_class(self, named, tmp_path):
        """Class folders of val number other classes where one is missing."""
        subset = np.flatnonzero(named[1].labels != 1)
        images = write_features(
            tmp_path / "part", 70, seed=1, classes=NAMES, labels=np.where(named[1].labels == 1, -1, named[1].labels)
        )
        of_two = renamed(tmp_path / "two", images, ("cat", "owl"), (0, 2))
        written = [probe(named[0], test, tmp_path / f"{i}", PLANS["ridge"])[f"{i}"] for i, test in enumerate((images, of_two))]
        assert written[0]["top1"] == written[1]["top1"]
        assert [w["n_test"] for w in written] == [len(subset)] * 2
        note = "the test set has 2 of the 3 classes; heads choose among all"
        assert [note in w["notes"] for w in written] == [False, True]

    def test_images_of_a_class_that_is_not_learnt(self, named, tmp_path):
        other = renamed(tmp_path / "other", named[1], ("cat", "fox", "owl"))
        with pytest.raises(StoreError, match=r"23 of 69 images of .*other are of classes that .*train lacks: 'fox'"):
            check_pair(named[0], other)
        check_pair(named[0], renamed(tmp_path / "unused", named[1], (*NAMES, "fox")))  # no image is one

    @pytest.mark.parametrize(
        ("classes", "message"),
        [
            (("0", "1", "2"), None),
            (("0.0", "1.0", "2.0"), None),
            (("0", "10", "2"), "its class 1 is '10', as in"),
            (("1", "2", "3"), "its class 0 is '1', as in"),
            (NAMES, "its class 0 is 'cat', as in"),
        ],
    )
    def test_names_against_numbers(self, classes, message, named, tmp_path):
        pair = [renamed(tmp_path / f"{bool(c)}", named[1], c) for c in (classes, None)]
        for one, other in (pair, pair[::-1]):
            if message is None:
                check_pair(one, other)
                assert Source(other, classes_of=one).labels is other.labels
            else:
                with pytest.raises(StoreError, match=rf"False has numbers .* {message} .*True; .* --update and --classes FILE"):
                    check_pair(one, other)

    @pytest.mark.parametrize("theirs", [("cat", "dog", "fox"), ("cat", "dog", "owl", "fox")])
    def test_several_labels_need_the_same_classes(self, theirs, tmp_path):
        """What an image of another class is not, is not known."""
        ours, other = (
            write_features(tmp_path / f"{i}", seed=i, multilabel=True, classes=names, n_classes=len(names))
            for i, names in enumerate((NAMES, theirs))
        )
        with pytest.raises(StoreError, match=r"only one of them has 'fox'.*the same --classes file"):
            check_pair(ours, other)

    def test_identifiers_without_names(self, named, tmp_path):
        labels = np.where(np.arange(96) % 3, np.arange(96) % 3, 5_219_173)
        old = write_features(tmp_path / "old", labels=labels)
        assert old.n_classes == 5_219_174
        with pytest.raises(StoreError, match=r"old has labels up to 5219173, of which 3 occur: .* --update"):
            check_pair(old, old)


@pytest.fixture
def store(tmp_path):
    """24 images of 4 x 9 patches."""
    store = write_features(tmp_path / "set", 24, 36, 8)
    store.attributes["grid"] = [4, 9]
    return store


@pytest.mark.parametrize(
    ("aggregator", "options"),
    [("central", {}), ("k-means", {}), ("pca", {}), ("abmilp", {"position": "sin-cos"}), ("abmilp", {"position": "learned"})],
)
def test_a_grid_that_is_not_square_is_refused(store, tmp_path, aggregator, options):
    plans = {"head": HeadPlan(HeadSpec(aggregator, options), RECIPE, (0,))}
    with pytest.raises(StoreError, match=rf"{aggregator} takes patches for a square grid, but .*set has 4 x 9; use a head"):
        probe(store, store, tmp_path / "out", plans)
    assert not (tmp_path / "out/head/metrics.json").exists()


def test_heads_that_need_no_square_grid_are_trained(store, tmp_path):
    """And those that do on a grid that is square."""
    probe(store, store, tmp_path / "out", {"head": HeadPlan(HeadSpec(), RECIPE, (0,))})
    store.attributes["grid"] = [6, 6]
    probe(store, store, tmp_path / "out", {"square": HeadPlan(HeadSpec("central"), RECIPE, (0,))})
    assert (tmp_path / "out/head/metrics.json").exists()
