"""Which arrays, vectors and images heads get, of one feature set or of two that are joined, and which sets are refused."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from probe import run
from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.results import absent_kinds
from probe.sources import Source, check_pair
from probe.transfer import transfer
from store import FeatureStore, StoreError
from tests.features import write_arrays, write_features

probe = partial(run.probe, converged=False)  # converged classifiers: test_convergence.py
RECIPE = Recipe(epochs=3, batch_size=32, warmup_epochs=0)
NAMES = ("cat", "dog", "owl")
D, T = 8, 9


def plan(aggregator, closed=None, **options):
    return HeadPlan(HeadSpec(aggregator, options), RECIPE, seeds=(0,), closed=closed)


JOINED = plan("cls-attention", of="joined")


def both(folder, **changes):
    """A training and a test set."""
    return [
        write_features(folder / side, **{"n": n, "seed": i, **changes})
        for i, (side, n) in enumerate({"a": 96, "b": 70}.items())
    ]


def edited(path, store, edit, classes=None):
    """A copy of a set, after `edit` of its arrays."""
    arrays = {name: array.all().copy() for name, array in store.arrays.items()}
    edit(arrays)
    attributes = {"encoder": store.attributes["encoder"], "norm_eps": None, "problems": []}
    attributes["classes"] = list(classes) if classes else None
    layouts = [array.layout for array in store.arrays.values()]
    return write_arrays(path, replace(store.spec, data=path.name), layouts, arrays, attributes)


class TestArrays:
    def test_by_kind_block_and_view(self, tmp_path):
        store = write_features(tmp_path / "a", 8, views=2, blocks=(0, 1), registers=2)
        second = write_features(tmp_path / "b", 8, blocks=(0, 3), weights="v")
        deepest, first = Source(store, second), Source(store, second, block=0)
        assert deepest.arrays("patch", (0, 1)) == [store.array(f"patch/block1/view{view}") for view in (0, 1)]
        assert deepest.arrays("registers") == [store.array("registers/block1/view0")]
        for kind in ("cls", "attention/cls"):
            assert first.arrays(kind) == [store.array(f"{kind}/block0/view0")]
            assert first.arrays(f"{kind}/block1") == [store.array(f"{kind}/block1/view0")]
        # Of the second set its own deepest block.
        assert first.arrays("joined/patch") == [second.array("patch/block3/view0")]
        assert first.arrays("joined/attention/cls/block0") == [second.array("attention/cls/block0/view0")]
        assert (first.dim, first.n_patches) == (8, 9)
        assert (deepest.probed_block, first.probed_block) == (1, 0)

    def test_a_block_whose_map_is_not_kept(self, tmp_path):
        store = write_features(tmp_path / "a", blocks=(0, 1), map_blocks=(1,))
        other = write_features(tmp_path / "b")
        says = r"a keeps the attention map 'cls' of block 1, not of block 0; .* --extend --blocks 0 "
        for source, kind in (
            (Source(store, block=0), "attention/cls"),
            (Source(store), "attention/cls/block0"),
            (Source(other, store, block=1), "joined/attention/cls/block0"),
        ):
            with pytest.raises(StoreError, match=says):
                source.arrays(kind)
        assert (store.map_blocks("cls"), store.map_blocks("centre")) == ((1,), ())

    def test_widths(self, tmp_path):
        store = write_features(tmp_path / "a")
        with pytest.raises(StoreError, match=r"patch of .*a is 8 wide, expected 12"):
            Source(store).check_width(("attention/cls", "patch"), 12)
        for kind in ("patch", "cls"):
            shutil.rmtree(store.path / kind)
        source = Source(FeatureStore.open(store.path))
        with pytest.raises(StoreError, match=r"no tokens in this copy; .* dvc pull"):
            _ = source.dim
        assert source.n_patches is None


def test_rows_are_valid_labelled_and_chosen(tmp_path):
    labels = np.arange(96) % 3
    labels[7] = -1
    store = write_features(tmp_path / "a", invalid=(3,), labels=labels)
    assert Source(store).rows.tolist() == [i for i in range(96) if i not in (3, 7)]
    assert Source(store, subset=[90, 3, 5, 5, 7]).rows.tolist() == [5, 90]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Training and test set of two encoders."""
    folder = tmp_path_factory.mktemp("pairs")
    return tuple(both(folder / weights, weights=weights, crops=True) for weights in "vw")


