"""A root that machines share: one parameter, the same commands; what DVC carries are receipts."""

from pathlib import Path

import pytest

from store import FeatureStore
from store.receipt import Receipt
from tests.machines import project as of
from tests.machines.machine import Machine, git
from tests.machines.objects import Locked
from tests.machines.remotes import Folder

STAGE = of.probe_stage("abmilp")
EXTRACTED = {of.extract_stage(of.MAE, split) for split in of.SPLITS}

pytestmark = pytest.mark.slow


def change(machine: Machine) -> None:
    of.edit(machine.repo, lambda params: params["heads"]["abmilp"].update(depth=2))


def results(machine: Machine) -> dict[str, bytes]:
    return of.content(machine.repo / of.probe_folder("abmilp"))


def test_receipts_are_carried_and_arrays_stay_where_they_are(tmp_path):
    bare, root = of.small_origin(tmp_path, ("extract", "probe")), tmp_path / "root"
    first, without = of.machine_a(tmp_path / "a", bare), of.machine_a(tmp_path / "w", bare)
    of.edit(first.repo, lambda params: params["store"].update(root=str(root)))
    assert first.repro(STAGE) == {*EXTRACTED, STAGE} | of.CODE
    sets = {path.name.rpartition("-")[0]: path for path in root.iterdir()}
    assert sets.keys() == {Path(of.feature_folder(of.MAE, split)).name for split in of.SPLITS}
    for name, path in sets.items():
        assert of.content(first.repo / "features" / name) == {"zarr.json": (path / "zarr.json").read_bytes()}
        assert (first.repo / f"receipts/{name}.json").read_bytes() == Receipt.of(FeatureStore.open(path)).to_json()
    assert without.repro(STAGE) == {*EXTRACTED, STAGE} | of.CODE
    assert results(first) == results(without), "where arrays lie makes no difference"

    remote = Folder(tmp_path / "remote")
    remote.add_to(first)
    first.dvc("push")
    first.commit("Extracted and probed")
    git(first.repo, "push", "-q", "origin", "HEAD:main")
    second = of.machine_b(tmp_path / "b", bare)
    remote.add_to(second)
    change(second)
    assert second.repro("--pull", "--allow-missing", STAGE) == {"code", STAGE}
    change(without)
    assert without.repro(STAGE) == {"code", STAGE}
    assert results(second) == results(without)
    locked = Locked.of(second.repo)
    own = locked.objects(locked.outs(STAGE) | locked.outs("code"))
    reads = locked.objects(locked.deps(STAGE, "receipts") | locked.deps(STAGE, "features"))
    fetched = {md5: n for md5, n in second.cached().items() if md5 in reads or md5 not in own}  # empty folders are alike
    assert fetched == reads
    assert sum(fetched.values()) < 0.1 * sum(Receipt.of(FeatureStore.open(path)).nbytes for path in sets.values())

    # What is at the root is held against its receipt.
    of.edit(second.repo, lambda params: params["heads"]["abmilp"].update(depth=3))
    (train,) = (path for name, path in sets.items() if name.endswith("train"))
    shard = next(path for path in sorted(train.glob("patch/block5/view0/c/**/*")) if path.is_file())
    whole = shard.read_bytes()
    options = ("--pull", "--allow-missing", STAGE)
    shard.write_bytes(whole[:-1])
    assert f"{shard} has {len(whole) - 1} bytes, expected {len(whole)}" in second.dvc("repro", *options, fails=True)
    shard.unlink()
    assert f"{shard} is missing" in second.dvc("repro", *options, fails=True)
    shard.write_bytes(whole)
    assert STAGE in second.repro(*options)
    assert of.content(second.repo / "features").keys() == {f"{name}/zarr.json" for name in sets}
