"""Scripts of job arrays: one that runs a command in several tasks, and one with a command for each task."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.engines.log import BEGUN, ENDED, WIDTH
from pipelines.engines.run import Run
from pipelines.process.stopping import TO_BE_CONTINUED
from store.errors import BeyondClsError

NOT_QUOTED = frozenset("'\"\\")
NOTICE_S = 300  # a task gets its signal so long before its time limit

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output={logs}/%A_%a.log --open-mode=append
#SBATCH --requeue --signal=B:USR1@{seconds}
{given}
{about}
cd {folder} || exit
was_killed() {{ [ $status -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; }}
worst=0
for run in {runs}; do
  {choice}{setup}(trap '' USR1 && exec {command}) &
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
OF_UNITS = """\
# Tasks that write a feature set together, each with its own GPU; any number of them can. Before the time of a task ends it gets
# SIGUSR1, finishes its shard, and is queued again."""
OF_RUNS = """\
# A task for each of these commands, or for several where Slurm takes fewer tasks: one after the other, and what is done ends at
# once. Before the time of a task ends it gets SIGUSR1, finishes its epoch, and is queued again."""


def script_of(
    arguments: Sequence[str], name: str, logs: Path, n_tasks: int, tries: int, sbatch: str, setup: Sequence[str] = ()
) -> str:
    """A script for sbatch that runs a command in several tasks.

    Args:
        arguments: of `beyondcls`.
        name: of the feature set.
        logs: folder of the logs.
        tries: times that a task may be killed before it fails.
        sbatch: more options of sbatch, which win.
        setup: lines of the user's shell that each task runs before the command, as they are.

    Raises:
        BeyondClsError: `sbatch` or a line has several lines, or a folder a name that Slurm cannot be given.
    """
    command = f'{_beyondcls(arguments)} --task-id "$SLURM_ARRAY_TASK_ID" --n-tasks "$SLURM_ARRAY_TASK_COUNT"'
    return _script(name, f"0-{n_tasks - 1}", logs, OF_UNITS, '"$SLURM_ARRAY_TASK_ID"', "", command, tries, sbatch, setup)


def script_of_runs(
    runs: Sequence[Run], n_tasks: int, logs: Path, at_a_time: int | None, tries: int, sbatch: str, setup: Sequence[str] = ()
) -> str:
    """A script for sbatch whose tasks do all runs, task t the runs t, t + n_tasks, …; the output of each goes to its log.

    Args:
        logs: folder of what Slurm itself says of tasks.
        at_a_time: how many tasks may run at a time.
        tries, sbatch, setup: as for `script_of`.

    Raises:
        BeyondClsError: `sbatch` or a line has several lines, or a folder a name that Slurm cannot be given.
    """
    cases = [
        f"{number}) log={shlex.quote(str(run.log))}; set -- {shlex.join(run.arguments)};;" for number, run in enumerate(runs)
    ]
    begun = f'mkdir -p "${{log%/*}}"; exec >>"$log" 2>&1; export COLUMNS={WIDTH}; echo "{BEGUN}beyondcls $*"'
    choice = "\n".join(["case $run in", *cases, "esac", begun, ""])
    array = f"0-{n_tasks - 1}" + (f"%{at_a_time}" if at_a_time is not None else "")
    numbers = f'$(seq "$SLURM_ARRAY_TASK_ID" {n_tasks} {len(runs) - 1})'
    return _script("probe", array, logs, OF_RUNS, numbers, choice, f'{_beyondcls(())} "$@"', tries, sbatch, setup)


def _script(
    name: str,
    array: str,
    logs: Path,
    about: str,
    runs: str,
    choice: str,
    command: str,
    tries: int,
    sbatch: str,
    setup: Sequence[str],
) -> str:
    if not sbatch.isprintable():
        raise BeyondClsError(f"sbatch is {sbatch!r}, expected options in one line, such as --partition=gpu --gres=gpu:1")
    if strange := next((line for line in setup if not line.isprintable()), None):
        raise BeyondClsError(f"setup has {strange!r}, expected lines of shell; give each by itself")
    if not str(logs).isprintable() or not NOT_QUOTED.isdisjoint(str(logs)):
        raise BeyondClsError(
            f"the logs would be in {str(logs)!r}, and Slurm takes no quotes, backslashes or unprintable characters; give "
            "--out without them, in another folder if that one has them"
        )
    return SCRIPT.format(
        name=f"beyondcls-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)}",
        array=array,
        logs=re.sub(r"[ #]", r"\\\g<0>", str(logs).replace("%", "%%")),
        seconds=NOTICE_S,
        given=f"#SBATCH {sbatch}" if sbatch else "# #SBATCH --partition=gpu --gres=gpu:1 --time=8:00:00",
        about=about,
        folder=shlex.quote(os.getcwd()),
        runs=runs,
        choice=choice,
        setup="".join(f"{line}\n" for line in setup),
        command=command,
        ended=ENDED,
        again=TO_BE_CONTINUED,
        restarts=tries - 1,
    )


def _beyondcls(arguments: Sequence[str]) -> str:
    return shlex.join([sys.executable, "-P", "-m", "pipelines.cli", *arguments])
