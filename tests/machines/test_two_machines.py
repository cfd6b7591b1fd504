"""One machine extracts, another probes: what a DVC remote carries between them, and that it suffices."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.machines import project as of
from tests.machines.machine import DATA, ENCODERS, Machine, git
from tests.machines.objects import Locked, kind_of
from tests.machines.remotes import REMOTES, Remote, lacking

HEADS = ("cls", "abmilp")
KINDS = {"cls": {"zarr.json", "images", "cls"}, "abmilp": {"zarr.json", "images", "patch"}}

pytestmark = pytest.mark.slow


def change(machine: Machine, head: str) -> None:
    """An edit of one head."""
    edits = {"cls": ("cls_heads", {"base_lr": 0.05}), "abmilp": ("heads", {"depth": 2, "activation": "relu"})}
    group, values = edits[head]
    of.edit(machine.repo, lambda params: params[group][head].update(values))


def results(machine: Machine, head: str) -> dict[str, bytes]:
    """What a probe left: its metrics, curves, and trained heads."""
    return of.content(machine.repo / of.probe_folder(head))


@dataclass
class First:
    """The machine with images, its repository, and what its heads come to when they are edited there."""

    machine: Machine
    origin: Path
    locked: Locked
    edited: dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> First:
    folder = tmp_path_factory.mktemp("first")
    bare = of.small_origin(folder, ("extract", "probe", "probe-cls"))
    machine = of.machine_a(folder / "a", bare)
    stages = {*of.extracted(), *map(of.probe_stage, HEADS)}
    assert machine.repro(*sorted(stages)) == stages | of.CODE
    machine.commit("Extracted and probed")
    git(machine.repo, "push", "-q", "origin", "HEAD:main")
    locked = Locked.of(machine.repo)
    for head in HEADS:
        change(machine, head)
    assert machine.repro(*map(of.probe_stage, HEADS)) == {"code", *map(of.probe_stage, HEADS)}
    edited = {head: results(machine, head) for head in HEADS}
    git(machine.repo, "checkout", "-q", ".")
    return First(machine, bare, locked, edited)


@dataclass
class Second:
    """The machine without images, and the remote between the two."""

    machine: Machine
    remote: Remote

    def transferred(self, *command: str) -> tuple[set[str], dict[str, int]]:
        """Stages that ran, and bytes by MD5 of the objects that were fetched."""
        before, served = self.machine.cached(), self.remote.served()
        ran = self.machine.repro(*command) if command[0] != "pull" else self.machine.dvc(*command) and set()
        locked = Locked.of(self.machine.repo)
        own = {md5 for stage in ran for md5 in locked.objects(locked.outs(stage))}
        fetched = {md5: n for md5, n in self.machine.cached().items() if md5 not in before and md5 not in own}
        now = self.remote.served()
        if served is not None and now is not None:
            sent = {md5: n - served.get(md5, 0) for md5, n in now.items() if n > served.get(md5, 0)}
            # Each file once; DVC reads lists of files several times.
            assert {m: n for m, n in sent.items() if not m.endswith(".dir")} == {
                m: n for m, n in fetched.items() if not m.endswith(".dir")
            }
            assert all(sent[md5] >= n for md5, n in fetched.items())
        return ran, fetched


@pytest.fixture(scope="module", params=list(REMOTES))
def second(request, first, tmp_path_factory) -> Iterator[Second]:
    if reason := lacking(request.param):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(request.param)
    remote = REMOTES[request.param](folder / "remote")
    try:
        remote.add_to(first.machine)
        first.machine.dvc("push")
        machine = of.machine_b(folder / "b", first.origin)
        remote.add_to(machine)
        yield Second(machine, remote)
    finally:
        remote.close()


def test_the_remote_holds_what_the_first_machine_made_and_no_more(first, second):
    outs = {path: md5 for stage in first.locked.stages for path, md5 in first.locked.outs(stage).items()}
    assert second.remote.received() == sum(first.locked.objects(outs).values())


def test_a_probe_that_nobody_changed_is_fetched_not_trained(first, second):
    stage = of.probe_stage("cls")
    assert second.transferred("--pull", "--allow-missing", stage) == (set(), {})
    ran, fetched = second.transferred("pull", stage)
    assert ran == set()
    assert fetched == first.locked.objects(first.locked.outs(stage))
    assert set(results(second.machine, "cls")) == set(first.edited["cls"])
    assert not (second.machine.repo / "features").exists()


@pytest.mark.parametrize("head", HEADS)
def test_a_changed_probe_fetches_what_it_reads_and_comes_out_the_same(first, second, head):
    stage = of.probe_stage(head)
    reads = first.locked.deps(stage, "features")
    assert {kind_of(path) for path in reads} == KINDS[head]
    before = second.machine.cached()
    change(second.machine, head)
    ran, fetched = second.transferred("--pull", "--allow-missing", stage)
    assert ran == {"code", stage}, "which aggregator a head has decides what its code is"
    expected = first.locked.objects(reads | first.locked.deps(stage, "receipts"))
    assert fetched == {md5: n for md5, n in expected.items() if md5 not in before}
    assert results(second.machine, head) == first.edited[head]


def test_the_second_machine_cannot_extract(first, tmp_path):
    machine = of.machine_b(tmp_path, first.origin)
    for package in ("timm", "torchvision", "webdataset"):
        machine.run(machine.python, "-c", f"import {package}", fails=True)
        machine.run(machine.python, "-c", f"from importlib.metadata import version; version('{package}')", fails=True)
    assert not any((machine.repo / place).exists() for place in (DATA, ENCODERS))
    images = first.machine.repo / DATA / of.DATASET / "test"
    command = ("beyondcls", "extract", "--params", "params.yaml", "--encoder", of.MAE, "--data", images, "--out", "features/x")
    assert "pip install 'beyondcls[extract]'" in machine.run(*command, fails=True)
    of.edit(machine.repo, lambda params: params["extract"].update(views=2))
    shown = machine.dvc("repro", "--allow-missing", of.probe_stage("cls"), fails=True)
    assert "failed to reproduce 'extract@" in shown  # never trained on features that are older than their description
