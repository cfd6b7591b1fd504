"""What is in a wheel and in an sdist: every module and its data, the licence, and no tests, benchmarks or images.

    python .ci/contents.py dist/beyondcls-*.whl dist/beyondcls-*.tar.gz

Ends with status 1 and the names of what is missing or does not belong there.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("beyondcls", "extract", "pipelines", "probe", "store")
DESCRIBING = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"}
SHIPPED = {".dvcignore", "dvc.yaml"}  # the pipeline of projects that `beyondcls init` makes
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def sources() -> set[str]:
    """Files of the program, by their paths in the repository."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    return {file.relative_to(ROOT).as_posix() for file in files if file.is_file() and "__pycache__" not in file.parts}


def expected_in(archive: Path) -> set[str]:
    """Names that a wheel or an sdist must have, and no others."""
    if archive.suffix == ".whl":
        name = "-".join(archive.name.split("-")[:2])
        shipped = {f"{name}.data/data/share/beyondcls/{file}" for file in SHIPPED}
        return sources() | {f"{name}.dist-info/{file}" for file in METADATA} | shipped
    return sources() | DESCRIBING | SHIPPED


def names_in(archive: Path) -> set[str]:
    """Names of files; those of an sdist below its only folder, without what setuptools generates."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    return {name for name in names - {"PKG-INFO"} if not name.startswith("beyondcls.egg-info/")}


def differences(archive: Path) -> list[str]:
    """What is wrong with a wheel or an sdist, a line each."""
    expected, names = expected_in(archive), names_in(archive)
    return [f"{archive.name} lacks {name}" for name in sorted(expected - names)] + [
        f"{archive.name} has {name}, which does not belong there" for name in sorted(names - expected)
    ]


if __name__ == "__main__":
    wrong = [line for archive in sys.argv[1:] for line in differences(Path(archive))]
    sys.exit("\n".join(wrong) if wrong else 0)
