"""Whether the server that most encoders of the paper were published on can be reached."""

from pipelines.doctor.finding import Finding
from pipelines.doctor.hub import FROM_FILE, advice, reached
from pipelines.doctor.machine import Machine

SERVER = "https://dl.fbaipublicfiles.com"  # MAE, DINO, DINOv2, CAPI, …


def check(machine: Machine) -> Finding | None:
    """Other servers are contacted only when their weights are needed."""
    if machine.offline:
        return None
    failed = reached(SERVER)
    if failed:
        return Finding("official weights", "note", f"{SERVER} cannot be reached: {failed}", f"{FROM_FILE}{advice(failed)}")
    return Finding("official weights", "ok", f"{SERVER} answers: MAE, DINO and others can be fetched")
