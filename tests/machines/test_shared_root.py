"""A root that machines share: one parameter, the same commands; what DVC carries are receipts."""

from pathlib import Path

import pytest

from benchmarks.remotes import Folder
from store import FeatureStore
from store.moving.receipt import Receipt
from tests.machines import project
from tests.machines.machine import git
from tests.machines.objects import Locked

STAGE = project.probe_stage("abmilp")
EXTRACTED = {project.extract_stage(project.MAE, split) for split in project.SPLITS}

pytestmark = pytest.mark.slow


def test_receipts_are_carried_and_arrays_stay_where_they_are(tmp_path, served, served_without_images):
    """That a set at a root gives the same heads, and that damage there is noticed, is tested with the command line."""
    bare, root = project.small_origin(tmp_path, ("extract", "probe")), tmp_path / "root"
    first, remote = project.machine_a(tmp_path / "a", bare, served), Folder(tmp_path / "remote")
    project.edit(first.repo, lambda params: params["store"].update(root=str(root)))
    assert first.repro(STAGE) == {*EXTRACTED, STAGE} | project.CODE
    sets = {path.name.rpartition("-")[0]: path for path in root.iterdir()}
    assert sets.keys() == {Path(project.feature_folder(project.MAE, split)).name for split in project.SPLITS}
    for name, path in sets.items():
        assert project.content(first.repo / "features" / name) == {"zarr.json": (path / "zarr.json").read_bytes()}
        assert (first.repo / f"receipts/{name}.json").read_bytes() == Receipt.from_store(FeatureStore.open(path)).to_json()

    remote.add_to(first)
    first.dvc("push")
    first.commit("Extracted and probed")
    git(first.repo, "push", "-q", "origin", "HEAD:main")
    second = project.machine_b(tmp_path / "b", bare, served_without_images)
    remote.add_to(second)
    project.edit(second.repo, lambda params: params["heads"]["abmilp"].update(depth=2))
    assert second.repro("--pull", "--allow-missing", STAGE) == {"code", "recipes", STAGE}
    locked = Locked.read(second.repo)
    made = locked.objects(locked.outs(STAGE) | locked.outs("code") | locked.outs("recipes"))
    reads = locked.objects(locked.deps(STAGE, "receipts") | locked.deps(STAGE, "features"))
    fetched = {md5: n for md5, n in second.cached().items() if md5 in reads or md5 not in made}  # empty folders are alike
    assert fetched == reads
    assert sum(fetched.values()) < 0.1 * sum(Receipt.from_store(FeatureStore.open(path)).nbytes for path in sets.values())
    assert project.content(second.repo / "features").keys() == {f"{name}/zarr.json" for name in sets}
