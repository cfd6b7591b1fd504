"""Job arrays of Slurm, with a task for each run: of heads, or of those that share an extraction; scripts, and waiting."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from pipelines.engines.engine import (
    BEGUN,
    COMMAND_LINE,
    ENDED,
    WIDTH,
    Agenda,
    Engine,
    Run,
    Watch,
    following,
    last_lines,
    problem_in,
    status_in,
)
from pipelines.parameters.engine import without_engine
from pipelines.process.tasks import TO_BE_CONTINUED
from store import BeyondClsError
from store.format.unfinished import HEADER, progress_at
from store.places import LocalFolder, is_remote
from store.writing.publishing import STAGING

SECONDS = 2.0  # between two looks at logs, or at whether a set is begun
EARLY = datetime.fromtimestamp(0, UTC)
ANSWER_S = 10  # seconds to wait for Slurm's controller
LOGS = ".slurm"  # folder of logs, next to feature sets or in the folder that has all of what runs write
MAX_ARRAY_SIZE = 1000  # tasks: numbers below Slurm's default MaxArraySize of 1001
NOT_QUOTED = frozenset("'\"\\")
SHOWN = 3  # problems in a message
NOTICE_S = 300  # a task gets its signal so long before its time limit
SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output={logs}/%A_%a.log --open-mode=append
#SBATCH --requeue --signal=B:USR1@{seconds}
{given}
# A task for each of these commands, or for several where Slurm takes fewer tasks: one after the other, and what is done ends at
# once. Before the time of a task ends it gets SIGUSR1, finishes its shard or epoch, and is queued again.
cd {folder} || exit
was_killed() {{ [ $status -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; }}
worst=0
for run in $(seq "$SLURM_ARRAY_TASK_ID" {n_tasks} {last}); do
  case $run in
{cases}
esac
mkdir -p "${{log%/*}}"; exec >>"$log" 2>&1; export COLUMNS={width}; echo "{begun}beyondcls $*"
{setup}(trap '' USR1 && exec {program} "$@") &
  child=$!
  trap 'while kill -USR1 $child 2>/dev/null; do sleep 1; done &' USR1  # again, as it may not listen yet
  wait $child; status=$?
  while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
  echo "{ended}$status"
  if [ $status = {again} ] || was_killed; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" && sleep 60  # Slurm ends this script
  fi
  [ $status -gt $worst ] && worst=$status
done
exit $worst
"""


