"""`beyondcls probe`: parameters from the file and the command line, what it says, and a run that is killed."""

import signal
import sys
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

import pytest

from pipelines import cli
from pipelines.parameters.heads import AskedHead, plans_and_run
from pipelines.parameters.params import named_values, read_params
from pipelines.process.tasks import is_first
from probe import checkpoint
from probe.checkpoint import Checkpoint
from probe.closed import make_closed
from probe.grid import HeadSpec
from probe.recipe import PRESETS, Recipe
from probe.result_files import read_result
from store import BeyondClsError
from tests.features import write_features
from tests.folders import files
from tests.forked import kill_after, status

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--epochs", "2", "--warmup-epochs", "0", "--batch-size", "32")
ONE_SEED = (*SHORT, "--seeds", "0")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Of training and test images, by an encoder and by another one."""
    folder = tmp_path_factory.mktemp("sets")
    train = write_features(folder / "train", 120, views=2, crops=True)
    test = write_features(folder / "test", 70, seed=1, crops=True, invalid=(5,))
    other = [write_features(folder / f"other-{n}", n, seed=i, weights="v", crops=True) for i, n in enumerate((120, 70))]
    return [store.path for store in (train, test, *other)]


@pytest.fixture
def probe(beyondcls, sets, tmp_path):
    """What `beyondcls probe` says, and the metrics of its one head."""

    def run(*arguments, out=tmp_path / "out", fails=False):
        places = ("--features", sets[0], "--test", sets[1], "--out", out, "--device", "cpu")
        shown = beyondcls("probe", *places, *arguments, fails=fails)
        return shown, read_result(out / "metrics.json") if (out / "metrics.json").exists() else None

    return run


@pytest.fixture
def params(tmp_path):
    def write(text):
        (tmp_path / "params.yaml").write_text(text)
        return "--params", tmp_path / "params.yaml"

    return write


FILE = """
heads:
  mine: {aggregator: abmilp, depth: 2, base_lr: 0.2, seeds: [5], normalisation: none}
  preset: {aggregator: abmilp, preset: adamw, epochs: 3, warmup_epochs: 0}
  near: {aggregator: cls, protocol: {name: knn, ks: [3]}, percent: 20}
  grid: {aggregator: cls, base_lrs: [1e-3, 3E-2, 1]}
  small: {aggregator: cls, views: 1, k_shot: 2, base_lr: null, protocol: null, block: null}
