"""One machine extracts, another probes: what a DVC remote carries between them, and that it suffices."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.remotes import Folder
from pipelines.parameters.heads import ANY
from tests.machines import project
from tests.machines.machine import DATA, ENCODERS, Machine, git
from tests.machines.objects import Locked, kind_of

HEADS = ("cls", "abmilp")
KINDS = {"cls": {"zarr.json", "images", "cls"}, "abmilp": {"zarr.json", "images", *ANY}}

pytestmark = pytest.mark.slow


def change(machine: Machine, head: str) -> None:
    """An edit of one head."""
    edits = {"cls": ("cls_heads", {"base_lr": 0.05}), "abmilp": ("heads", {"depth": 2, "activation": "relu"})}
    group, values = edits[head]
    project.edit(machine.repo, lambda params: params[group][head].update(values))


def results(machine: Machine, head: str) -> dict[str, bytes]:
    """What a probe left: its metrics, curves, and trained heads."""
    return project.content(machine.repo / project.probe_folder(head))


@dataclass
class First:
    """The machine with images, its repository, the remote that it pushed to, and what its heads come to when edited there."""

    machine: Machine
    origin: Path
    remote: Folder
    locked: Locked
    edited: dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def first(served, tmp_path_factory) -> First:
    folder = tmp_path_factory.mktemp("first")
    bare = project.small_origin(folder, ("extract", "probe", "probe-cls"))
    machine, remote = project.machine_a(folder / "a", bare, served), Folder(folder / "remote")
    other = project.extract_stage(project.RANDOM, "test")  # which no head here reads
    stages = {*(project.extract_stage(project.MAE, split) for split in project.SPLITS), other, *map(project.probe_stage, HEADS)}
    assert machine.repro(*sorted(stages)) == stages | project.CODE
    remote.add_to(machine)
    machine.dvc("push")
    machine.commit("Extracted and probed")
    git(machine.repo, "push", "-q", "origin", "HEAD:main")
    locked = Locked.read(machine.repo)
    for head in HEADS:
        change(machine, head)
    assert machine.repro(*map(project.probe_stage, HEADS)) == {"code", "recipes", *map(project.probe_stage, HEADS)}
    edited = {head: results(machine, head) for head in HEADS}
    git(machine.repo, "checkout", "-q", ".")
    return First(machine, bare, remote, locked, edited)


@pytest.fixture(scope="module")
def second(first, served_without_images, tmp_path_factory) -> Machine:
    """The machine without images."""
    machine = project.machine_b(tmp_path_factory.mktemp("second") / "b", first.origin, served_without_images)
    first.remote.add_to(machine)
    return machine


def transferred(machine: Machine, *command: str) -> tuple[set[str], dict[str, int]]:
    """Stages that ran, and bytes by MD5 of the objects that were fetched."""
    before = machine.cached()
    ran = machine.repro(*command) if command[0] != "pull" else machine.dvc(*command) and set()
    locked = Locked.read(machine.repo)
    made = {md5 for stage in ran for md5 in locked.objects(locked.outs(stage))}
    return ran, {md5: n for md5, n in machine.cached().items() if md5 not in before and md5 not in made}


def test_the_remote_holds_what_the_first_machine_made_and_no_more(first):
    outs = {path: md5 for stage in first.locked.stages for path, md5 in first.locked.outs(stage).items()}
    assert first.remote.received() == sum(first.locked.objects(outs).values())


def test_an_unchanged_probe_is_fetched_not_trained(first, second):
    stage = project.probe_stage("cls")
    assert transferred(second, "--pull", "--allow-missing", stage) == (set(), {})
    ran, fetched = transferred(second, "pull", stage)
    assert ran == set()
    assert fetched == first.locked.objects(first.locked.outs(stage))
    assert set(results(second, "cls")) == set(first.edited["cls"])
    assert not (second.repo / "features").exists()


@pytest.mark.parametrize("head", HEADS)
def test_a_changed_probe_fetches_what_it_reads_and_comes_out_the_same(first, second, head):
    stage = project.probe_stage(head)
    reads = first.locked.deps(stage, "features")
    assert {kind_of(path) for path in reads} == KINDS[head]
    before = second.cached()
    change(second, head)
    ran, fetched = transferred(second, "--pull", "--allow-missing", stage)
    assert ran == {"code", "recipes", stage}, "which aggregator a head has decides what its code is"
    expected = first.locked.objects(reads | first.locked.deps(stage, "receipts"))
    assert fetched == {md5: n for md5, n in expected.items() if md5 not in before}
    assert results(second, head) == first.edited[head]


def test_the_second_machine_cannot_extract(first, tmp_path):
    machine = project.machine_b(tmp_path, first.origin)
    for package in ("timm", "torchvision", "webdataset"):
        machine.run(machine.python, "-c", f"import {package}", fails=True)
        machine.run(machine.python, "-c", f"from importlib.metadata import version; version('{package}')", fails=True)
    assert not any((machine.repo / place).exists() for place in (DATA, ENCODERS))
    images = first.machine.repo / DATA / project.DATASET / "test"
    command = f"beyondcls extract --params params.yaml --encoder {project.MAE} --data {images} --out features/x".split()
    assert "pip install 'beyondcls[extract]'" in machine.run(*command, fails=True)
    project.edit(machine.repo, lambda params: params["extract"].update(views=2))
    shown = machine.dvc("repro", "--allow-missing", project.probe_stage("cls"), fails=True)
    assert "failed to reproduce 'extract@" in shown  # never trained on features that are older than their description
