"""A simulated machine: a clone of the repository, an environment, a DVC cache, a home."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

IMAGE_PACKAGES = ("timm", "torchvision", "webdataset")  # what extraction needs and probing must not
DATA, ENCODERS = "quickstart/data", "quickstart/encoders"
QUICK_DVC = Path(__file__).with_name("quick_dvc.py")
SCRIPT = "#!{python}\nimport sys\nfrom pipelines.cli import run\nsys.exit(run())\n"


class Machine:
    """Runs commands in a clone, with the packages installed here, except some.

    Args:
        folder: of the whole machine; the clone is in `repo`.
        without: distributions that are not installed there.
        served: folder of commands that a process with these distributions answers (served.py), which it takes first.
    """

    def __init__(self, folder: Path, without: Sequence[str] = (), served: Path | None = None):
        self.folder, self.repo, self.python = folder, folder / "repo", folder / "venv/bin/python"
        self.served = served
        (folder / "home").mkdir(parents=True)
        self._install(without)

    @classmethod
    def cloned(
        cls,
        folder: Path,
        origin: Path,
        without: Sequence[str] = (),
        lacks: Sequence[str] = (),
        served: Path | None = None,
    ) -> "Machine":
        """A machine with a clone of a git repository.

        Args:
            lacks: folders of the repository that are not checked out there.
        """
        machine = cls(folder, without, served)
        git(folder, "clone", "-q", "--no-checkout", str(origin), "repo")
        if lacks:
            git(machine.repo, "sparse-checkout", "set", "--no-cone", "/*", *(f"!/{name}/" for name in lacks))
        git(machine.repo, "checkout", "-q")
        return machine

    def _install(self, without: Sequence[str]) -> None:
        """An environment of links to what is installed here, and the clone in it; pip would take minutes and gigabytes."""
        venv.create(self.folder / "venv", with_pip=False, symlinks=True)
        site = self.site_packages
        left_out = {name for package in ("beyondcls", *without) for name in top_level(package)}
        for installed in map(Path, dict.fromkeys(path for path in sys.path if path.endswith("-packages"))):
            for entry in installed.iterdir():
                if entry.name not in left_out and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
        (site / "clone.pth").write_text(f"{self.repo}\n")
        script = self.python.parent / "beyondcls"
        script.write_text(SCRIPT.format(python=self.python))
        script.chmod(0o755)

    @property
    def site_packages(self) -> Path:
        (site,) = (self.folder / "venv/lib").glob("python*/site-packages")
        return site

    @property
    def environment(self) -> dict[str, str]:
        inherited = ("LANG", "SHELL", "TERM", "TMPDIR", "LD_LIBRARY_PATH")
        path = [self.python.parent, os.environ["PATH"]]
        served = {} if self.served is None else {"PYTHONPATH": f"{self.repo}:{self.site_packages}"}
        return {name: os.environ[name] for name in inherited if name in os.environ} | {
            "PATH": ":".join(map(str, path if self.served is None else [self.served, *path])),
            **served,
            "HOME": str(self.folder / "home"),
            "BEYONDCLS_CONFIG": "",
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(self.folder / "site"),  # what DVC remembers of remotes is this machine's
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            **AUTHOR,
        }

    def run(self, *command: object, fails: bool = False) -> str:
        """What the command printed. Asserts that it succeeds, or that it fails."""
        done = subprocess.run(
            [*map(str, command)], cwd=self.repo, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        shown = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{' '.join(map(str, command))}: exit code {done.returncode}\n{shown}"
        return shown

    def dvc(self, *arguments: str, fails: bool = False) -> str:
        return self.run(*self.dvc_command(*arguments), fails=fails)

    def dvc_command(self, *arguments: str) -> list[str]:
        dvc = [str(self.python), "-P", str(QUICK_DVC)] if self.served is None else [str(self.served / "dvc")]
        return [*dvc, *arguments]

    def repro(self, *arguments: str) -> set[str]:
        """Stages that `dvc repro` ran."""
        return set(re.findall(r"^Running stage '([^']+)'", self.dvc("repro", *arguments), re.MULTILINE))

    def commit(self, message: str) -> None:
        git(self.repo, "add", "--all")
        git(self.repo, "commit", "-q", "--allow-empty", "-m", message)

    def cached(self) -> dict[str, int]:
        """Bytes of each object in the DVC cache, by its MD5; that of a folder ends in `.dir`."""
        return objects_below(self.repo / ".dvc/cache/files/md5")


def objects_below(folder: Path) -> dict[str, int]:
    """Bytes of each object of a DVC cache or remote, by its MD5."""
    return {file.parent.name + file.name: file.stat().st_size for file in folder.glob("??/*")}


def top_level(package: str) -> set[str]:
    """Files and folders in site-packages that belong to a distribution; none if it is not installed."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return set()
    return {file.parts[0] for file in files} - {"..", "__pycache__"}


AUTHOR = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A. Tester"), ("EMAIL", "tester@example.org"))
}


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