probe: {epochs: 7, batch_size: 64, base_lr: 0.1, momentum: 0.5, warmup_epochs: 1, seeds: [0, 1], weight_decays: [0, 0.1]}
"""
GIVEN = {"base_lr": 0.3, "epochs": 4, "seeds": (8,), "normalisation": "batch", "final_norm": True}
PRESET = "heads: {cls: {epochs: 12}}\nprobe: {preset: adamw, base_lr: 0.5}"
NEAR = "heads: {cls: {protocol: {name: knn, ks: [3], temperature: [0.1, 1]}}, other: {aggregator: cls}}"
CLOSED = "heads: {cls: {}, other: {aggregator: cls, protocol: null}}\nprobe: {protocol: logistic}"
RUN = {"views": 2, "mix_evaluation_view": True, "percent": 5.0, "placement": "stream"}
DEFAULT = {"recipe": Recipe(), "seeds": (0, 1, 2), "base_lrs": (), "closed": None, "head": HeadSpec(), "run": {}}
MINE = Recipe(epochs=7, batch_size=64, base_lr=0.2, momentum=0.5, warmup_epochs=1)


def tuned(preset, **changed):
    return Recipe(**{**PRESETS[preset], **changed})


def started(text):
    """A head in a file whose other heads start uniformly."""
    return f"heads: {{cls: {text}}}\nprobe: {{init: uniform}}"


class TestWhereParametersComeFrom:
    @pytest.mark.parametrize(
        ("text", "name", "given", "expected"),
        [
            ("", "abmilp", {}, DEFAULT),
            # A head wins over `probe`, and the command line over both.
            (FILE, "mine", {}, {"head": HeadSpec("abmilp", {"depth": 2}, "none"), "recipe": MINE, "seeds": (5,)}),
            (FILE, "mine", GIVEN, {"recipe.base_lr": 0.3, "recipe.epochs": 4, "seeds": (8,)}),
            (FILE, "mine", GIVEN, {"head": HeadSpec("abmilp", {"depth": 3, "activation": "tanh"}, "batch", final_norm=True)}),
            # One value nearer replaces a grid, and the other way round.
            (FILE, "mine", {"weight_decay": 0.2}, {"weight_decays": (), "recipe.weight_decay": 0.2}),
            (FILE, "mine", {"base_lrs": (1.0, 2.0)}, {"settings": [(lr, d) for lr in (1.0, 2.0) for d in (0, 0.1)]}),
            (FILE, "grid", {}, {"base_lrs": (0.001, 0.03, 1)}),
            # A preset is what it says wherever it stands: what stands farther away, of the recipe, does not leak into it.
            (FILE, "preset", {}, {"recipe": tuned("adamw", epochs=3, warmup_epochs=0), "weight_decays": (), "seeds": (0, 1)}),
            (FILE, "mine", {"preset": "mae-lars", "epochs": 20}, {"recipe": tuned("mae-lars", epochs=20), "seeds": (5,)}),
            (PRESET, "cls", {}, {"recipe": tuned("adamw", epochs=12, base_lr=0.5)}),
            (started("{}"), "cls", {}, {"head.init": "uniform"}),
            (started("{preset: adamw}"), "cls", {}, {"head.init": "normal"}),
            (started("{init: normal}"), "cls", {"preset": "mae-lars", "drop_last": False}, {"head.init": "uniform"}),
            ("heads: {cls: {preset: mae-lars, rows_at_once: null, batch_size: 512}}", "cls", {}, {"recipe.at_once": 512}),
            # Protocols; options of neighbours on the command line win one by one.
            (FILE, "near", {}, {"closed": make_closed("knn", ks=(3,)), "run": {"percent": 20}}),
            (FILE, "near", {"protocol": "ridge"}, {"closed": make_closed("ridge")}),
            (CLOSED, "cls", {}, {"closed": make_closed("logistic")}),
            (CLOSED, "other", {}, {"closed": None}),
            (NEAR, "cls", {"ks": (7, 5)}, {"closed.ks": (5, 7), "closed.temperature": (0.1, 1)}),
            # Of the whole run; null says nothing.
            (FILE, "small", {}, {"run": {"views": 1, "k_shot": 2}, "recipe.base_lr": 0.1}),
            (FILE, "small", RUN, {"run": RUN}),
            ("heads: {cls: {views: 1}}\nprobe: {views: 3, block: 4}", "cls", {}, {"run": {"views": 1, "block": 4}}),
        ],
    )
    def test_of_a_head(self, text, name, given, expected, params):
        options = {"depth": 3, "activation": "tanh"} if given is GIVEN else {}
        plans, run = plans_and_run([name], read_params(params(text)[1]) if text else None, given, options)
        found = {field: run if field == "run" else attrgetter(field)(plans[name]) for field in expected}
        assert found == expected

    def test_of_several_heads(self, params):
        """A head's own options win over all others; heads with another protocol have no options of neighbours."""
        file = read_params(params(FILE)[1])
        names = ["mine", "mine:depth=3,epochs=2,base_lrs=[1,2]", "lars=mine:preset=mae-lars"]
        plans, _ = plans_and_run(names, file, {"epochs": 9, "seeds": (4,)}, {"activation": "tanh"})
        first, own, lars = plans.values()
        assert list(plans) == ["mine", "mine-depth3-epochs2-base_lrs1-2", "lars"]
        assert (first.head.options, first.recipe.epochs, first.base_lrs) == ({"depth": 2, "activation": "tanh"}, 9, ())
        assert (own.head.options, own.recipe.epochs, own.base_lrs) == ({"depth": 3, "activation": "tanh"}, 2, (1, 2))
        assert lars.recipe == tuned("mae-lars")
        assert first.seeds == own.seeds == lars.seeds == (4,)
        assert plans_and_run(["near:protocol=null"], file, {}, {})[0]["near-protocol-null"].closed is None
        plans, _ = plans_and_run(["cls", "other"], read_params(params(NEAR)[1]), {"ks": (5,)}, {})
        near = make_closed("knn", ks=(5,), temperature=(0.1, 1))
        assert [plan.closed for plan in plans.values()] == [near, None]

    @pytest.mark.parametrize(
        ("text", "folder", "name", "own"),
        [
            ("abmilp:depth=2,activation=relu", "abmilp-depth2-activation-relu", "abmilp", {"depth": 2, "activation": "relu"}),
            ("deep=abmilp:depth=2", "deep", "abmilp", {"depth": 2}),
            ("abmilp:blocks=[3,5],base_lrs=[1e-2, 0.1]", "abmilp-blocks3-5-base_lrs1e-2-0.1", "abmilp", None),
            ("heads/gem.py:GeM:p=4", "GeM-p4", "heads/gem.py:GeM", {"p": 4}),
            ("norm:top_k=-1", "norm-top_k-1", "norm", {"top_k": -1}),
        ],
    )
    def test_a_head_with_options_of_its_own(self, text, folder, name, own):
        head = AskedHead.from_text(text)
        assert (head.folder, head.name) == (folder, name)
        assert own is None or head.own == own

    def test_options_are_yaml(self):
        given = ["depth=2", "blocks=[3,5]", "name=a=b", "x=1e-3", "norm=true"]
        assert named_values("--option", given) == {"depth": 2, "blocks": [3, 5], "name": "a=b", "x": 0.001, "norm": True}

    def test_the_file_of_the_repository(self):
        content = read_params(ROOT / "params.yaml")
        plans, run = plans_and_run(list(content["heads"]), content, {}, {})
        assert run == {"held_out": content["probe"]["held_out"]}
        for name, entry in content["heads"].items():
            recipe, expected = plans[name].recipe, content["probe"] | entry
            assert (recipe.epochs, recipe.batch_size) == (expected["epochs"], expected["batch_size"])


