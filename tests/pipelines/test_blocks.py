"""Accuracy by block: each block as if it were probed alone; `beyondcls blocks`."""

import csv

import pytest

from probe.blocks import make_protocol, probe_blocks, readable_blocks
from probe.closed import make_closed
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from probe.sources import Source
from store import BeyondClsError, StoreError
from tests.features import write_features

PLAN = HeadPlan(recipe=Recipe(epochs=2, batch_size=32, warmup_epochs=0), seeds=(0, 1))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Tokens of block 1, vectors of blocks 0 and 1, and a pooling."""
    folder = tmp_path_factory.mktemp("sets")
    return tuple(write_features(folder / str(n), n, seed=n, vectors=(0, 1), pooled=True) for n in (96, 40))


def places(content):
    return [(row["head"], row["block"], row["protocol"]) for row in content["rows"]]


def test_every_block_as_if_probed_alone(sets, tmp_path):
    content = probe_blocks(*sets, tmp_path / "out", PLAN, closed=make_closed("knn", ks=[3]))
    heads = (("cls", 0), ("cls", 1), ("average", 0), ("average", 1), ("encoder-pooling", 1))
    assert places(content) == [(*head, protocol) for head in heads for protocol in ("linear", "knn")]
    for row in content["rows"]:
        closed = make_closed("knn", ks=[3]) if row["protocol"] == "knn" else None
        alone = HeadPlan(HeadSpec(row["head"]), PLAN.recipe, PLAN.seeds, closed=closed)
        (expected,) = probe(*sets, tmp_path / "alone", alone, block=row["block"]).values()
        assert row["top1"] == expected["top1"]
        assert ("converged_top1" in expected) == (closed is None)
        assert row["bytes_per_image"] == {"cls": 16, "average": 32, "encoder-pooling": 32}[row["head"]]
    assert "converged_top1" not in read_result(tmp_path / "out/heads/cls-block0/metrics.json")  # nothing would show it


def test_blocks_are_those_of_which_both_sets_have_what_a_head_reads(sets, tmp_path):
    fewer = write_features(tmp_path / "fewer", 40, seed=1, vectors=(1,))
    both, mixed = (tuple(map(Source, pair)) for pair in (sets, (sets[0], fewer)))
    assert [readable_blocks(head, *both) for head in ("cls", "average", "abmilp")] == [[0, 1], [0, 1], [1]]
    assert [readable_blocks(head, *mixed) for head in ("cls", "average", "encoder-pooling")] == [[1], [1], []]


def test_no_more_neighbours_than_a_small_set_has(sets):
    assert [make_protocol("knn", store).ks for store in sets] == [(10, 20), (10, 20)]
    assert make_protocol("knn", sets[0], temperature=0.2) == make_closed("knn", ks=[10, 20], temperature=0.2)
    assert make_protocol("knn", sets[0], ks=(5,)) == make_closed("knn", ks=[5])
    assert make_protocol("ridge", sets[0]) == make_closed("ridge")
    with pytest.raises(BeyondClsError, match="unknown protocol 'kn'; did you mean 'knn'"):
        make_protocol("kn", sets[0])


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        (["cls"], StoreError, "have no block in common that cls can read; add the vectors of all .* --extend --vectors all"),
        (["max"], BeyondClsError, "unknown option of aggregator 'max' 'blocks'"),
        (["clss"], BeyondClsError, "unknown aggregator 'clss'; did you mean 'cls'"),
    ],
)
def test_heads_that_no_block_serves(heads, error, message, tmp_path):
    pair = [write_features(tmp_path / side, cls=False, seed=i) for i, side in enumerate("ab")]
    with pytest.raises(error, match=message):
        probe_blocks(*pair, tmp_path / "out", PLAN, heads)
    assert not (tmp_path / "out").exists()


def test_the_command(sets, beyondcls, tmp_path):
    params = "probe: {epochs: 9, warmup_epochs: 0, batch_size: 32, seeds: [0], block: 7, k_shot: 1}"
    (tmp_path / "params.yaml").write_text(params)
    places = ("--features", sets[0].path, "--test", sets[1].path, "--out", tmp_path / "mae", "--device", "cpu")
    shown = beyondcls(
        "blocks", *places, "--params", tmp_path / "params.yaml", "--epochs", "2", "--protocol", "ridge", "--head", "abmilp"
    )
    content = read_result(tmp_path / "mae/metrics.json")
    assert (content["recipe"]["epochs"], content["n_training"], content["seeds"]) == (2, 96, [0])
    assert (tmp_path / "mae/blocks.svg").read_text().count("<svg") == 1
    with (tmp_path / "mae/blocks.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, written in zip(content["rows"], rows, strict=True):
        assert f"{row['head']} of block {row['block']}, {row['protocol']}: {row['top1']['mean']:.2f} ±" in shown
        assert (written["head"], int(written["block"]), written["protocol"]) == (row["head"], row["block"], row["protocol"])
        assert (float(written["top1"]), float(written["top1_std"])) == (row["top1"]["mean"], row["top1"]["std"])
    assert len(content["rows"]) == 11

    assert "command" in content
    beyondcls("blocks", *places, "--epochs", "1", "--warmup-epochs", "0", "--seeds", "0", "--head", "cls", "--k", "3")
    content = read_result(tmp_path / "mae/metrics.json")
    assert {row["head"] for row in content["rows"]} == {"cls"}, "what is named decides, if it names one of these"
    assert (content["protocol"]["name"], content["protocol"]["ks"], content["protocol"]["temperature"]) == ("knn", [3], 0.07)