@dataclass(frozen=True)
class Slurm(Engine):
    """A job array of `tasks`, or of a task for each run, which is submitted from here; the command waits until it has ended.

    A task that is killed, or whose node fails, is queued again, up to `tries` times; one whose time ends is so as often as it
    takes, and goes on after the last shard that it has written, or epoch.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "sbatch", "setup")
    cluster: ClassVar[str] = "Slurm"

    def n_tasks(self, n_units: int) -> int:
        return self.tasks or 1

    def run_all(self, agenda: Agenda) -> None:
        RunArray(self, agenda.runs).run(agenda)


def submit(
    engine: Engine, verb: str, out: Path, root: str | None, script: Path | None, dry_run: bool, say: Callable[[str], None]
) -> bool:
    """Whether an extraction was run elsewhere as a whole, or only a script for that was wanted, to write or print (`dry_run`).

    `verb`: what to do with the set at `out`; `root`: of all sets, if they have one; `say`: prints a line.
    """
    from pipelines.process.progress import progress_bar
    from pipelines.sharing.publish import SCRATCH
    from store import FeatureStore

    check_script(engine, script, dry_run)
    if not isinstance(engine, Slurm):
        return False
    if verb == "repair":
        raise BeyondClsError("one process repairs a feature set; give --on here with --repair")
    n = engine.n_tasks(1)
    shared = (*without_engine(sys.argv[1:]), "--n-tasks", str(n), "--task-id")
    array = RunArray(engine, [Run.writing(f"{out}.task{task}", (*shared, str(task))) for task in range(n)], out.name)
    if script is not None or dry_run:
        array.hand_over(script, say)
        return True
    folder = out.parent if root is None else out.parent / SCRATCH if is_remote(root) else Path(root)
    named = re.compile(re.escape(out.name) + "(-[0-9a-f]{32})+")

    def staged() -> Path | None:
        """Where the set is staged, under whichever key; the last one that was begun."""
        begun = [f for f in (folder / STAGING).glob("*") if named.fullmatch(f.name) and (f / HEADER).is_file()]
        return max(begun, key=lambda place: LocalFolder(place).time_now(HEADER) or EARLY) if begun else None

    say(f"{out}: logs in {array.runs[0].log.parent}{'' if n > 1 else '; --tasks gives more than one task'}")
    for run in array.runs:
        run.log.unlink(missing_ok=True)  # of an earlier command
    whole: list[Callable[[], None]] = []  # completes the bar, from when the set is begun

    def begins() -> bool:
        """Show how far the set is once it is begun; nothing stops the job."""
        place = None if whole else staged()
        if place is not None and (begun := progress_at(LocalFolder(place))) is not None:
            progress = bars.enter_context(progress_bar(out.name, begun.n_images, "images"))
            reported = bars.enter_context(following(staged, progress))
            whole.append(lambda: progress(begun.n_images - reported()))
        return False

    with ExitStack() as bars:
        agenda = Agenda(array.runs, engine.tries, Watch(lambda _: None, say, begins), say)
        array.run(agenda)
        if whole and not agenda.problems:
            whole[0]()
    if agenda.problems:
        raise BeyondClsError("; ".join(f"{name}: {problem}" for name, problem in list(agenda.problems.items())[:SHOWN]))
    if not (out / "zarr.json").exists():
        raise BeyondClsError(f"the job has ended, but there is no set at {out}; see its logs, and give the command again")
    spec = FeatureStore.describe(out).spec
    say(f"{out}: {spec.n_images:,} images, key {spec.key}")
    return True


def check_script(engine: Engine, script: Path | None, dry_run: bool) -> None:
    if not isinstance(engine, Slurm) and (script is not None or dry_run):
        raise BeyondClsError(f"{'--dry-run' if dry_run else '--script'} is for the script of a job array; give --on slurm, too")


class RunArray:
    """A job array with a task for each run, task t the runs t, t + n_tasks, …: with as many tasks as Slurm takes.

    The output of each run goes to its log; what Slurm itself says of tasks is in `logs`. Its name is that of the job; what
    Slurm cannot be given is refused.
    """

    def __init__(self, engine: Slurm, runs: Sequence[Run], name: str = "probe"):
        self.runs = list(runs)
        self.logs = logs = Path(os.path.commonpath([run.log.parent.parent for run in runs])) / LOGS
        most, sbatch, setup = configuration().get("MaxArraySize", ""), engine.sbatch or "", engine.setup or ()
        self.n_tasks = min(len(runs), max(1, int(most) - 1) if most.isdecimal() else MAX_ARRAY_SIZE)
        if not sbatch.isprintable():
            raise BeyondClsError(f"sbatch is {sbatch!r}, expected options in one line, such as --partition=gpu --gres=gpu:1")
        if strange := next((line for line in setup if not line.isprintable()), None):
            raise BeyondClsError(f"setup has {strange!r}, expected lines of shell; give each by itself")
        if not str(logs).isprintable() or not NOT_QUOTED.isdisjoint(str(logs)):
            raise BeyondClsError(
                f"the logs would be in {str(logs)!r}, and Slurm takes no quotes, backslashes or unprintable characters; give "
                "--out without them, in another folder if that one has them"
            )
        self.script = SCRIPT.format(
            name=f"beyondcls-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)}",
            array=f"0-{self.n_tasks - 1}" + (f"%{engine.tasks}" if engine.tasks is not None else ""),
            logs=re.sub(r"[ #]", r"\\\g<0>", str(logs).replace("%", "%%")),
            seconds=NOTICE_S,
            given=f"#SBATCH {sbatch}" if sbatch else "# #SBATCH --partition=gpu --gres=gpu:1 --time=8:00:00",
            folder=shlex.quote(os.getcwd()),
            n_tasks=self.n_tasks,
            last=len(runs) - 1,
            cases="\n".join(
                f"{number}) log={shlex.quote(str(run.log))}; set -- {shlex.join(run.arguments)};;"
                for number, run in enumerate(runs)
            ),
            width=WIDTH,
            begun=BEGUN,
            setup="".join(f"{line}\n" for line in setup),
            program=shlex.join([sys.executable, "-P", "-m", COMMAND_LINE]),
            ended=ENDED,
            again=TO_BE_CONTINUED,
            restarts=engine.tries - 1,
        )

    def hand_over(self, script: Path | None, say: Callable[[str], None]) -> None:
        """Write the script, which only its user can read, or print it if there is no file for it."""
        if script is None:
            say(self.script.rstrip())
            return
        if script.exists() and b"#SBATCH --requeue --signal=B:USR1@" not in script.read_bytes():
            raise BeyondClsError(f"{script} is no script for sbatch that was written here, so it stays; give another --script")
        self.logs.mkdir(parents=True, exist_ok=True)  # Slurm makes none
        script.touch(0o600)
        script.chmod(0o600)  # addresses in it may be signed
        script.write_text(self.script)
        say(f"{script}: submit it with `sbatch {shlex.quote(str(script))}`; each run has its log, e.g. {self.runs[0].log}")

    def run(self, agenda: Agenda) -> None:
        left = dict(enumerate(iter(agenda.take, None)))
        sizes: dict[int, int] = {}
        is_told = has_ended = False
        with job_of(self.script, self.logs) as (job, waiting):
            tasks = f"{self.n_tasks} task{'s' * (self.n_tasks > 1)}"
            tasks += f" for {len(self.runs)} runs" if len(self.runs) > self.n_tasks else ""
            agenda.say(f"job {job}, {tasks}; what Slurm says of them is in {self.logs}")
            while not has_ended:
                has_ended = waiting.poll() is not None  # and one more look
                for number, run in list(left.items()):
                    size = run.log.stat().st_size if run.log.exists() else 0
                    if size == sizes.get(number, 0):
                        continue
                    sizes[number] = size
                    status = status_in(last_lines(run.log))
                    if status is not None and status != TO_BE_CONTINUED and status <= 128:  # else it is queued again
                        agenda.ended(left.pop(number), status)
                if agenda.stops() and not is_told:
                    subprocess.run(["scancel", "--state=PENDING", job], check=False)
                    is_told = True
                if not has_ended:
                    time.sleep(SECONDS)
        for number, run in left.items():  # had not ended when the job had
            task = f"{job}_{number % self.n_tasks}"
            lines, of_slurm = last_lines(run.log), last_lines(self.logs / f"{task}.log")
            if waiting.returncode == 0:  # its log is seen later here
                agenda.ended(run, 0)
            elif agenda.stops() and not lines:
                agenda.left(run)
            elif (status := status_in(lines)) is not None:
                agenda.failed(run, f"it ended with status {status} too often: {problem_in(of_slurm or lines)}")
            elif lines:
                agenda.failed(run, f"Slurm has ended it: {problem_in(of_slurm or lines)}")
            else:
                agenda.failed(run, f"it did not begin; see `scontrol show job {task}`")


def configuration() -> dict[str, str]:
    """Slurm's configuration by name; empty where there is no Slurm, or its controller does not answer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        if shown.returncode == 0:
            lines = (line.partition("=") for line in shown.stdout.splitlines())
            return {name.strip(): value.strip() for name, is_there, value in lines if is_there}
    return {}


@contextmanager
def job_of(script: str, logs: Path) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """Submit a script; yields the number of the job, and the process of sbatch that ends with it. The job is cancelled if
    waiting for it ends with an error. `logs`: the folder of what Slurm says, which makes none.
    """
    if shutil.which("sbatch") is None:
        raise BeyondClsError(
            "--on slurm calls sbatch, which was not found on this machine; give the command on a login node of the "
            "cluster, or write the script with --script FILE and submit it there, or give --on processes"
        )
    logs.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        ["sbatch", "--parsable", "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(BrokenPipeError):  # it refuses without reading, and says why
            process.stdin.write(script)
            process.stdin.close()
        number = process.stdout.readline().strip().partition(";")[0]
        if not number:
            raise BeyondClsError(f"sbatch refuses the job: {process.stderr.read().strip()}; correct --sbatch, or --tasks")
        try:
            yield number, process
        except BaseException:
            subprocess.run(["scancel", number], check=False)
            process.kill()
            raise
