"""What the benchmark of probing compares does the same work both ways."""

import math

import pytest
import torch

from benchmarks.plain_heads import PlainHead
from benchmarks.probe import BATCH, CLASSES, DIM, Features, families, table1_vs_recompute
from probe.grid import Member
from probe.recipe import Recipe
from probe.train import train


@pytest.mark.parametrize("name", ["cls", "average", "abmilp", "ep"])
def test_the_plain_head_computes_what_ours_does(name: str) -> None:
    torch.manual_seed(0)
    plain, batch = PlainHead(name, DIM, CLASSES), {"cls": torch.randn(5, DIM), "patch": torch.randn(5, 7, DIM)}
    (family,) = families([Member(name, 0.1, 0.0, 0)], torch.device("cpu"))
    plain.start_as(family.stack.head(0))
    ours, _ = family.stack(batch, training=True)
    torch.testing.assert_close(ours[0], plain(batch[plain.kind]))


def test_members_train_on_features_in_memory() -> None:
    features = Features.random(70, torch.device("cpu"))
    features.cls = features.cls.float()  # AbMILP alone takes what is stored
    assert sorted(torch.cat([batch["row"] for batch in features.epoch(3)]).tolist()) == list(range(70))
    members = [Member(name, 0.1, 0.0, seed) for name in ("cls", "abmilp") for seed in (0, 1)]
    built = families(members, torch.device("cpu"))
    train(built, features, None, Recipe(epochs=2, batch_size=BATCH, warmup_epochs=0))
    assert [len(family.curves) for family in built] == [2, 2]
    assert all(curve[0]["loss"] == pytest.approx(math.log(CLASSES), rel=0.1) for family in built for curve in family.curves)


def test_a_small_table_1() -> None:
    assert table1_vs_recompute(torch.device("cpu"), 24, 8, 2) > 0
