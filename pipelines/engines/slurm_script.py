"""The script of a job array."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from store.errors import BeyondClsError

TO_BE_CONTINUED = 75  # exit status of a task that stopped because its time ends (EX_TEMPFAIL)
NOTICE_S = 300  # a task gets its signal so long before its time limit
ENDED = "beyondcls ended with status "

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --output={logs}/%A_%a.log --open-mode=append
#SBATCH --requeue --signal=B:USR1@{seconds}
{given}
# Tasks that write a feature set together, each with its own GPU; any number of them can. Before the time of a task ends it gets
# SIGUSR1, finishes its shard, and is queued again.
cd {folder} || exit
(trap '' USR1 && exec {command} --task-id "$SLURM_ARRAY_TASK_ID" --n-tasks "$SLURM_ARRAY_TASK_COUNT") &
child=$!
trap 'while kill -USR1 $child 2>/dev/null; do sleep 5; done &' USR1  # again, as it may not listen yet
wait $child; status=$?
while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
echo "{ended}$status"
was_killed() {{ [ $status -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; }}
if [ $status = {again} ] || was_killed; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" && sleep 60  # Slurm ends this script
fi
exit $status
"""


def script_of(arguments: Sequence[str], name: str, logs: Path, n_tasks: int, tries: int, sbatch: str) -> str:
    """A script for sbatch that runs a command in several tasks.

    Args:
        arguments: of `beyondcls`.
        name: of the feature set.
        logs: folder of the logs.
        tries: times that a task may be killed before it fails.
        sbatch: more options of sbatch, which win.

    Raises:
        BeyondClsError: `sbatch` has several lines.
    """
    if "\n" in sbatch:
        raise BeyondClsError(f"sbatch is {sbatch!r}, expected options in one line, such as --partition=gpu --gres=gpu:1")
    return SCRIPT.format(
        name=f"beyondcls-{name}",
        last=n_tasks - 1,
        logs=str(logs).replace("%", "%%").replace(" ", r"\ "),
        seconds=NOTICE_S,
        given=f"#SBATCH {sbatch}" if sbatch else "# #SBATCH --partition=gpu --gres=gpu:1 --time=8:00:00",
        folder=shlex.quote(os.getcwd()),
        command=shlex.join([sys.executable, "-m", "pipelines.cli", *arguments]),
        ended=ENDED,
        again=TO_BE_CONTINUED,
        restarts=tries - 1,
    )
