"""A job array: its script as bash runs it, what is said of jobs that fail, and a real Slurm where there is one."""

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engines.engine import Run
from pipelines.engines.slurm import RunArray, Slurm
from pipelines.parameters.engine import without_engine
from store import BeyondClsError
from tests.features import write_features
from tests.folders import files
from tests.pipelines.engines.runs import Watched
from tests.pipelines.engines.workers import Load, write_images

LISTEN = "signal.signal(signal.SIGUSR1, lambda *_: exit(75))"
CODE = f"import signal, time; open('begun', 'w'); time.sleep(0.3); {LISTEN}; time.sleep(20)"  # it is told before it listens
TOLD = f'exec {sys.executable} -c "{CODE}"'
TASK = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_JOB_ID": "12"}
Says = Callable[..., str]


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands are given in a folder whose programs stand in for Slurm's; the file of the one that stands in for Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("pipelines.engines.slurm.SECONDS", 0.05)
    return tmp_path / "python"


@pytest.fixture
def stood_in(program: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def executable(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(("#!/usr/bin/env bash", *lines, "")))
    file.chmod(0o755)
    return file


def script_of(slurm: Slurm, out: Path, *arguments: str) -> str:
    """That of an extraction which tasks share."""
    runs = [Run.writing(f"{out}.task{n}", ("extract", *arguments, "--task-id", str(n))) for n in range(slurm.n_tasks(1))]
    return RunArray(slurm, runs, out.name).script


def run_script(script: str, **variables: str) -> int:
    return subprocess.run(["bash"], input=script, text=True, env=os.environ | TASK | variables).returncode


def test_a_task_that_is_told_to_stop_is_queued_again(stood_in: Path, tmp_path: Path) -> None:
    executable(stood_in, 'echo "$@" > given', TOLD)
    script = executable(tmp_path / "job", script_of(Slurm(tasks=4), tmp_path / "f", "--data", "my images"))
    executable(tmp_path / "scontrol", "echo $@ > asked; exit 1")
    environment = {**os.environ, **TASK, "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "5"}
    with subprocess.Popen(["bash", script], env=environment) as process:
        while not Path("begun").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == 75
    assert Path("given").read_text() == "-P -m pipelines.cli extract --data my images --task-id 3\n"
    assert Path("asked").read_text() == "requeue 12_3\n"


def test_options_of_sbatch_win_and_characters_of_folders_are_escaped(tmp_path: Path) -> None:
    slurm = Slurm(tasks=3, sbatch="--partition=gpu --gres=gpu:1")
    options = [o for o in script_of(slurm, tmp_path / "my #1 100% größe;x/f").splitlines() if o.startswith("#SBATCH")]
    assert {
        "#SBATCH --array=0-2%3",
        rf"#SBATCH --output={tmp_path}/my\ \#1\ 100%%\ größe;x/.slurm/%A_%a.log --open-mode=append",
    } <= {*options}
    assert options[-1] == "#SBATCH --partition=gpu --gres=gpu:1"


@given(name=st.text(min_size=1) | st.sampled_from(["f\n#SBATCH --wrap=x", "f --wrap=x", "f;x", "$(x)", "-x", "größe"]))
def test_names_of_jobs_are_one_word(name: str) -> None:
    lines = RunArray(Slurm(), [Run.writing("f", ())], name).script.splitlines()
    (given_name,) = (line for line in lines if "--job-name" in line)
    assert re.fullmatch(r"#SBATCH --job-name=beyondcls-[A-Za-z0-9_.+-]+", given_name)
    assert len([line for line in lines if line.startswith("#SBATCH")]) == 4


@given(name=st.text("fx", min_size=1), strange=st.sampled_from("\n'\"\\\r\x1b\u2028"))
def test_what_slurm_cannot_be_given(name: str, strange: str) -> None:
    with pytest.raises(BeyondClsError, match="--out"):
        RunArray(Slurm(), [Run.writing(f"{name}{strange}/{head}", ()) for head in ("a", "b")])
    for engine in (Slurm(sbatch=f"-p {name}\n"), Slurm(setup=[name, f"{name}\n"])):
        with pytest.raises(BeyondClsError, match="expected"):
            RunArray(engine, [Run.writing(name, ())])


def test_arguments_are_one_word_each(stood_in: Path, tmp_path: Path) -> None:
    """Those of a head, too, which are in a `case`."""
    hostile = ["a;b", "$(touch ran)", "`touch ran`", "'; touch ran; '", "x\ntouch ran\n;; *) touch ran", "*"]
    executable(stood_in, 'for word; do printf "%s\\0" "$word"; done > given')
    assert run_script(RunArray(Slurm(), [Run("x", ("probe", *hostile), tmp_path / "';touch ran;'.log")]).script) == 0
    assert (tmp_path / "given").read_text().split("\0")[:-1] == ["-P", "-m", "pipelines.cli", "probe", *hostile]
    assert not (tmp_path / "ran").exists()


def test_lines_of_the_user_run_first(stood_in: Path) -> None:
    executable(stood_in, 'echo "$COLOUR: $4" > given')
    slurm = Slurm(setup=["module() { COLOUR=$2; }", "module load 'deep {red}'", "export COLOUR"])
    assert run_script(script_of(slurm, Path("f"))) == 0
    assert Path("given").read_text() == "deep {red}: extract\n"


def test_lines_of_the_cluster_in_the_users_own_configuration(
    beyondcls: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the parameter file win, and those of the command line over both."""
    own, params = tmp_path / "own.toml", tmp_path / "params.yaml"
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(own))
    own.write_text('[slurm]\nsetup = ["module load cuda"]\nsbatch = "--account=mine"\n')
    params.write_text("heads: {abmilp: {}}\nprobe: {on: slurm, setup: [source env.sh]}\n")
    given = ("probe", "--features", "f", "--test", "t", "--out", tmp_path / "p", "--head", "abmilp", "--dry-run")
    commands = (("--on", "slurm"), ("--params", params), ("--params", params, "--setup", "a 'b'", "--setup", "c"))
    for more, line in zip(commands, ("module load cuda", "source env.sh", "a 'b' c"), strict=True):
        assert re.search(f"#SBATCH --account=mine .* {line} \\(trap '' USR1", beyondcls(*given, *more))
    own.write_text("[slurm]\nsetup = 'x'\n")
    assert "slurm.setup" in beyondcls(*given, "--on", "slurm", fails=True)


def test_a_task_gets_the_command_without_what_concerns_engines() -> None:
    given = "extract --on slurm --tasks=8 --out f --sbatch '-p gpu' --setup 'module load cuda' --dry-run --data --on x --update"
    assert without_engine(shlex.split(given)) == ["extract", "--out", "f", "--data", "--update"]


@pytest.mark.parametrize(
    ("sbatch", "said"),
    [
        (("echo 'no such partition' >&2", "exit 1"), "no such partition"),
        (("echo 7", "mkdir .runs", "echo 'a bar\nerror: bad\nmend it' > .runs/f.task0.log", "exit 1"), "bad mend it (log: "),
        (("echo 7", "exit 1"), "did not begin; see `scontrol show job 7_0`"),
        (("echo '7;cluster'",), "no set at f"),
    ],
)
def test_jobs_that_fail(sbatch: tuple[str, ...], said: str, beyondcls: Says, tmp_path: Path) -> None:
    executable(tmp_path / "sbatch", "cat > job", *sbatch)
    assert said in beyondcls("extract", "--encoder", "any", "--data", "nowhere", "--out", "f", "--on", "slurm", fails=True)
    assert "extract --encoder any --data nowhere --out f --n-tasks 1 --task-id 0;;" in Path("job").read_text()


def test_tasks_of_a_job_share_a_set(
    beyondcls: Says, load: Callable[..., Load], images: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    runs_two = 'for task in 0 1; do SLURM_ARRAY_TASK_ID=$task bash job > .slurm/7_$task.log 2>&1 & pids="$pids $!"; done'
    executable(tmp_path / "sbatch", "cat > job; echo 7", runs_two, "for p in $pids; do wait $p || exit; done")
    beyondcls(*load().command(images, "f", "--on", "slurm", "--tasks", 2))
    assert files(tmp_path / "f") == whole


EXTRACT = ("extract", "--encoder", "any", "--data", "nowhere", "--out", "f", "--tasks", 2)
PROBE = ("probe", "--features", "f", "--test", "t", "--out", "p", "--head", "a", "--head", "b")


@pytest.mark.parametrize(("words", "log", "array"), [(EXTRACT, ".runs/f.task0.log", "0-1%2"), (PROBE, "p/.runs/a.log", "0-1")])
def test_a_script_for_those_who_submit_by_hand(
    words: tuple[object, ...], log: str, array: str, beyondcls: Says, tmp_path: Path
) -> None:
    given = (*words, "--on", "slurm")
    assert f"#SBATCH --array={array} " in beyondcls(*given, "--dry-run")
    assert not list(tmp_path.iterdir())
    assert str(tmp_path / log) in beyondcls(*given, "--script", "job.sh")
    assert stat.S_IMODE(Path("job.sh").stat().st_mode) == 0o600, "addresses in it may be signed"
    assert subprocess.run(["bash", "-n", "job.sh"]).returncode == 0
    assert (tmp_path / log).parent.parent.joinpath(".slurm").is_dir(), "Slurm makes none"
    beyondcls(*given, "--script", "job.sh")  # again
    (tmp_path / "train.sh").write_text(mine := "#!/bin/bash\n#SBATCH --array=1-3\n")
    beyondcls(*given, "--script", "train.sh", fails=True)
    assert Path("train.sh").read_text() == mine


# An sbatch that runs the tasks itself, one after the other, each again if it asks for that.
SBATCH = """\
cat > job
echo 7
for task in $(seq 0 $(grep -o 'array=0-[0-9]*' job | cut -d- -f2)); do
  for restart in 0 1 2; do
    rm -f again
    SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_RESTART_COUNT=$restart bash job && break
    [ -e again ] || failed=1
    [ -e again ] || break
  done
done
[ -z "$failed" ]
"""
# A program that does as its last head says.
PROGRAM = """\
while [ $# -gt 1 ]; do [ "$1" = --head ] && head=$2; [ "$1" = --out ] && out=$2; shift; done
case $head in
good) echo "$out: top-1 50";;
bad) echo "error: a bad head" >&2; exit 1;;
stops) [ "$SLURM_RESTART_COUNT" = 1 ] && echo "$out: top-1 75" || exit 75;;
dies) echo begun; kill -KILL $$;;
esac
"""


@pytest.mark.parametrize(
    ("size", "array", "times"),
    [(1000, "0-3%2", {"good": 1, "stops": 2, "bad": 1, "dies": 3}), (2, "0-1%2", {"good": 2, "stops": 2, "bad": 3, "dies": 3})],
)
def test_heads_are_tasks_of_an_array(size: int, array: str, times: dict[str, int], beyondcls: Says, stood_in: Path) -> None:
    """Where it may have fewer tasks, one does several in turn; what is done when it is queued again ends at once."""
    executable(stood_in, PROGRAM)
    executable(stood_in.with_name("sbatch"), SBATCH)
    config = f"[ $1 = show ] && echo MaxArraySize = {size + 1} && exit"
    executable(stood_in.with_name("scontrol"), config, "touch again; kill $PPID; exit 0")  # as Slurm ends the script
    heads = ("--head", "good", "--head", "bad", "--head", "stops", "--head", "dies")
    places = ("--features", "my features", "--test", "t", "--out", "p")
    said = beyondcls("probe", *places, *heads, "--on", "slurm", "--tasks", 2, fails=True)
    assert "p/good: top-1 50" in said
    assert "p/stops: top-1 75" in said, "it was queued again"
    assert "2 of 4 runs failed, 2 succeeded: p/bad: a bad head (log: " in said
    assert "status 137" in said
    logs = {log.stem: log.read_text() for log in Path("p/.runs").iterdir()}
    command = "$ beyondcls probe --features my features --test t --head stops --out p/stops --on here"
    assert logs["stops"].splitlines() == [
        *(command, "beyondcls ended with status 75"),
        *(command, "p/stops: top-1 75", "beyondcls ended with status 0"),
    ]
    assert {name: text.count("$ beyondcls probe") for name, text in logs.items()} == times
    assert f"#SBATCH --array={array}\n" in Path("job").read_text()


def test_a_stop_cancels_tasks_that_wait_and_an_interrupt_all(tmp_path: Path) -> None:
    executable(tmp_path / "sbatch", "cat > job; echo 7; until [ -e cancelled ]; do sleep 0.05; done; exit 1")
    executable(tmp_path / "scancel", "echo $@ > cancelled")
    runs, begins = [Run.writing("p/a", ()), Run.writing("p/b", ())], iter([False, False, False])

    def interrupt() -> bool:
        if next(begins, None) is None:
            raise KeyboardInterrupt
        return False

    stopped = Watched(runs, stops=lambda: Path("job").exists())
    Slurm().run_all(stopped.agenda)
    assert Path("cancelled").read_text() == "--state=PENDING 7\n"
    assert (stopped.agenda.n_done, stopped.agenda.problems) == (0, {}), "they did not begin, which is no failure"
    Path("cancelled").unlink()
    Path("job").unlink()
    with pytest.raises(KeyboardInterrupt):
        Slurm().run_all(Watched(runs, stops=interrupt).agenda)
    assert Path("cancelled").read_text() == "7\n"


def test_a_real_slurm(beyondcls: Says, tmp_path: Path) -> None:
    nodes = shutil.which("sbatch") and subprocess.run(
        ["timeout", "5", "sinfo", "-h", "-o", "%t"], capture_output=True, text=True
    )
    if not nodes or "idle" not in nodes.stdout:
        pytest.skip("no node of Slurm is idle here, or sbatch is not installed")
    write_images(tmp_path / "images")
    given = ("extract", "--encoder", "quickstart-random", "--data", "images", "--shard-rows", 32, "--device", "cpu")
    assert "150 images, key" in beyondcls(*given, "--out", "features/a", "--on", "slurm", "--tasks", 2)
    beyondcls(*given, "--out", "features/b")
    assert files(tmp_path / "features/a") == files(tmp_path / "features/b")
    (tmp_path / "images/a/0100.png").write_bytes(b"none")
    assert "images/a/0100.png" in beyondcls(*given, "--out", "features/c", "--on", "slurm", fails=True)
    write_features(tmp_path / "train", 64)
    write_features(tmp_path / "test", 48, seed=1)
    given = ("probe", "--features", "train", "--test", "test", "--epochs", 2, "--warmup-epochs", 0, "--device", "cpu")
    said = beyondcls(*given, "--out", "p", "--head", "cls", "--head", "bad", "--on", "slurm", fails=True)
    assert "1 of 2 runs failed, 1 succeeded: p/bad: " in said