class TestJoined:
    def test_by_image_in_another_order_pooled_or_not(self, pairs, tmp_path, monkeypatch):
        first, same = pairs
        orders = [np.random.default_rng(3).permutation(len(store)) for store in same]
        turned = [
            write_features(tmp_path / f"{i}", n=len(o), seed=i, weights="w", crops=True, order=o) for i, o in enumerate(orders)
        ]
        one, other = (probe(*first, tmp_path / "h", JOINED, joined=second)["h"] for second in (same, turned))
        assert (one["top1"], one["entropy"]) == (other["top1"], other["entropy"])
        assert one["joined"] == {"training": same[0].spec.key, "test": same[1].spec.key}
        rows = same[1].array("attention/cls/block1/view0").all().astype(np.float32).mean(1)
        weights = np.load(tmp_path / "h/trained/weights.npy")
        np.testing.assert_allclose(weights, rows / rows.sum(1, keepdims=True), atol=1e-6)
        monkeypatch.setattr("probe.passes.vectors_fit", lambda *_: False)
        two = probe(*first, tmp_path / "h", JOINED, joined=turned, retrain=True)["h"]
        np.testing.assert_array_equal(np.load(tmp_path / "h/trained/weights.npy"), weights)
        assert one["top1"]["mean"] == pytest.approx(two["top1"]["mean"], abs=2)

    def test_images_that_either_lacks_are_left_out(self, tmp_path):
        first, second = both(tmp_path / "v", crops=True, invalid=(4,)), both(tmp_path / "w", weights="w", crops=True)
        lacking = both(tmp_path / "x", weights="x", crops=True, invalid=(0, 1, 2))
        for head in ({"map": JOINED, "cls": plan("cls")}).values():
            metrics = probe(*first, tmp_path / "out", head, joined=lacking)["out"]
            assert (metrics["n_training"], metrics["n_test"]) == (96 - 4, 70 - 4)
        # An image that only we could not read has no crop to compare.
        assert probe(*first, tmp_path / "out", JOINED, joined=second)["out"]["n_training"] == 95
        assert np.load(tmp_path / "out/trained/weights.npy").shape == (69, 9)

    def test_crops_and_a_part_that_compares_them_no_more(self, pairs, tmp_path, monkeypatch):
        def moved(by):
            def edit(arrays):
                arrays["images/crop/view0"][7] += by

            return Source(pairs[0][0], edited(tmp_path / str(by), pairs[1][0], edit))

        with pytest.raises(StoreError, match=r"shows \[2.0, .*\] of image '000007', .* shows \[4.0, "):
            _ = moved(2.0).rows
        source = moved(1.4)
        assert len(source.rows) == 96
        monkeypatch.setattr("probe.sources.join", None)
        part = source.part(source.rows[:5])
        assert part.rows.tolist() == [0, 1, 2, 3, 4]
        assert part.row_of_joined is source.row_of_joined

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"n_classes": 4}, r"image '000003' has label 0 in .*a but 3 in "),
            ({"n_tokens": 16}, "joined/attention/cls has 16 patches .* tokens 9"),
            (None, "weights differ"),
        ],
    )
    def test_other_images_patches_or_encoders(self, changed, message, pairs, tmp_path):
        first = pairs[0]
        second = (pairs[1][0], first[1]) if changed is None else both(tmp_path, weights="w", crops=True, **changed)
        with pytest.raises(ValueError, match=message):
            probe(*first, tmp_path / "out", JOINED, joined=second)

    def test_views_must_be_in_both(self, pairs, tmp_path):
        first, second = both(tmp_path, weights="v", crops=True, views=2), pairs[1]
        with pytest.raises(StoreError, match=r"a has no array 'attention/cls/block1/view1'"):
            probe(*first, tmp_path / "out", JOINED, joined=second)
        assert probe(*first, tmp_path / "out", JOINED, joined=second, views=1)["out"]["n_views"] == 1


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return both(tmp_path_factory.mktemp("named"), classes=NAMES, invalid=(3,))


