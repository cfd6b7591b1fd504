"""What is done by hand before a release; CONTRIBUTING says when. `nox -l` lists the sessions.

Each session makes an environment of its own, with uv where it is installed, which links packages instead of copying them.
"""

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["build", "wheel"]

PYTHONS = ("3.11", "3.12", "3.13")


@nox.session
def build(session: nox.Session) -> None:
    """The sdist and, from it, the wheel, in dist/; what they hold, and whether an index would take them."""
    session.install("build", "twine")
    for old in Path("dist").glob("beyondcls-*"):
        old.unlink()
    session.run("python", "-m", "build")
    archives = sorted(map(str, Path("dist").glob("beyondcls-*")))
    session.run("python", ".ci/contents.py", *archives)
    session.run("python", "-m", "twine", "check", "--strict", *archives)


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """The wheel of dist/ in an empty environment of each Python: public names, images to report."""
    (built,) = Path("dist").resolve().glob("beyondcls-*.whl")
    session.install(f"beyondcls[extract,probe] @ {built.as_uri()}")
    session.run("python", ".ci/smoke.py")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The tests, or those that follow `--`, with the newest versions that pip finds."""
    session.install("--editable", ".[dev]")
    _run_tests(session)


@nox.session(python="3.11")
@nox.parametrize("versions", ["lowest", "newest"])
def bounds(session: nox.Session, versions: str) -> None:
    """The tests with the lowest versions that setup.cfg allows, and with the newest of the day of requirements/newest.txt."""
    session.install("--requirement", f"requirements/{versions}.txt")
    session.install("--no-deps", "--editable", ".")
    _run_tests(session)


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements/lowest.txt from setup.cfg, and requirements/newest.txt from what is published today."""
    session.install("uv")
    compile_ = ("uv", "pip", "compile", "setup.cfg", "--extra", "dev", "--no-annotate", "--quiet", "--python-version", "3.11")
    note = {"UV_CUSTOM_COMPILE_COMMAND": "nox -s lock"}
    session.run(*compile_, "--resolution", "lowest-direct", "--upgrade", "-o", "requirements/lowest.txt", env=note)
    session.run(*compile_, "--universal", "--upgrade", "-o", "requirements/newest.txt", env=note)


def _run_tests(session: nox.Session) -> None:
    session.install("pip")  # a test installs the wheel with it
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", *session.posargs, env={"OMP_NUM_THREADS": "1"})
