"""Whether other distributions brought packages of the same names: the one that was installed last has overwritten files."""

from importlib import metadata

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from pipelines.doctor.needed import OURS


def check(machine: Machine) -> Finding:
    """Packages that come before ours on the path need no check here: importing beyondcls refuses them."""
    import beyondcls

    installed = metadata.packages_distributions()
    others = {name: sorted({*installed.get(name, ())} - {OURS}) for name in beyondcls.PACKAGES}
    if shared := [f"{name} is also of {', '.join(owners)}" for name, owners in others.items() if owners]:
        remedy = f"install {OURS} in its own environment: python -m venv .venv"
        return Finding("packages", "problem", "; ".join(shared), remedy)
    return Finding("packages", "ok", f"{', '.join(beyondcls.PACKAGES)} are those of {OURS} alone")