class TestRun:
    def test_one_head(self, probe, tmp_path):
        shown, metrics = probe(*SHORT, "--seeds", "0,4", "--option", "depth=2", "--views", "1")
        reached = metrics["top1"]
        assert f"{tmp_path}/out: top-1 {reached['mean']:.2f} ± {reached['std']:.2f} % over 2 seeds, 69 test images" in shown
        assert metrics["command"].startswith("beyondcls probe --features")
        assert metrics["command"].endswith(" ".join((*SHORT, "--seeds 0,4 --option depth=2 --views 1")))
        assert (metrics["seeds"], metrics["options"], metrics["n_views"]) == ([0, 4], {"depth": 2}, 1)
        assert metrics["recipe"] == asdict(Recipe(epochs=2, warmup_epochs=0, batch_size=32))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]

    def test_several_heads_and_notes(self, probe, tmp_path):
        heads = ("--head", "cls", "--head", "abmilp", "--head", "average")
        shown, _ = probe(*ONE_SEED, *heads, "--base-lrs", "0.1,1")
        for name in ("cls", "abmilp", "average"):
            metrics = read_result(tmp_path / "out" / name / "metrics.json")
            assert f"{tmp_path}/out/{name}: top-1 {metrics['top1']['mean']:.2f} ± 0.00 % over 1 seed, 69 test images" in shown
            *others, unaugmented = metrics["notes"]
            assert any("edge of the grid" in note for note in others)
            assert all(note in shown for note in others)
        assert shown.count(unaugmented) == shown.count(f"note on all: {unaugmented}") == 1
        assert "features read once for cls, average: 189 vectors of each in memory" in shown

    def test_neighbours(self, probe):
        shown, metrics = probe("--head", "cls", "--protocol", "knn", "--ks", "7,1", "--temperature", "0.1")
        assert f"{metrics['top1']['mean']:.2f} % by knn" in shown
        assert (metrics["protocol"]["ks"], metrics["protocol"]["temperature"]) == ([1, 7], 0.1)
        assert metrics["selected"]["candidates"] == [1, 7]

    def test_subsets(self, probe):
        """Each seed draws its own images, five where no seeds are given; a seed of the subset fixes one draw for all."""
        for given, n, subset, seeds, n_draws in (
            (("--k-shot", 5, "--seeds", "7,3"), 15, {"k_shot": 5, "seed": "own"}, [7, 3], 2),
            (("--percent", 50, "--subset-seed", 3), 60, {"percent": 50.0, "seed": 3}, [0, 1, 2], 0),
        ):
            _, metrics = probe(*SHORT, "--head", "cls", *given)
            assert (metrics["n_training"], metrics["n_test"], metrics["subset"]) == (n, 69, subset)
            assert (metrics["seeds"], len(metrics["top1"]["values"])) == (seeds, len(seeds))
            drawn = metrics.get("drawn", {})
            assert list(drawn) == [str(seed) for seed in seeds][:n_draws]
            assert len(set(drawn.values())) == n_draws
            assert metrics["recipe"]["order"] == ("own" if n_draws else "shared")
        _, metrics = probe("--head", "cls", "--protocol", "ridge", "--k-shot", "5", "--retrain")  # without gradient steps, too
        assert (metrics["n_training"], metrics["seeds"], len(metrics["selected_by_seed"])) == (15, [0, 1, 2, 3, 4], 5)
        assert metrics["top1"]["std"] > 0

    def test_a_list_of_images(self, probe, params, sets, tmp_path):
        """As the published lists are: file names, from the command line or the parameter file."""
        file = tmp_path / "1percent.txt"
        file.write_text("".join(f"{row:06d}.JPEG\n" for row in (3, 7, 8, 11, 0, 25)))
        for given in (("--ids", file), params(f"cls_heads: {{cls: {{}}}}\nprobe: {{ids: {file}, k_shot: null}}")):
            _, metrics = probe(*ONE_SEED, "--head", "cls", *given)
            assert (metrics["n_training"], metrics["subset"]["ids"], metrics["subset"]["n_ids"]) == (6, "1percent.txt", 6)
        file.write_text("000003.JPEG\n000120.JPEG\nn01_1.JPEG\n")
        assert "2 of 3 ids are not in" in probe(*SHORT, "--ids", file, fails=True)[0]
        file.write_text("000005\n000006\n000007\n000009\n")  # 5 of the test images could not be read
        shown, metrics = probe(*ONE_SEED, "--features", sets[1], "--head", "cls", "--ids", file)
        assert "1 of 4 images of" in shown
        assert (metrics["n_training"], metrics["subset"]["n_unusable"]) == (3, 1)

    def test_joined(self, probe, sets):
        pair = ("--joined", sets[2], "--joined-test", sets[3])
        head = (*ONE_SEED, "--head", "cls-attention", "--option", "of=joined", "--views", "1")
        assert set(probe(*head, *pair)[1]["joined"]) == {"training", "test"}
        assert "error: --joined and --joined-test go together" in probe(*head, *pair[:2], fails=True)[0]
        assert "of a second feature set; name it with --joined" in probe(*head, fails=True)[0]

    def test_other_processes_of_torchrun_are_silent(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        assert is_first()  # a number without a count
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert not is_first()
        monkeypatch.setenv("RANK", "0")
        assert is_first()

    def test_what_is_in_place_stays_unless_it_is_to_be_trained_again(self, probe, params, tmp_path):
        """What then is said and written: tests/probe/test_in_place.py."""
        given = (*ONE_SEED, "--head", "cls")
        _, cls = probe(*given)
        assert "kept," in probe(*given, "--placement", "memory")[0]
        said, kept = probe("--head", "average", *SHORT, fails=True)
        assert f"{tmp_path / 'out'} holds a head, cls, which average would replace" in said
        assert kept == cls
        assert "kept," not in probe(*given, "--retrain")[0]
        file = params("heads: {out: {aggregator: average}}")  # a head that was edited has its name
        assert probe("--head", "out", *file, *SHORT)[1]["aggregator"] == "average"


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("--option depth", "--option is 'depth', expected name=value"),
            ("--protocol knn", "aggregator 'abmilp' has parameters to train"),
            ("--head cls --protocol knn", "k is 200, but there are 108 images"),
            ("--head cls --k 5", "--ks is an option of --protocol knn, which no head here has"),
            ("--base-lr 0.1 --base-lrs 0.1,0.2", "--base-lr 0.1 and --base-lrs 0.1,0.2 exclude each other"),
            ("--k-shot 5 --percent 10", "--k-shot 5 and --percent 10.0 exclude each other"),
            ("--k-shot 5 --order shared", "order is shared, but each seed draws its own images"),
            ("--ids nowhere.txt", "'nowhere.txt' cannot be read"),
            ("--block 5", "no array 'patch/block5/view0'; it has: patch/block1/view0"),
            ("--head cls --head cls", "--head cls was given twice"),
            ("--head ap:hads=12", "--head ap 'hads'; did you mean 'heads'?"),
            ("--head cls:views=1", "--head cls:views=1 gives views, which all heads of a command share"),
            ("--head cls:epochs=many", "--head cls:epochs is 'many', expected a whole number"),
        ],
    )
    def test_on_the_command_line(self, given, message, probe, tmp_path):
        assert message in probe(*given.split(), fails=True)[0]
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("heads: {abmilp: {epochss: 3}}", "heads.abmilp 'epochss'; did you mean 'epochs'?"),
            ("heads: {abmlip: {}}", "unknown head 'abmilp'; did you mean 'abmlip'?"),
            ("heads: {abmilp: {aggregator: 3}}", "heads.abmilp.aggregator is 3"),
            ("cls_heads: {abmilp: {aggregator: average}}", "abmilp in the parameter file reads patch, but for cls_heads"),
            ("heads: {abmilp: {protocol: {ks: [1]}}}", "unknown protocol ''"),
            ("heads: {abmilp: {protocol: {name: knn, ks: 5}}}", "ks is 5, expected a list"),
            ("heads: {abmilp: {}}\nprobe: {1: 2}", "unknown parameter in probe '1'"),
            ("heads: {1: {}, on: {}}", "unknown head 'abmilp'; known: 1, on"),
            ("heads: {abmilp: {aggregator: cls, views: 1}, b: {aggregator: cls}}", "heads.abmilp gives views, which all heads"),
            ("heads: {abmilp: {}} # caf\udce9", "is not YAML; correct it, or name another file: 'utf-8' codec"),
        ],
    )
    def test_in_the_file(self, text, message, probe, params, tmp_path):
        file = params("")
        file[1].write_bytes(text.encode(errors="surrogateescape"))
        heads = ("--head", "abmilp", *(("--head", "b") if " b: " in text else ()))
        assert message in probe(*file, *heads, fails=True)[0]
        assert not (tmp_path / "out").exists()

    def test_two_own_aggregators_of_one_name(self):
        with pytest.raises(BeyondClsError, match=r"two heads are named 'Mine'; .*--head NAME=b\.py"):
            plans_and_run(["a.py:Mine", "b.py:Mine"], None, {}, {})


