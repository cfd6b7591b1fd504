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


def grid():
    """Two families, of which one member diverges, and a third, of which all members do; with their optimisers."""
    mine = [member(0, 0.5), member(3, 1e30, 1.0), member(1, 2.0, 0.1)]
    specs = [HeadSpec("ap", {"heads": 2, "form": "aim"}), HeadSpec("mine", {"p": 0.3})]
    families = [*(family(mine, spec) for spec in specs), family([member(0, 1e300, 1.0, "cls")], HeadSpec("cls"))]
    for one in families:
        one.begin(RECIPE)
    return families


@pytest.fixture(autouse=True, scope="module")
def mine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGGREGATORS, "mine", Mine)
        yield


def of(folder, described="this"):
    return Checkpoint(Unfinished(folder).path_of([described]))


def go(folder, families, interrupt=None, described="this"):
    """Train with a checkpoint after each epoch; from the last one, if there is one. Returns the epochs that were done."""
    kept, epochs = of(folder, described), []

    def after_epoch(epoch):
        kept.save(families, epoch, force=True)
        epochs.append(epoch)
        if epoch == interrupt:
            raise Interrupted

    trained(families, RECIPE, test=Images(20, seed=1), start=kept.load(families), after_epoch=after_epoch)
    return epochs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    families = grid()
    assert go(tmp_path_factory.mktemp("whole"), families) == [1, 2, 3, 4, 5]
    return families


@pytest.fixture
def begun(tmp_path):
    """The checkpoint of a run that was interrupted after two epochs."""
    with pytest.raises(Interrupted):
        go(tmp_path, grid(), 2)
    [file] = tmp_path.rglob("*.safetensors")
    return file


@pytest.mark.parametrize("epoch", [2, 5])
def test_an_interrupted_run_ends_as_one_that_was_not(epoch, whole, tmp_path):
    with pytest.raises(Interrupted):
        go(tmp_path, grid(), epoch)
    families = grid()
    assert go(tmp_path, families) == list(range(epoch + 1, 6))
    for one, other in zip(families, whole, strict=True):
        equal(one.stack, other.stack)
        assert (one.names, one.curves, one.lost) == (other.names, other.curves, other.lost)
        assert torch.equal(one.base_lr, other.base_lr)
        assert torch.equal(one.weight_decay, other.weight_decay)
        assert all(torch.equal(values, other.optimiser.state[n]) for n, values in one.optimiser.state.items())
    assert [len(one.stack) for one in families] == [2, 2, 0]


def test_one_of_another_run_is_not_used(begun, tmp_path):
    assert of(tmp_path, "that").load(grid()) == of(tmp_path / "nowhere").load(grid()) == 0
    assert go(tmp_path, grid()[:2], described="that") == [1, 2, 3, 4, 5]
    assert not (tmp_path / "nowhere").exists()


def test_at_most_one_a_minute(tmp_path, monkeypatch):
    now, written = [100.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "save_file", lambda tensors, path, _: written.append(now[0]) or path.touch())
    kept, families = of(tmp_path), grid()
    for after in (59, 2, 59, 2):
        now[0] += after
        kept.save(families, 1)
    assert written == [161, 222]
    assert checkpoint.EVERY_S == 60


@pytest.mark.parametrize("damage", [0, 100, "zeros", "no state", "a member", "a tensor", "a shape", "a family"], ids=str)
def test_damage(damage, begun, tmp_path):
    content, tensors = begun.read_bytes(), load_file(begun)
    with safe_open(begun, "pt") as opened:
        state = json.loads(opened.metadata()["state"])
    match damage:
        case "a member":
            state["families"][0]["members"][0][3] = 99
        case "a family":
            state["families"].pop()
        case "a tensor":
            del tensors["0.classifier.weight"]
        case "a shape":
            tensors["1.optimiser.steps"] = torch.zeros(7)
    save_file(tensors, begun, {} if damage == "no state" else {"state": json.dumps(state)})
    if damage == "zeros" or isinstance(damage, int):
        begun.write_bytes(bytes(len(content)) if damage == "zeros" else content[:damage])
    with pytest.raises(BeyondClsError, match=rf"^the checkpoint {begun} is damaged \((.|\n)*; remove it to start over$"):
        of(tmp_path).load(grid())


def test_what_is_cut_short_leaves_the_last_one(begun, tmp_path, monkeypatch):
    written = checkpoint.save_file

    def half(tensors, path, metadata):
        written(tensors, path, metadata)
        path.write_bytes(path.read_bytes()[:500])
        raise Interrupted

    monkeypatch.setattr(checkpoint, "save_file", half)
    with pytest.raises(Interrupted):
        go(tmp_path, grid())
    monkeypatch.undo()
    assert go(tmp_path, grid()) == [3, 4, 5]


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BeyondClsError, match=r"cannot write the checkpoint .*file.*\.safetensors \("):
        of(tmp_path / "file").save(grid(), 1, force=True)


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

    before = file_of()
    assert before == file_of()
    assert before != file_of(recipe=Recipe(5, 16, optimiser="adamw", warmup_epochs=2))
    assert before != file_of(members=(member(base_lr=0.1 + 1e-12),))
    assert before != file_of(head=HeadSpec(custom.aggregator, {"depth": 2}))
    assert before != file_of(images=Source(sources[0].store, subset=[1, 2, 3]))
    assert before != file_of(test=Source(moved, classes_of=sources[0].store)), "names of test classes"
    assert before != file_of(order=1)
    assert before != file_of(views=(0, 1))
    assert before != file_of(streamed=True)
    (tmp_path / "mine.py").write_text("from beyondcls import AbMILP as Mine\n# edited\n")
    assert before != file_of()


def test_a_prepared_link_is_not_written_through(tmp_path):
    """A partial checkpoint of a run that was killed goes with those that are whole."""
    unfinished, victim = Unfinished.beside(tmp_path / "out"), tmp_path / "victim"
    victim.write_text("precious")
    file = unfinished.path_of("described")
    file.parent.mkdir(parents=True)
    file.symlink_to(victim)
    Checkpoint(file).save(grid(), 1, force=True)
    assert victim.read_text() == "precious"
    assert not file.is_symlink()
    partial_name(unfinished.path_of("other")).write_bytes(b"half")
    unfinished.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
