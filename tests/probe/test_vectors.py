"""Heads that read a vector where feature sets have it, in place of the tokens that it was made of."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from probe.closed import CLOSED, make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.results import absent_kinds
from probe.run import probe
from probe.sources import Source
from store import BeyondClsError, FeatureStore, StoreError
from tests.features import write_arrays, write_features

D, T = 8, 9


def plan(aggregator, closed=None, **options):
    return HeadPlan(HeadSpec(aggregator, options), Recipe(2, 32, warmup_epochs=0), seeds=(0,), closed=closed)


def write(folder, **changes):
    return tuple(write_features(folder / side, n, seed=i, **changes) for i, (side, n) in enumerate((("a", 96), ("b", 40))))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Training and test set: tokens of block 1, vectors of blocks 0 and 1, two views, and a pooling."""
    return write(tmp_path_factory.mktemp("sets"), vectors=(0, 1), views=2, pooled=True)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """The same tokens alone."""
    return write(tmp_path_factory.mktemp("tokens"), views=2)


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
    pair = write(tmp_path, vectors=(0, 1), norm=True) if name == "norm" else (sets[0], tokens[1])
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


@pytest.mark.parametrize("protocol", [None, *CLOSED])
def test_the_pooling_of_the_encoder(protocol, sets, tmp_path):
    closed = None if protocol is None else make_closed(protocol, **({"ks": [3]} if protocol == "knn" else {}))
    metrics = probe(*sets, tmp_path / "out", plan("encoder-pooling", closed))["out"]
    assert metrics["top1"]["mean"] > 50
    assert metrics["cost"]["bytes_per_image"] == 4 * D


@pytest.mark.parametrize("blocks", ["[0]", [0, 0], []])
def test_blocks_that_cannot_be(blocks):
    with pytest.raises(BeyondClsError, match="expected a list of different whole numbers"):
        plan("average", blocks=blocks).head.build(D, T, 3)


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


@pytest.mark.parametrize("block", [None, 0])
@pytest.mark.parametrize("head", ["cls", "average", "cls-average"])
def test_without_patch_tokens_heads_of_vectors_are_the_same(head, block, sets, vectors_alone, tmp_path):
    pairs = sets, vectors_alone, (vectors_alone[0], sets[1])  # trained on vectors alone, tested on tokens
    with_tokens, *others = (
        probe(*pair, tmp_path / "out" / f"{i}", plan(head), block=block)[f"{i}"] for i, pair in enumerate(pairs)
    )
    for without in others:
        for measure in ("top1", "block", "augmentation", "n_tokens"):
            assert without[measure] == with_tokens[measure]
