"""A planned project as plain tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipelines.planning.encoders import NARROW, Measured
from pipelines.planning.extractions import nbytes_by_kind
from pipelines.planning.machine import Machine
from pipelines.planning.project import Project
from pipelines.planning.trainings import LeftOut
from pipelines.planning.work import EXTRACTIONS, RESOURCES, Total, Work, by_stage, total
from pipelines.store.table import size, table

HOUR = 3600


def hours(seconds: float) -> str:
    """Hours with three digits: `<0.001`, `0.0123`, `1,280`."""
    value = seconds / HOUR
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def images_table(project: Project) -> list[str]:
    """Images of each data set."""
    rows = [("data set", "train", "test", "classes", "")]
    for name, one in project.sizes.items():
        several = ", several an image" if one.multilabel else ""
        rows.append((name, f"{one.train:,}", f"{one.test:,}", f"{one.n_classes:,}", one.source + several))
    return table(rows, right=(1, 2, 3))


def encoders_table(project: Project) -> list[str]:
    """Images per second through each encoder, and bytes that are kept of an image."""
    kept = list(dict.fromkeys(kind for one in project.encoders.by_name.values() for kind in nbytes_by_kind(one)))
    rows = [["images/s:", "decoding", "encoder", "extraction", "writing", "reading", "an image:", *kept]]
    for name, one in project.encoders.by_name.items():
        kinds, rates = nbytes_by_kind(one), one.rates
        moved = project.machine.written_per_s / sum(kinds.values()), project.machine.read_per_s / _tokens(one)
        speeds = (rates.decoded_per_s, rates.encoded_per_s, rates.computed_per_s, *moved)
        rows.append([name, *map(rate, speeds), "", *(size(kinds[k]) if k in kinds else "" for k in kept)])
    return table(rows, right=(1, 2, 3, 4, 5, *range(7, 7 + len(kept))))


def _tokens(measured: Measured) -> int:
    """Bytes of the patch tokens of an image; of [cls] where there are none."""
    kinds = nbytes_by_kind(measured)
    return kinds.get("patch") or kinds.get("cls") or sum(kinds.values())


def rate(per_s: float) -> str:
    """Of a second, with three digits: `0.0123`, `12.3`, `1,280`."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def extraction_table(project: Project, works: Sequence[Work]) -> list[str]:
    """Bytes and hours of each encoder on each data set, both splits."""
    datasets = list(project.sizes)
    rows = [["extract", *(column for name in datasets for column in (name, "hours"))]]
    for encoder in project.encoders.by_name:
        row = [encoder]
        for dataset in datasets:
            one = total(w for w in works if (w.stage, w.encoder, w.dataset) == ("extract", encoder, dataset))
            row += [size(one.written), hours(one.elapsed)]
        rows.append(row)
    return table(rows, right=range(1, 1 + 2 * len(datasets)))


def training_table(works: Sequence[Work]) -> list[str]:
    """Hours of each head and study, over all encoders and data sets."""
    rows: list[tuple[str, ...]] = [("trained", "stage", "runs", "hours", "heads", "reading", "read", "hours in the loop")]
    trained = [w for w in works if w.stage not in (*EXTRACTIONS, "attention")]
    for name, stage in dict.fromkeys((w.name, w.stage) for w in trained):
        one = total(w for w in trained if (w.name, w.stage) == (name, stage))
        seconds = (one.elapsed, one.seconds["heads"], one.seconds["reading"])
        rows.append((name, stage, str(one.n), *map(hours, seconds), size(one.read), hours(one.looped)))
    return table(rows, right=(2, 3, 4, 5, 6, 7))


def stages_table(works: Sequence[Work], n_tasks: int) -> list[str]:
    """What each stage takes, and all of them."""
    tasks = [f"{n_tasks} tasks"] if n_tasks > 1 else []
    rows = [["stage", "runs", "hours", *tasks, "writes", "reads", *RESOURCES, "bottleneck"]]
    stages = by_stage(works, n_tasks)
    for stage, (one, shared) in stages.items():
        rows.append([stage, *_cells(one, shared, bool(tasks)), one.bottleneck])
    rows.append(
        ["all", *_cells(total(works), sum(shared for _, shared in stages.values()), bool(tasks)), total(works).bottleneck]
    )
    return table(rows, right=range(1, len(rows[0]) - 1))


def _cells(one: Total, shared: float, is_shared: bool) -> list[str]:
    resources = [hours(one.seconds[resource]) for resource in RESOURCES]
    elapsed = [hours(one.elapsed), *([hours(shared)] if is_shared else [])]
    return [f"{one.n:,}", *elapsed, size(one.written), size(one.read), *resources]


def otherwise(project: Project, works: Sequence[Work]) -> Iterator[tuple[str, Total]]:
    """Totals with narrower tokens and with fewer views, by what would be changed; only of what would change anything."""
    if any(one.dtype not in (NARROW, "int4") for one in project.encoders.by_name.values()):
        yield f"--dtype {NARROW}", total(project.narrow().works()[0])
    alone = total(project.without_crops().works()[0])
    if alone.written < total(works).written:
        yield "--views 1", alone


def saved(other: Mapping[str, Total], now: Total) -> list[str]:
    """Lines on what would be saved."""
    return [
        f"{option} would write {size(one.written)} instead of {size(now.written)}, read {size(one.read)} instead of "
        f"{size(now.read)}, and take {hours(one.elapsed)} hours instead of {hours(now.elapsed)}"
        for option, one in other.items()
    ]


def memory_line(machine: Machine) -> str:
    """What is read once, and what in every epoch."""
    return (
        f"features of up to {size(machine.features_nbytes)}, and vectors of heads without parameters of up to "
        f"{size(machine.vectors_nbytes)}, fit into the memory that is free here and are read once; others in every epoch"
    )


def loop_line(now: Total) -> str:
    """What the same results would take without stored features."""
    times = f", {now.looped / now.elapsed:.3g} times as long" if now.elapsed else ""
    return (
        f"with the encoder in the loop, images decoded and features computed in every epoch, the same heads would take "
        f"{hours(now.looped)} hours{times}; all seeds of a head side by side, as here"
    )


def left_out_lines(left_out: LeftOut) -> Iterable[str]:
    """Lines on what is not counted."""
    for head, encoders in left_out.absent.items():
        yield f"not trained, as the encoder lacks what it reads: {head} of {', '.join(sorted(encoders))}"
    for run, file in left_out.unknown.items():
        yield f"not counted: {run}, as there is no {file}, and its length is not known; put the file there"
