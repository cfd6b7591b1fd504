"""`beyondcls doctor`: checks by name, in the order in which they are shown.

To add one: a function of the machine in one of these files, which yields Findings of the check's name; and its line in CHECKS.
"""

from collections.abc import Callable, Iterable

from pipelines.doctor import computer, places, project
from pipelines.doctor.machine import Finding, Machine

CHECKS: dict[str, Callable[[Machine], Iterable[Finding]]] = {
    "versions": computer.versions,
    "plugins": computer.plugins,
    "gpu": computer.gpu,
    "memory": computer.memory,
    "disk": places.disk,
    "file system": places.file_system,
    "store.root": places.store_root,
    "slurm": computer.slurm,
    "dvc": project.dvc,
    "params.yaml": project.params_yaml,
    "weights": project.weights,
}
