"""Groups of heads: what `dvc repro` fetches for them is what they read."""

from pathlib import Path

import pytest
import torch
import yaml

from pipelines.parameters.groups import check_groups
from pipelines.parameters.heads import GROUPS, plans_and_run
from probe.aggregators import AGGREGATORS, make_aggregator
from store import BeyondClsError
from store.format.layout import kind_of
from store.user_code import file_of
from tests.machines.project import ROOT

DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
STAGES = {"cls_heads": "probe-cls", "heads": "probe", "own_heads": "probe-own"}


def check(text: str, runs_files: bool = True) -> None:
    params = yaml.safe_load(text)
    names = [name for group in GROUPS for name in params.get(group, ())]
    check_groups(params, plans_and_run(names, params, {}, {})[0], runs_files)


def fetched(stage: str) -> list[str]:
    """Kinds of arrays that a stage fetches of its encoder's features: the same ones of both splits."""
    deps = [d for d in DVC[stage].get("do", DVC[stage])["deps"] if d.startswith("features/${item.encoder}")]
    train, test = ([d.rpartition("/")[2] for d in deps if f"{split}/" in d] for split in ("train", "test"))
    assert train == test
    return train


@pytest.mark.parametrize("group", GROUPS)
def test_stages_fetch_what_the_group_says(group):
    assert DVC[STAGES[group]]["matrix"]["head"] == f"${{{group}}}"
    assert fetched(STAGES[group]) == ["zarr.json", "images", *GROUPS[group]]


@pytest.mark.parametrize(
    ("head", "reads"),
    [
        ("x: {aggregator: cls-average}", "cls and patch"),
        ("x: {aggregator: ap, heads: 3, tokens: all}", "cls and patch"),
        ("x: {aggregator: abmilp, tokens: all, position: learned}", "cls and patch"),
        ("cls-attention:", "patch and attention/cls"),
        ("x: {aggregator: lowest-entropy-head, top_k: 3}", "patch and attention/cls"),
    ],
)
def test_a_head_that_reads_more_than_its_group_fetches_is_refused(head, reads):
    with pytest.raises(BeyondClsError, match=f"reads {reads}, but .* fetches only cls; move it to heads"):
        check(f"cls_heads: {{{head}}}")
    check(f"heads: {{{head}}}")


def test_heads_that_are_right():
    check("cls_heads: {cls: {}}\nheads: {ap: {heads: 7}, abmilp: {blocks: [3, 5]}, norm: {top_k: 3}}")
    check("own_heads: {max: , cls-average: }")
    check("heads: {x: {aggregator: central, k: none of these}}")  # what cannot be made is not looked at; probing says why
    check(f"heads: {{{', '.join(f'{name}: ' for name in AGGREGATORS)}}}")
    plans, _ = plans_and_run(["cls-average"], None, {}, {})
    check_groups({"heads": {"other": {}}}, plans, runs_files=True)  # it is in no group


@pytest.mark.parametrize("name", AGGREGATORS)
def test_vectors_are_fetched_that_are_read_in_place_of_tokens(name):
    """Where sets have them; by studies, too, which fetch what any head of theirs may read."""
    with torch.device("meta"):
        aggregator = make_aggregator(name, 768, 196)
    tokens = {kind_of(kind) for kind in aggregator.reads}
    aggregator.use_vectors(lambda kind: True)
    vectors = {kind_of(kind) for kind in aggregator.reads}
    assert all(vectors <= {*kinds} for kinds in GROUPS.values() if tokens <= {*kinds})
    assert tokens | vectors <= {*fetched("study")}


def test_a_file_elsewhere_is_refused():
    with pytest.raises(BeyondClsError, match=r"'mine/pool.py:GeM', expected a file in heads/.* write heads/pool.py:GeM"):
        check("own_heads: {gem: {aggregator: 'mine/pool.py:GeM'}}", runs_files=False)


def test_a_file_is_asked_what_it_reads_where_it_may_be_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("heads").mkdir()
    text, mine = "cls_heads: {any-name: {aggregator: 'heads/mine.py:Mine'}}", Path("heads/mine.py")
    source = "from beyondcls import Aggregator\n\n\nclass Mine(Aggregator):\n    reads = "
    mine.write_text(f"{source}('cls',)")
    check(text)
    mine.write_text(f"{source}('cls', 'patch')")
    check(text, runs_files=False)
    check(text.removeprefix("cls_"))
    with pytest.raises(BeyondClsError, match=r"reads cls and patch, .*; move it to heads"):
        check(text)


def test_what_is_a_file():
    assert file_of("heads/gem.py:GeM") == "heads/gem.py"
    assert [file_of(name) for name in ("abmilp", "a:b", "gem.py")] == [None] * 3
