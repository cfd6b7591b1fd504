"""Operations of the encoders over a project, and how long a GPU takes for so many: an estimate, with nothing measured."""

from collections.abc import Sequence

from pipelines.planning.gpus import SHARE, Gpu
from pipelines.planning.project import Project
from pipelines.planning.words import hours
from pipelines.planning.work import EXTRACTIONS, Work
from pipelines.store.table import table

PETA, GIGA = 1e15, 1e9


def flops(project: Project, works: Sequence[Work]) -> dict[str, dict[str, float]]:
    """Of each encoder's forward passes, by data set: both splits, all views, studies of blocks included.

    Encoders whose operations could not be counted are left out.
    """
    by_encoder: dict[str, dict[str, float]] = {}
    for name, one in project.encoders.by_name.items():
        if one.cost is not None:
            runs = [work for work in works if work.stage in EXTRACTIONS and work.encoder == name]
            by_encoder[name] = {d: one.cost.flops * sum(w.crops for w in runs if w.dataset == d) for d in project.sizes}
    return by_encoder


def estimated_seconds(operations: float, gpu: Gpu) -> float:
    """That a GPU takes for so many operations."""
    return operations / (SHARE * gpu.flops_per_s)


def flops_table(project: Project, works: Sequence[Work], gpu: Gpu) -> list[str]:
    """PFLOP and estimated hours of each encoder on each data set, and of all."""
    counted, datasets = flops(project, works), list(project.sizes)
    rows = [["encoder PFLOP", "GFLOP an image", *(column for name in (*datasets, "all") for column in (name, "hours"))]]
    for name, one in project.encoders.by_name.items():
        if one.cost is None:
            rows.append([name, "not counted", *[""] * (2 * len(datasets) + 2)])
        else:
            rows.append([name, f"{one.cost.flops / GIGA:,.1f}", *_cells([counted[name][dataset] for dataset in datasets], gpu)])
    rows.append(["all", "", *_cells([sum(one[dataset] for one in counted.values()) for dataset in datasets], gpu)])
    return [
        *table(rows, right=range(1, len(rows[0]))),
        f"an estimate, not measured: GPU-hours at {SHARE:.0%} of {gpu}, of forward passes alone, without decoding, "
        "statistics, writing and heads; a multiplication and an addition count as two",
    ]


def _cells(operations: Sequence[float], gpu: Gpu) -> list[str]:
    """Of each data set, and of all."""
    both = [*operations, sum(operations)]
    return [
        cell
        for one in both
        for cell in (f"{one / PETA:,.3g}" if one < 99.95 * PETA else f"{one / PETA:,.0f}", hours(estimated_seconds(one, gpu)))
    ]
