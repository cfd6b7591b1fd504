"""Logs of epochs: what each kind of them holds, also of a run that goes on; all without a network."""

import csv
import time
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipelines.process import epoch_logs as logs
from pipelines.process.epoch_logs import FOLDER, LOGS, epoch_logs
from probe.grid import Epoch, Member
from store import BeyondClsError, StoreError

SEEDS, N = (0, 1), 4


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "of-wandb"))
    for name in ("WANDB_DIR", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)


def loss_of(seed: int, epoch: int) -> float:
    """One that is nowhere else in a file."""
    return 7.125 + seed + epoch / 1024


def epochs(last: int = N, replayed: int = 0, stage: str = "training", head: str = "abmilp") -> list[Epoch]:
    more = {"train_top1": 50.0} | ({"top1": 40.5} if stage == "training" else {})
    return [
        Epoch(Member(head, 0.1, 0.0, s), stage, {"epoch": e, "lr": 0.1 / e, "loss": loss_of(s, e), **more}, e <= replayed)
        for e in range(1, last + 1)
        for s in SEEDS
    ]


def write(name: str, folder: Path, of_run: Iterable[Epoch], heads: tuple[str, ...] = ("abmilp",)) -> Path:
    with epoch_logs([name], {head: (folder / head, {"encoder": "mae-b16"}) for head in heads}) as on_epoch:
        assert on_epoch is not None
        for epoch in of_run:
            on_epoch(epoch)
    return folder / "abmilp" / FOLDER


def in_csv(folder: Path) -> list[tuple[int, int, float]]:
    with (folder / "training.csv").open() as file:
        return [(int(row["epoch"]), int(row["seed"]), float(row["loss"])) for row in csv.DictReader(file)]


def in_tensorboard(folder: Path) -> list[tuple[int, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = []
    for seed in SEEDS:
        loaded = EventAccumulator(str(folder / f"tensorboard/seed{seed}")).Reload()
        assert set(loaded.Tags()["scalars"]) == {"lr", "loss", "train_top1", "top1"}
        rows += [(event.step, seed, event.value) for event in loaded.Scalars("loss")]
    return sorted(rows)


def wandb_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)


def in_wandb(folder: Path) -> list[tuple[int, int, float]]:
    """Of the runs of each start, one after the other; the last values are in its summary, too."""
    import wandb

    wandb.teardown()  # its process has written all
    rows: list[tuple[int, int, float]] = []
    for file in wandb_files(folder):
        content = file.read_bytes()
        rows += [(e, s, loss_of(s, e)) for e in range(1, N + 1) for s in SEEDS if str(loss_of(s, e)).encode() in content]
    return rows


READ = {"csv": in_csv, "tensorboard": in_tensorboard, "wandb": in_wandb}
WHOLE = [(e, s, loss_of(s, e)) for e in range(1, N + 1) for s in SEEDS]


@pytest.mark.parametrize("name", LOGS)
def test_each_epoch_of_each_member_is_there_once_though_a_run_goes_on(name: str, tmp_path: Path) -> None:
    """It was killed after its third epoch, and its last checkpoint was of the second. Heads without epochs keep their logs."""
    write(name, tmp_path, epochs(last=3))
    time.sleep(name == "wandb")  # whose folders bear the second, and the id
    folder = write(name, tmp_path, epochs(replayed=2))
    assert READ[name](folder) == WHOLE
    write(name, tmp_path, epochs(head="cls"), ("abmilp", "cls"))
    assert READ[name](folder) == WHOLE
    assert (tmp_path / "cls" / FOLDER).is_dir()
    if name == "wandb":  # the same run of theirs, but one that begins anew is another
        write(name, tmp_path, epochs())
        first, second, third = (file.stem for file in wandb_files(folder))
        assert first == second != third


@pytest.mark.parametrize("name", ["csv", "tensorboard"])
def test_a_new_run_replaces_what_an_earlier_one_wrote(name: str, tmp_path: Path) -> None:
    folder = write(name, tmp_path, epochs(stage="selection"))
    assert any("selection" in str(file) for file in folder.rglob("*") if file.is_file())
    assert READ[name](write(name, tmp_path, epochs())) == WHOLE
    assert not any("selection" in str(file) for file in folder.rglob("*") if file.is_file())


def test_columns_of_the_two_tables(tmp_path: Path) -> None:
    folder = write("csv", tmp_path, [*epochs(stage="selection"), *epochs()])
    for stage, more in (("selection", ""), ("training", ",top1")):
        header, first, *_ = (folder / f"{stage}.csv").read_text().splitlines()
        assert header == f"seed,base_lr,weight_decay,epoch,lr,loss,train_top1{more}"
        assert first.startswith("0,0.1,0.0,1,0.1,")


def test_an_epoch_can_be_read_while_the_next_one_trains(tmp_path: Path) -> None:
    with epoch_logs(["csv", "tensorboard"], {"abmilp": (tmp_path / "abmilp", {})}) as on_epoch:
        assert on_epoch is not None
        for one in epochs(last=2):
            on_epoch(one)
        for name in ("csv", "tensorboard"):
            assert READ[name](tmp_path / "abmilp" / FOLDER) == WHOLE[:4]


def test_members_of_a_grid_are_told_apart(tmp_path: Path) -> None:
    folder = write("tensorboard", tmp_path, epochs(stage="selection"))
    runs = [file.parent.relative_to(folder / "tensorboard").as_posix() for file in folder.rglob("events.*")]
    assert sorted(runs) == ["selection/lr0.1-wd0.0-seed0", "selection/lr0.1-wd0.0-seed1"]


def test_mistakes_and_no_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with epoch_logs([], {"abmilp": (tmp_path, {})}) as on_epoch:
        assert on_epoch is None
    with pytest.raises(BeyondClsError, match="unknown log 'tensorbord'; did you mean 'tensorboard'"):
        write("tensorbord", tmp_path, ())
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(BeyondClsError, match=r"--log wandb needs wandb, .* pip install 'beyondcls\[wandb\]'"):
        write("wandb", tmp_path, ())
    assert not list(tmp_path.iterdir())


def test_wandb_that_begins_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", Mock(side_effect=wandb.errors.UsageError("api_key not configured")))
    with pytest.raises(BeyondClsError, match=r"begins no run \(api_key .*`wandb login`, or set WANDB_MODE=offline"):
        write("wandb", tmp_path, epochs())


def test_prepared_links_are_not_written_through(tmp_path: Path) -> None:
    folder, victim = tmp_path / "abmilp" / FOLDER, tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir(parents=True)
    (folder / "training.csv").symlink_to(victim)
    assert in_csv(write("csv", tmp_path, epochs())) == WHOLE
    with epoch_logs(["csv"], {"abmilp": (tmp_path / "abmilp", {})}) as on_epoch:
        assert on_epoch is not None
        on_epoch(epochs(stage="selection")[0])
        (folder / "training.csv").symlink_to(victim)
        with pytest.raises((StoreError, FileExistsError)):
            on_epoch(epochs()[0])
    assert victim.read_text() == "precious"