def test_epochs_are_logged_and_nothing_else_changes(probe, params, tmp_path):
    """As the command line says, or else the file; a head that stays keeps its log."""
    file = params("heads: {abmilp: {base_lrs: [0.1, 0.5]}}\nprobe: {log: [csv], seeds: [0, 1]}")
    given = ("--head", "abmilp", *SHORT)
    _, whole = probe(*given, "--base-lrs", "0.1,0.5", "--seeds", "0,1", out=tmp_path / "without/h")
    _, logged = probe(*file, *given, out=tmp_path / "with/h")
    assert {**logged, "command": ""} == {**whole, "command": ""}
    same = {name: text for name, text in files(tmp_path / "without/h").items() if not name.endswith(".json")}
    assert same.items() <= files(tmp_path / "with/h").items()
    logs = tmp_path / "with/h/training_logs"
    assert sorted(path.name for path in logs.iterdir()) == ["selection.csv", "training.csv"]
    assert len((logs / "training.csv").read_text().splitlines()) == 1 + 2 * 2
    before = (logs / "training.csv").stat().st_mtime_ns
    _, metrics = probe(*file, *given, "--log", "tensorboard", "--retrain", out=tmp_path / "with/h")
    assert "--log" not in metrics["command"]
    assert (logs / "training.csv").stat().st_mtime_ns == before
    assert len(list(logs.glob("tensorboard/seed*/events*"))) == 2
    assert "probe.log is 'csv', expected a list of texts" in probe(*params("probe: {log: csv}"), *given, fails=True)[0]
    assert "unknown log 'tb'" in probe(*given, "--log", "tb", fails=True)[0]


