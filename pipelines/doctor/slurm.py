"""Slurm's configuration, where there is one: whether tasks that it ends early are queued again."""

import shutil

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from pipelines.engines.slurm import configuration

NAME = "slurm"


def check(machine: Machine) -> Finding | None:
    """`--on slurm` counts on requeueing; a partition that cancels what it preempts does none."""
    if shutil.which("scontrol") is None:
        return None
    config = configuration()
    if "PreemptMode" not in config:
        return Finding(NAME, "note", "scontrol shows no configuration", "see whether the controller runs: `sinfo`")
    if "CANCEL" in config["PreemptMode"].split(","):
        observed = "PreemptMode is CANCEL: what is preempted is not queued again"
        remedy = "where tasks were cancelled give the command again, it goes on; or ask for PreemptMode=REQUEUE"
        return Finding(NAME, "note", observed, remedy)
    if config.get("JobRequeue") == "0":
        observed = "JobRequeue is 0; scripts ask for it themselves (--requeue), if partitions allow that"
        return Finding(NAME, "note", observed, "where tasks are not queued again, give the command again: it goes on")
    return Finding(NAME, "ok", f"tasks that are ended early are queued again (PreemptMode {config['PreemptMode']})")
