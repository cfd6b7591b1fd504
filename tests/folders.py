"""The content of a folder."""

from pathlib import Path


def files(folder: Path) -> dict[str, bytes]:
    """Content by name, in order."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