def probe_until_killed(*arguments: object) -> None:
    """The command in a process of its own, with a checkpoint after each epoch, which is killed before its 12th."""
    checkpoint.EVERY_S = 0
    kill_after(11, (Checkpoint, "save"))
    sys.argv = ["beyondcls", *map(str, arguments)]
    cli.run()


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bytes(sets, probe, params, tmp_path):
    """While the chosen settings train; of one head each seed has its own order, and so a pass of its own."""
    out = tmp_path / "probes/killed"
    file = params("cls_heads: {cls: {}}\nheads: {abmilp: {order: own}}")
    grid = "--head abmilp --head cls --base-lrs 0.1,0.5 --seeds 0,1 --epochs 4 --warmup-epochs 0 --batch-size 32"
    given = (*file, *grid.split())
    places = ("--features", sets[0], "--test", sets[1], "--device", "cpu", "--out", out)
    assert status(probe_until_killed, "probe", *places, *given) == -signal.SIGKILL
    assert not out.exists()
    assert list((tmp_path / "probes/.unfinished").iterdir())
    shown, _ = probe(*given, out=out)
    assert "going on after" in shown
    assert sorted(p.name for p in (tmp_path / "probes").iterdir()) == ["killed"]  # .unfinished is gone
    shown, _ = probe(*given, out=tmp_path / "probes/whole")
    assert "going on after" not in shown
    resumed, whole = ({n: c for n, c in files(folder).items() if "timing" not in n} for folder in (out, out.with_name("whole")))
    assert len(whole) == 2 * (6 + 3) + 1
    same = {name: content for name, content in whole.items() if not name.endswith((".json", ".md"))}
    assert same == {name: resumed[name] for name in same}
