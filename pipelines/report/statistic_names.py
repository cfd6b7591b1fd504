"""Attention statistics on the page: their order, and the titles and units that the stage recorded."""

from collections.abc import Iterable

from pipelines.report.measured import Attention

# Those of the paper come first, with the numbers of their figures.
FIGURES = {"cls_self": 3, "cls_patch_entropy": 4, "patch_self": 5, "patch_patch_entropy": 6}


def in_order(names: Iterable[str]) -> list[str]:
    """Each statistic once: the paper's, then others as they come."""
    each_once = dict.fromkeys(names)
    return [*(name for name in FIGURES if name in each_once), *(name for name in each_once if name not in FIGURES)]


def titles(attention: Iterable[Attention]) -> dict[str, str]:
    """What each statistic is, by its name."""
    return {name: title for a in attention for name, (title, _) in a.declared.items()}


def units(attention: Iterable[Attention]) -> dict[str, str]:
    """The unit of each statistic, by its name."""
    return {name: unit for a in attention for name, (_, unit) in a.declared.items()}