def renamed(path, store, classes, order=None):
    """A copy whose classes are called otherwise; with `order`, its class c was class order[c]."""

    def edit(arrays):
        if order is not None and store.multilabel:
            arrays["images/labels"] = arrays["images/labels"][:, list(order)]
        elif order is not None:
            known = arrays["images/label"] >= 0
            arrays["images/label"][known] = [order.index(label) for label in arrays["images/label"][known]]

    return edited(path, store, edit, classes)


class TestClasses:
    """The same images with the same classes, which a set numbers in another order."""

    @pytest.mark.parametrize("multilabel", [False, True])
    def test_results_do_not_depend_on_the_order(self, multilabel, named, tmp_path):
        plans = {"abmilp": plan("abmilp"), "ridge": HeadPlan(HeadSpec("average"), closed=make_closed("ridge"))}
        if multilabel:
            named = both(tmp_path, multilabel=True, classes=NAMES)
        other = renamed(tmp_path / "other", named[1], ("owl", "cat", "dog"), (2, 0, 1))
        assert (other.labels != named[1].labels).any()
        written = [probe(named[0], test, tmp_path / test.spec.data, plans) for test in (named[1], other)]
        for name in plans:
            one, two = ({k: v for k, v in of[name].items() if k not in ("features", "cost")} for of in written)
            assert one == two, name
        if not multilabel:
            trained = tmp_path / other.spec.data / "abmilp"
            moved = [transfer(trained, named[0], test, tmp_path / f"to-{test.spec.data}")["top1"] for test in (named[1], other)]
            assert moved[0] == moved[1]

    def test_a_head_in_place_is_trained_again_where_names_of_test_classes_move(self, named, tmp_path):
        """The key stays: names are not in it."""
        test, said = renamed(tmp_path / "other", named[1], NAMES), []
        head = replace(plan("cls"), recipe=replace(RECIPE, epochs=40))  # long enough for a check
        first = probe(named[0], test, tmp_path / "out", head)["out"]
        moved = renamed(tmp_path / "moved/other", named[1], ("dog", "cat", "owl"))
        assert moved.spec.key == test.spec.key
        second = probe(named[0], moved, tmp_path / "out", head, say=said.append)["out"]
        assert any("the request differs (test.classes" in line for line in said)
        assert first["top1"] != second["top1"]

    def test_a_test_set_that_lacks_a_class(self, named, tmp_path):
        """Class folders of val number other classes where one is missing."""
        labels = np.where(named[1].labels == 1, -1, named[1].labels)
        images = write_features(tmp_path / "part", 70, seed=1, classes=NAMES, labels=labels)
        of_two, head = renamed(tmp_path / "two", images, ("cat", "owl"), (0, 2)), plan("average")
        written = [probe(named[0], test, tmp_path / f"{i}", head)[f"{i}"] for i, test in enumerate((images, of_two))]
        assert written[0]["top1"] == written[1]["top1"]
        assert [w["n_test"] for w in written] == [(named[1].labels != 1).sum()] * 2
        assert [any("2 of the 3 classes" in note for note in w["notes"]) for w in written] == [False, True]

    def test_images_of_a_class_that_is_not_learnt(self, named, tmp_path):
        other = renamed(tmp_path / "other", named[1], ("cat", "fox", "owl"))
        with pytest.raises(StoreError, match=r"23 of 69 images of .*other are .* that .*a lacks: 'fox'"):
            check_pair(named[0], other)
        check_pair(named[0], renamed(tmp_path / "unused", named[1], (*NAMES, "fox")))  # no image is one

    @pytest.mark.parametrize(
        ("classes", "wrong"), [(("0.0", "1.0", "2.0"), None), (("0", "10", "2"), "1 is '10'"), (NAMES, "0 is 'cat'")]
    )
    def test_names_against_numbers(self, classes, wrong, named, tmp_path):
        pair = [renamed(tmp_path / f"{bool(c)}", named[1], c) for c in (classes, None)]
        for one, other in (pair, pair[::-1]):
            if wrong is None:
                check_pair(one, other)
                assert Source(other, classes_of=one).labels is other.labels
            else:
                with pytest.raises(StoreError, match=rf"False has numbers .* class {wrong}, .*True; .* --classes FILE"):
                    check_pair(one, other)

    def test_several_labels_need_the_same_classes(self, tmp_path):
        """What an image of another class is not, is not known."""
        ours, other = (
            write_features(tmp_path / f"{len(names)}", multilabel=True, classes=names, n_classes=len(names))
            for names in (NAMES, (*NAMES, "fox"))
        )
        with pytest.raises(StoreError, match=r"only one of them has 'fox'.* --classes file"):
            check_pair(ours, other)

    def test_identifiers_without_names(self, tmp_path):
        old = write_features(tmp_path / "old", labels=np.where(np.arange(96) % 3, np.arange(96) % 3, 5_219_173))
        assert old.n_classes == 5_219_174
        with pytest.raises(StoreError, match=r"labels up to 5219173, of which 3 occur: .* --update"):
            check_pair(old, old)


