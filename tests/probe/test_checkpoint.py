"""Runs that are interrupted and go on end as if nothing had been."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from probe import checkpoint
from probe.aggregators import AGGREGATORS
from probe.checkpoint import Checkpoint, Unfinished
from probe.grid import HeadSpec
from probe.passes import HeadPasses
from probe.recipe import Recipe
from probe.sources import Source
from store import BeyondClsError
from store.places.disk import partial_name
from tests.features import write_features
from tests.probe.test_train import Mine
from tests.probe.training import Images, equal, family, member, trained

ONE = member()
RECIPE = Recipe(5, 16, optimiser="adamw", warmup_epochs=1)


class Interrupted(Exception):
    pass


def grid(wild=True):
    """Two families; one member diverges, and, if `wild`, all members of a third."""
    mine = [member(0, 0.5), member(3, 1e30, 1.0), member(1, 2.0, 0.1)]
    specs = [HeadSpec("ap", {"heads": 2, "form": "aim"}), HeadSpec("mine", {"p": 0.3})]
    lost = [family([member(0, 1e300, 1.0, "cls")], HeadSpec("cls"))] if wild else []
    return [*(family(mine, spec) for spec in specs), *lost]


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    monkeypatch.setitem(AGGREGATORS, "mine", Mine)


def go(folder, families, interrupt=None, recipe=RECIPE, described="this"):
    """Train with a checkpoint after each epoch; from the last one, if there is one. Returns the epochs that were done."""
    kept, epochs = Checkpoint(Unfinished(folder).path_of([described])), []
    for one in families:
        one.begin(recipe)

    def after_epoch(epoch):
        kept.save(families, epoch, force=True)
        epochs.append(epoch)
        if epoch == interrupt:
            raise Interrupted

    trained(families, recipe, test=Images(20, seed=1), start=kept.load(families), after_epoch=after_epoch)
    return epochs


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        equal(one.stack, other.stack)
        assert (one.names, one.curves, one.lost) == (other.names, other.curves, other.lost)
        assert torch.equal(one.base_lr, other.base_lr)
        assert torch.equal(one.weight_decay, other.weight_decay)
        assert all(torch.equal(values, other.optimiser.state[n]) for n, values in one.optimiser.state.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGGREGATORS, "mine", Mine)
        families = grid()
        assert go(tmp_path_factory.mktemp("whole"), families) == [1, 2, 3, 4, 5]
    return families


@pytest.mark.parametrize("epoch", [1, 2, 4, 5])
def test_an_interrupted_run_ends_as_one_that_was_not(epoch, whole, tmp_path):
    with pytest.raises(Interrupted):
        go(tmp_path, grid(), epoch)
    families = grid()
    assert go(tmp_path, families) == list(range(epoch + 1, 6))
    same(families, whole)
    assert [len(one.stack) for one in families] == [2, 2, 0]


def test_all_members_lost(tmp_path):
    make = lambda: [family([member(0, 1e300, 1.0)], HeadSpec("cls"))]  # noqa: E731
    with pytest.raises(Interrupted):
        go(tmp_path, make(), 1)
    families = make()
    assert go(tmp_path, families) == []
    assert list(families[0].lost) == [member(0, 1e300, 1.0)]


def test_one_of_another_run_is_not_used(tmp_path):
    with pytest.raises(Interrupted):
        go(tmp_path, grid(), 2)
    assert Checkpoint(Unfinished(tmp_path).path_of(["that"])).load(grid()) == 0
    assert go(tmp_path, grid(wild=False), described="that") == [1, 2, 3, 4, 5]


def test_none_yet(tmp_path):
    assert Checkpoint(Unfinished(tmp_path / "nowhere").path_of(["this"])).load(grid()) == 0
    assert not (tmp_path / "nowhere").exists()


def test_at_most_one_a_minute(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    kept, families = Checkpoint(Unfinished(tmp_path).path_of(["this"])), grid()
    for one in families:
        one.begin(RECIPE)

    def saved(after):
        now[0] += after
        before = list(tmp_path.rglob("*.safetensors"))
        kept.save(families, 1)
        new = list(tmp_path.rglob("*.safetensors")) != before
        for file in tmp_path.rglob("*.safetensors"):
            file.unlink()
        return new

    assert [saved(s) for s in (59, 2, 59, 2)] == [False, True, False, True]
    assert checkpoint.EVERY_S == 60


class TestDamage:
    @pytest.fixture
    def file(self, tmp_path):
        with pytest.raises(Interrupted):
            go(tmp_path, grid(), 2)
        [file] = tmp_path.rglob("*.safetensors")
        return file

    def refused(self, folder, file):
        with pytest.raises(BeyondClsError, match=rf"^the checkpoint {file} is damaged \((.|\n)*; remove it to start over$"):
            Checkpoint(Unfinished(folder).path_of(["this"])).load([one for one in grid() if not one.begin(RECIPE)])

    @pytest.mark.parametrize("damage", [lambda data, n=n: data[:n] for n in (0, 4, 100, -1)] + [lambda data: bytes(len(data))])
    def test_bytes(self, damage, file, tmp_path):
        file.write_bytes(damage(file.read_bytes()))
        self.refused(tmp_path, file)

    @pytest.mark.parametrize("what", ["no state", "a member", "a tensor", "a shape", "a family"])
    def test_content(self, what, file, tmp_path):
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            state = json.loads(opened.metadata()["state"])
        if what == "a member":
            state["families"][0]["members"][0][3] = 99
        if what == "a family":
            state["families"].pop()
        if what == "a tensor":
            del tensors["0.classifier.weight"]
        if what == "a shape":
            tensors["1.optimiser.steps"] = torch.zeros(7)
        save_file(tensors, file, {} if what == "no state" else {"state": json.dumps(state)})
        self.refused(tmp_path, file)


class TestWriting:
    def test_what_is_cut_short_leaves_the_last_one(self, tmp_path, monkeypatch):
        with pytest.raises(Interrupted):
            go(tmp_path, grid(), 2)
        written = checkpoint.save_file

        def half(tensors, path, metadata):
            written(tensors, path, metadata)
            path.write_bytes(path.read_bytes()[:500])
            raise Interrupted

        monkeypatch.setattr(checkpoint, "save_file", half)
        with pytest.raises(Interrupted):
            go(tmp_path, grid())
        monkeypatch.undo()
        monkeypatch.setitem(AGGREGATORS, "mine", Mine)
        assert go(tmp_path, grid()) == [3, 4, 5]

    def test_where_nothing_can_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        families = [one for one in grid() if not one.begin(RECIPE)]
        with pytest.raises(BeyondClsError, match=r"cannot write the checkpoint .*file.*\.safetensors \("):
            Checkpoint(Unfinished(tmp_path / "file").path_of(["this"])).save(families, 1, force=True)


def test_what_the_result_depends_on_makes_another_checkpoint(tmp_path):
    common = {"n": 64, "views": 2}
    sources = [Source(write_features(tmp_path / f"{i}", seed=i, classes=("ant", "bee", "cat"), **common)) for i in range(2)]
    moved = write_features(tmp_path / "moved", seed=1, classes=("bee", "ant", "cat"), **common)
    (tmp_path / "mine.py").write_text("from beyondcls import AbMILP as Mine\n")
    custom = HeadSpec(f"{tmp_path}/mine.py:Mine")

    def file_of(
        recipe=RECIPE, members=(ONE,), head=custom, images=sources[0], test=sources[1], order=0, views=(0,), streamed=False
    ):
        passes = HeadPasses({"abmilp": head}, *sources, views=views, unfinished=Unfinished(tmp_path / ".unfinished"))
        return passes._checkpoint(members, recipe, order, images, test, streamed).file

    others = {
        "recipe": {"recipe": Recipe(5, 16, optimiser="adamw", warmup_epochs=2)},
        "members": {"members": (member(base_lr=0.1 + 1e-12),)},
        "head": {"head": HeadSpec(custom.aggregator, {"depth": 2})},
        "images": {"images": Source(sources[0].store, subset=[1, 2, 3])},
        "names of test classes": {"test": Source(moved, classes_of=sources[0].store)},
        "order": {"order": 1},
        "views": {"views": (0, 1)},
        "streamed": {"streamed": True},
    }
    before = file_of()
    assert before == file_of()
    for name, changed in others.items():
        assert before != file_of(**changed), name
    (tmp_path / "mine.py").write_text("from beyondcls import AbMILP as Mine\n# edited\n")
    assert before != file_of()


def test_a_prepared_link_is_not_written_through(tmp_path):
    """A partial checkpoint of a run that was killed goes with those that are whole."""
    unfinished, victim = Unfinished.beside(tmp_path / "out"), tmp_path / "victim"
    victim.write_text("precious")
    file = unfinished.path_of("described")
    file.parent.mkdir(parents=True)
    file.symlink_to(victim)
    families = [one for one in grid() if not one.begin(RECIPE)]
    Checkpoint(file).save(families, 1, force=True)
    assert victim.read_text() == "precious"
    assert not file.is_symlink()
    other = unfinished.path_of("other")
    partial_name(other).write_bytes(b"half")
    unfinished.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
