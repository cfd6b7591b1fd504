"""Heads that a study no longer has: what an earlier run of it left in its folder."""

import shlex
from collections.abc import Collection
from pathlib import Path

from probe.result_files import read_result
from probe.results import FILES


def remove_left_heads(out: Path, study: str, heads: Collection[str], studies: Collection[str]) -> list[Path]:
    """Remove folders of heads in `out` that are no longer among the study's `heads`.

    They would appear in its tables. Only folders that a command with `--study` wrote are removed, no links, for this study or
    for one that is no longer among `studies`; and only files that `beyondcls probe` writes, and folders that are empty then.

    Returns:
        The folders that were removed.
    """
    removed = []
    for metrics in sorted(out.glob("*/metrics.json")):
        folder = metrics.parent
        is_elsewhere = folder.is_symlink() or (folder / "trained").is_symlink()
        if folder.name in heads or is_elsewhere or not _is_of(metrics, study, studies):
            continue
        for file in [file for pattern in FILES for file in folder.glob(pattern)]:
            file.unlink(missing_ok=True)
        for place in (folder / "trained", folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        removed.append(folder)
    return removed


def _is_of(metrics: Path, study: str, studies: Collection[str]) -> bool:
    """Whether a head was written for this study, for one that no longer exists, or records that nothing was trained."""
    try:
        content = read_result(metrics)
        if "absent" in content:
            return True
        words = shlex.split(content["command"])
        named = words[words.index("--study") + 1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False
    return named == study or named not in studies