def test_a_grid_that_is_not_square_is_refused(tmp_path):
    """By those that take it for one."""
    store = write_features(tmp_path / "set", 24, 36)
    store.attributes["grid"] = [4, 9]
    with_positions = [plan("abmilp", position=kind) for kind in ("sin-cos", "learned")]
    for head in (plan("central"), plan("k-means"), plan("pca"), *with_positions):
        with pytest.raises(StoreError, match=rf"{head.head.aggregator} takes .* square grid, but .*set has 4 x 9"):
            probe(store, store, tmp_path / "out", head)
    assert probe(store, store, tmp_path / "out", plan("average"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Tokens of block 1, vectors of blocks 0 and 1, two views, and a pooling."""
    return both(tmp_path_factory.mktemp("sets"), vectors=(0, 1), views=2, pooled=True)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """The same tokens alone."""
    return both(tmp_path_factory.mktemp("tokens"), views=2)


@pytest.fixture(scope="module")
def vectors_alone(sets, tmp_path_factory):
    """The same vectors without patch tokens and the pooling."""
    folder, pair = tmp_path_factory.mktemp("alone"), []
    for store in sets:
        arrays = {n: a for n, a in store.arrays.items() if not n.startswith(("patch", "pooled"))}
        spec = replace(store.spec, blocks=(), vectors=tuple(name for name in store.spec.vectors if name != "pooled"))
        values = {name: array.stored(np.arange(len(store))) for name, array in arrays.items()}
        attributes = {name: store.attributes[name] for name in ("encoder", "norm_eps", "classes", "problems")}
        pair.append(write_arrays(folder / store.path.name, spec, [a.layout for a in arrays.values()], values, attributes))
    return pair


@pytest.mark.parametrize("head", ["average", "cls-average"])
def test_the_average_is_read_and_gives_what_tokens_give(head, sets, tokens, tmp_path):
    with_vectors, without = (probe(*pair, tmp_path / name, plan(head))[name] for name, pair in (("v", sets), ("t", tokens)))
    cls_nbytes = 2 * D * (head == "cls-average")
    read = [metrics["cost"]["bytes_per_image"] for metrics in (with_vectors, without)]
    assert read == [4 * D + cls_nbytes, 2 * T * D + cls_nbytes]
    assert with_vectors["top1"] == without["top1"]
    assert (with_vectors["n_tokens"], without["n_tokens"]) == (None, T)
    assert probe(*sets, tmp_path / "v", plan(head))["v"] == with_vectors, "in place, or trained again"


@pytest.mark.parametrize(("name", "spec"), [("norm", {"final_norm": True}), ("one side", {})])
def test_tokens_are_read_where_the_average_is_not_that_of_what_is_pooled(name, spec, sets, tokens, tmp_path):
    pair = both(tmp_path, vectors=(0, 1), norm=True) if name == "norm" else (sets[0], tokens[1])
    passes = HeadPasses({"average": HeadSpec("average", **spec)}, *map(Source, pair))
    assert passes.template("average").aggregator.reads == ("patch",)


def test_what_is_read_does_not_depend_on_what_a_copy_has(sets, tmp_path):
    """Results follow from the keys; a copy without tokens will do, and one without averages is refused."""
    copies = {}
    for kind in ("patch", "average"):
        folders = [shutil.copytree(store.path, tmp_path / kind / store.path.name) for store in sets]
        for folder in folders:
            shutil.rmtree(folder / kind)
        copies[kind] = [FeatureStore.open(folder) for folder in folders]
    whole, without_tokens = (probe(*pair, tmp_path / "out" / "h", plan("average"))["h"] for pair in (sets, copies["patch"]))
    assert whole["top1"] == without_tokens["top1"]
    with pytest.raises(StoreError, match=r"average is not in this copy .* dvc pull"):
        probe(*copies["average"], tmp_path / "none", plan("average"))


def test_a_block_whose_tokens_are_not_kept(sets, tmp_path):
    """By --block, or by the option; two blocks side by side."""
    by_run = probe(*sets, tmp_path / "a", {n: plan(n) for n in ("cls", "average")}, block=0)
    by_option = probe(*sets, tmp_path / "b", {n: plan(n, blocks=[0]) for n in ("cls", "average")})
    both = HeadPasses({n: HeadSpec(n, {"blocks": [0, 1]}) for n in ("cls", "average")}, *map(Source, sets))
    for head in ("cls", "average"):
        assert by_run[head]["top1"] == by_option[head]["top1"]
        stored = [sets[1].array(f"{head}/block{block}/view0").all() for block in (0, 1)]
        assert np.array_equal(both.vectors(head)[1].vectors[0], np.concatenate(stored, 1))
    with pytest.raises(StoreError, match="has no array 'patch/block0/view0'"):
        probe(*sets, tmp_path / "c", plan("abmilp"), block=0)


def test_the_pooling_of_the_encoder(sets, tmp_path):
    heads = {"steps": plan("encoder-pooling"), "ridge": plan("encoder-pooling", make_closed("ridge"))}
    for metrics in probe(*sets, tmp_path / "out", heads).values():
        assert metrics["top1"]["mean"] > 50
        assert metrics["cost"]["bytes_per_image"] == 4 * D


def test_what_is_lacking_and_what_gives_it(tokens, vectors_alone, tmp_path):
    for pair, head, message in (
        (tokens, "encoder-pooling", "no vectors of the encoder's own pooling .* an encoder that pools by itself"),
        (vectors_alone, "abmilp", "no patch tokens .*beyondcls extract --extend --vectors kept"),
    ):
        with pytest.raises(StoreError, match=message):
            probe(*pair, tmp_path / "out", plan(head))
        heads = {"abmilp": plan("abmilp"), "own": plan("encoder-pooling")}
        assert absent_kinds(heads, pair[0]) == {"own": ["pooled"]}, "the rest can be extracted"
    with pytest.raises(StoreError, match=r"no average patch tokens .* beyondcls extract --extend --vectors all"):
        tokens[0].tokens("average")


def test_without_patch_tokens_heads_of_vectors_are_the_same(sets, vectors_alone, tmp_path):
    pairs = sets, vectors_alone, (vectors_alone[0], sets[1])  # trained on vectors alone, tested on tokens
    heads = {name: plan(name) for name in ("cls", "average", "cls-average")}
    with_tokens, *others = (probe(*pair, tmp_path / f"{i}", heads) for i, pair in enumerate(pairs))
    for without in others:
        for head in heads:
            for measure in ("top1", "block", "augmentation", "n_tokens"):
                assert without[head][measure] == with_tokens[head][measure]
