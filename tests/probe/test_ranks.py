"""Several processes train what one does, given the same batches."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from probe.grid import HeadPlan, HeadSpec
from probe.ranks import mean_over_ranks, rank, ranks, sum_over_ranks, world_size
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from probe.saved import load_probe
from store import BeyondClsError, FeatureStore
from tests.features import write_features
from tests.machines.served import commands_in
from tests.probe.training import Images, equal, family, member, trained

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
GRID = [member(0, 0.5), member(1, 2.0, 0.1), member(2, 1e30, 1.0)]
SPECS = [HeadSpec("abmilp", {"branches": 2}), HeadSpec("ap", {"heads": 2, "form": "aim"}), HeadSpec("average", {}, "none")]
# 50 images: steps of 16, and one of 2, of which each of two processes has one.
RECIPES = [Recipe(4, 16, 8, rule, warmup_epochs=1) for rule in ("lars", "adamw")]
CLS = HeadPlan(HeadSpec("cls"), Recipe(3, 32, optimiser="lars", base_lr=0.2, warmup_epochs=1), (0,))


def under_torchrun(function, folder, n=2, python=Path(sys.executable), module="tests.probe.test_ranks"):
    """Run a function of a module in n processes, each by `python`; what they printed, or the error."""
    script = folder / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n")
    with script.open("a") as file:
        file.write(f"from {module} import {function}\n{function}(Path(sys.argv[1]))\n")
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**os.environ, "PYTHON_EXEC": str(python)}}
    with subprocess.Popen([*launcher, str(script), str(folder)], cwd=ROOT, text=True, **options) as process:
        try:
            shown, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:  # processes that are not in step wait for each other
            process.terminate()  # and the launcher ends them
            raise
    return process.returncode, shown


def train_all(share=(0, 1)):
    """All families with all optimisers, in two-process shares of the same batches."""
    images = [Images(50, recipe.at_once, rank=share[0], world_size=share[1]) for recipe in RECIPES]
    test = Images(20, seed=1)
    return [trained([family(GRID, spec) for spec in SPECS], recipe, x, test) for recipe, x in zip(RECIPES, images, strict=True)]


def train_in_ranks(folder):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with ranks(CPU) as share:
        assert share == (rank(), world_size()) == (dist.get_rank(), 2)
        with ranks(CPU) as inner:
            assert inner == share
    for _ in range(5):  # groups that are left leave nothing behind
        with ranks(CPU):
            sum_over_ranks(values := torch.ones(1))
            assert values == 2
    with ranks(CPU) as share:
        values = torch.tensor([1.0, 2.0]) + rank()
        assert mean_over_ranks(values.clone()).tolist() == [1.5, 2.5]
        assert mean_over_ranks(torch.stack([values, values]).T).tolist() == [[1.5, 1.5], [2.5, 2.5]]
        sum_over_ranks(values, other := torch.ones(1))
        assert (values.tolist(), other.tolist()) == ([3.0, 5.0], [2.0])
        runs = train_all(share)
        with pytest.raises(BeyondClsError, match=r"batch_size 15 \(at once 15\) cannot be shared by 2 processes"):
            trained([family(GRID)], Recipe(2, 15, warmup_epochs=0), Images(50, 15, rank=share[0], world_size=2))
    assert torch.equal(before, torch.get_rng_state())
    assert not dist.is_initialized()
    kept = [[(f.stack.state(), f.curves, f.names, f.lost) for f in families] for families in runs]
    torch.save(kept, folder / f"rank{share[0]}.pt")


def probe_in_ranks(folder):
    stores = [FeatureStore.open(folder / name) for name in ("train", "test")]
    with pytest.raises(BeyondClsError, match="cannot be shared by 2 processes; choose multiples of 2"):
        probe(*stores, folder / "bad", HeadPlan(HeadSpec(), Recipe(3, 33 * 2, 33, warmup_epochs=1)))
    recipe = Recipe(3, 32, optimiser="lars", base_lr=2.0, warmup_epochs=1)
    heads = {"abmilp": HeadPlan(HeadSpec("abmilp"), recipe, (0, 1), (0.5, 5.0)), "cls": HeadPlan(HeadSpec("cls"), recipe, (0,))}
    written = probe(*stores, folder / "out", heads)
    messages: list[str] = []
    again = probe(*stores, folder / "out", heads | {"cls": CLS}, say=messages.append)
    assert again["abmilp"] == written["abmilp"]
    (folder / f"left{os.environ['RANK']}.json").write_text(json.dumps({"returned": again, "said": messages}))


def both(folder):
    train_in_ranks(folder)
    probe_in_ranks(folder)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What two processes left behind; they are started once."""
    folder = tmp_path_factory.mktemp("ranks")
    write_features(folder / "train", 320)  # shards of 64 images
    write_features(folder / "test", 64, seed=1)
    with commands_in(folder / "bin", packages=("torch._dynamo", "torch.distributed.run", "pytest", "zarr")) as commands:
        code, shown = under_torchrun("both", folder, python=commands / "python")
    assert code == 0, shown
    return folder


