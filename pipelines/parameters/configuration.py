"""A user's own configuration, for all of their projects: ~/.config/beyondcls.toml."""

import os
import tomllib
from pathlib import Path
from typing import Any

from store.errors import BeyondClsError, unknown

VARIABLE = "BEYONDCLS_CONFIG"  # names another file; empty for no file
FILE = "beyondcls.toml"
SECTIONS = ("store", "slurm")


def configuration_file() -> Path | None:
    """The file, if there is one.

    Raises:
        BeyondClsError: BEYONDCLS_CONFIG does not name a file.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        file = Path(os.path.expanduser(named))
        if named and not os.path.isfile(file):
            raise BeyondClsError(f"{VARIABLE} is {named!r}, which is not a file; correct it, or set it to '' for none")
        return file if named else None
    base = os.environ.get("XDG_CONFIG_HOME", "")
    file = Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"), FILE)
    return file if os.path.isfile(file) else None


def configured(section: str) -> tuple[Path | None, dict[str, Any]]:
    """The file and the values of a section; None and no values where there is no file.

    Raises:
        BeyondClsError: it cannot be read, or is not as expected.
    """
    if (file := configuration_file()) is None:
        return None, {}
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BeyondClsError(f"{file} cannot be read ({error.strerror}); get the right to, or set {VARIABLE}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise BeyondClsError(f"{file} is not TOML ({error}); correct it, or name another file: {VARIABLE}") from error
    for name in content:
        if name not in SECTIONS:
            raise BeyondClsError(unknown(f"section in {file}", name, SECTIONS))
    values = content.get(section, {})
    if not isinstance(values, dict):
        raise BeyondClsError(f'{section} in {file} is {values!r}, expected a section, e.g. [store] and root = "/scratch"')
    return file, values
