"""Whether DVC is installed, and whether the folder is one of its projects."""

from pipelines.doctor.dvc_project import ask, dvc_command, project_root
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

OLDEST = "3.12"  # the first with `matrix` in dvc.yaml
WITHOUT = "the commands work without it"


def check(machine: Machine) -> Finding:
    """Without DVC, or outside of a project, there is no pipeline; only a DVC too old for dvc.yaml is a problem."""
    root = project_root(machine.folder)
    pipeline = (machine.folder / "dvc.yaml").is_file()
    if dvc_command() is None:
        for_what = "`dvc repro` and its cache need it" if root or pipeline else WITHOUT
        return Finding("dvc", "note", f"DVC is not installed; {for_what}", "pip install dvc")
    version = ask(machine.folder, "--version").strip()
    if _parts(version) < _parts(OLDEST):
        remedy = f"pip install --upgrade 'dvc>={OLDEST}'"
        return Finding("dvc", "problem", f"DVC {version}, expected {OLDEST} or later: dvc.yaml has matrix stages", remedy)
    if root is None:
        remedy = "git init && dvc init, in this folder" if pipeline else "for `dvc repro`, go to the folder of dvc.yaml"
        return Finding("dvc", "note", f"DVC {version}; this folder is in no DVC project; {WITHOUT}", remedy)
    assert machine.project is not None  # or its settings cannot be read, which is raised
    return Finding("dvc", "ok", f"DVC {version}, project {machine.project.root}")


def _parts(version: str) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(part) for part in version.split(".")[:2])
