"""Groups of heads in params.yaml: which arrays `dvc repro` fetches for each, and whether a head is in the right one."""

from collections.abc import Mapping
from os.path import normpath
from typing import TYPE_CHECKING, Any

from pipelines.parameters.params import section
from store import BeyondClsError
from store.format.layout import kind_of
from store.user_code import file_of

if TYPE_CHECKING:
    from probe.grid import HeadPlan

ANY = ("cls", "patch", "registers", "average", "pooled", "attention")
# Section of params.yaml -> kinds of features that its heads may read: the dependencies of its stages in dvc.yaml, which DVC has
# to know before anything runs. All else is small beside patch tokens, so only heads without these have a group of their own.
GROUPS = {"cls_heads": ("cls",), "heads": ANY, "own_heads": ANY}
FILES = "heads/"  # the folder that `dvc repro` watches


def check_groups(params: Mapping[str, Any], plans: Mapping[str, "HeadPlan"], runs_files: bool) -> None:
    """Check that the stages of some heads fetch the arrays that these read.

    Args:
        plans: of heads, by name; those that are in no group are skipped.
        runs_files: whether files of custom aggregators may be run, to see what they read.

    Raises:
        BeyondClsError: a head reads more than its group fetches, or its file is in another folder.
    """

    for group, kinds in GROUPS.items():
        for name in section(params, group):
            if name not in plans:
                continue
            aggregator, options = plans[name].head.aggregator, plans[name].head.options
            file = file_of(aggregator)
            if file is not None and not normpath(file).startswith(FILES):
                raise BeyondClsError(
                    f"{group}.{name} in the parameter file has aggregator {aggregator!r}, expected a file in {FILES}, the "
                    f"folder that `dvc repro` watches; move it there, and write {FILES}{aggregator.rpartition('/')[2]}"
                )
            reads = _reads(aggregator, options) if file is None or runs_files else ()
            read = {kind_of(kind) for kind in reads}
            if not read <= set(kinds):
                raise BeyondClsError(
                    f"{group}.{name} in the parameter file reads {' and '.join(reads)}, but for {group} `dvc repro` fetches "
                    f"only {' and '.join(kinds)}; move it to heads"
                )


def _reads(aggregator: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Kinds of features that an aggregator reads with these options; none if it cannot be made, which `probe` explains.

    The file of a custom one is run, but no instance is made: its arguments are unknown. A class without `reads` passes.
    """
    import torch

    from probe.aggregators import make_aggregator
    from probe.aggregators.custom import custom_aggregator

    if file_of(aggregator) is not None:
        return tuple(custom_aggregator(aggregator).reads)
    heads = options.get("heads")
    dim = 64 * (heads if isinstance(heads, int) and heads > 0 else 12)  # every head as wide
    try:
        with torch.device("meta"):  # takes no memory
            return tuple(make_aggregator(aggregator, dim, 196, **options).reads)
    except BeyondClsError:
        return ()