def test_two_processes_train_what_one_does(together):
    alone = train_all()
    for number in range(2):
        for families, expected in zip(torch.load(together / f"rank{number}.pt", weights_only=False), alone, strict=True):
            for (state, curves, names, lost), one in zip(families, expected, strict=True):
                assert names == one.names
                assert lost.keys() == one.lost.keys()
                for name, values in one.stack.state().items():
                    bias = name.endswith("score.0.bias")  # its gradient is of rounding errors, which Adam makes large
                    torch.testing.assert_close(state[name], values, rtol=1e-9, atol=1e-7 if bias else 1e-10)
                for ours, theirs in zip(curves, one.curves, strict=True):
                    for entry, other in zip(ours, theirs, strict=True):
                        assert entry == pytest.approx(other, rel=1e-9)
    assert alone[0][0].names == GRID[:2]


def test_a_run_in_two_processes_ends_and_one_of_them_writes(together):
    """It keeps a head in place and trains the other; one process alone does not keep what two have trained."""
    first, second = (json.loads((together / f"left{number}.json").read_text()) for number in range(2))
    assert first["returned"] == second["returned"]
    assert not (together / "bad").exists()
    for name, metrics in first["returned"].items():
        assert read_result(together / "out" / name / "metrics.json") == metrics
        assert metrics["n_training"] == 320
        head = load_probe(together / "out" / name / "trained/seed0")
        assert all(p.isfinite().all() for p in head.parameters())
        assert head.norm.running_mean.abs().sum() > 0
    assert not (together / ".unfinished").exists()
    ours, theirs = ([m for m in one["said"] if "kept," in m or "again," in m] for one in (first, second))
    summaries = [message.removeprefix(f"{together}/out/").split(",")[0] for message in ours]
    assert (summaries, theirs) == (["abmilp: kept", "cls: trained again"], [])
    assert first["returned"]["cls"]["recipe"]["base_lr"] == 0.2
    messages, out = [], shutil.copytree(together / "out", together / "one")
    probe(*(FeatureStore.open(together / name) for name in ("train", "test")), out, {"cls": CLS}, say=messages.append)
    assert f"{out}/cls: trained again, the request differs (processes)" in messages


class TestOne:
    def test_is_alone_without_torchrun(self, monkeypatch):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        with ranks(CPU) as share:
            assert share == (0, 1) == (rank(), world_size())
        values = torch.ones(3)
        assert mean_over_ranks(values) is values
        sum_over_ranks(values)
        assert values.tolist() == [1, 1, 1]

    def test_whose_others_are_not_there(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.delenv("RANK", raising=False)
        message = r"cannot join the other processes \(gloo: .*RANK.*start all of them with torchrun"
        with pytest.raises(BeyondClsError, match=message), ranks(CPU):
            pass
        assert not dist.is_initialized()

    def test_leaves_the_group_after_an_error_and_takes_the_gpu_of_its_number(self, monkeypatch):
        done = []  # by groups of processes that do nothing but take note
        monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: done.append(backend))
        monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("left"))
        monkeypatch.setattr("probe.ranks._meeting_place", lambda: (dist.HashStore(), 3, 4))
        monkeypatch.setattr(dist, "get_rank", lambda: 3)
        monkeypatch.setattr(dist, "get_world_size", lambda: 4)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "set_device", done.append)
        for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(KeyError), ranks(CPU):
            raise KeyError
        assert done == ["gloo", "left"]
        with ranks(torch.device("cuda")) as share:
            assert share == (3, 4)
        assert done[2:] == [1, "nccl", "left"]
        monkeypatch.setenv("LOCAL_RANK", "2")
        with pytest.raises(BeyondClsError, match="2 GPUs here, expected one for each process; start at most 2"):
            ranks(torch.device("cuda")).__enter__()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="nccl needs a GPU for each of two processes")
def test_nccl_trains_what_one_process_does(tmp_path):
    code, shown = under_torchrun("train_on_gpus", tmp_path)
    assert code == 0, shown


def train_on_gpus(folder):
    with ranks(torch.device("cuda")) as share:
        device = torch.device("cuda", share[0])
        images = Images(50, 8, rank=share[0], world_size=2)
        images.tokens = {kind: values.to(device) for kind, values in images.tokens.items()}
        images.labels = images.labels.to(device)
        one = family(GRID)
        one.stack = type(one.stack)([one.stack.head(m) for m in range(len(GRID))], device)
        one.base_lr, one.weight_decay = one.base_lr.to(device), one.weight_decay.to(device)
        trained([one], RECIPES[0], images)
    [expected] = trained([family(GRID)], RECIPES[0])
    equal(one.stack.head(0), expected.stack.head(0), 1e-8)
