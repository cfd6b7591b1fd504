"""Where DVC pushes features to, so that other machines need not extract them again."""

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine


def check(machine: Machine) -> Finding | None:
    """A project without a remote stays on its machine, which is a note; an undefined default remote is a problem."""
    if machine.project is None:
        return None
    settings = machine.project.settings
    urls = {
        n.split(".", 1)[1].removesuffix(".url"): u
        for n, u in settings.items()
        if n.startswith("remote.") and n.endswith(".url")
    }
    default = settings.get("core.remote")
    if default is not None and default not in urls:
        observed = f"the default remote {default!r} is not defined; defined: {', '.join(urls) or 'none'}"
        return Finding("dvc remote", "problem", observed, f"dvc remote add {default} URL, or dvc remote default NAME")
    if not urls:
        remedy = "to probe on another machine: dvc remote add -d NAME URL, then dvc push here and dvc pull there"
        return Finding("dvc remote", "note", "none: features stay on this machine", remedy)
    shown = ", ".join(f"{name}{' (default)' if name == default else ''} {url}" for name, url in urls.items())
    if default is None:
        return Finding("dvc remote", "note", f"{shown}; none is the default", f"dvc remote default {next(iter(urls))}")
    return Finding("dvc remote", "ok", shown)
