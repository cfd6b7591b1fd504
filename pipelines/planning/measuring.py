"""Measuring what a project needs on this machine, and saying what it costs."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from extract.plan import existing_folder
from pipelines.parameters.params import read_params
from pipelines.planning import words
from pipelines.planning.ceilings import Demand, ceilings, ceilings_table
from pipelines.planning.disk import measure_disk
from pipelines.planning.encoders import SAMPLE, Encoders, Measured, measure_encoders
from pipelines.planning.flops import estimated_seconds, flops, flops_table
from pipelines.planning.gpus import GPUS, SHARE, Gpu, gpu_of
from pipelines.planning.machine import Machine
from pipelines.planning.project import MeasuredRates, Project, check_project
from pipelines.planning.sizes import all_sizes
from pipelines.planning.stand_in import HEIGHT, WIDTH, write_stand_ins
from pipelines.planning.trainings import LeftOut
from pipelines.planning.work import Total, Work, by_stage, total
from pipelines.process.device import choose_device
from probe.pooled import MEMORY_SHARE as VECTORS_SHARE
from store.loading.placement import MEMORY_SHARE as FEATURES_SHARE
from store.loading.placement import free_memory

UNCOUNTED = "compose, extract-composed, blocks, divergence, localise, the stages of dense tasks and report are not counted"


def plan_project(
    params_file: Path,
    out: Path,
    given: Mapping[str, Any],
    device: str,
    n_sampled: int | None,
    n_tasks: int,
    gpu: str | None,
    json_file: Path | None,
    say: Callable[[str], None],
) -> None:
    """Measure, and say what all stages cost.

    Args:
        out: where features would be.
        given: options of EXTRACTING on the command line.
        device: as for `choose_device`.
        n_sampled: images for each encoder; as SAMPLE says by default.
        n_tasks: machines that would share extractions.
        gpu: a name in GPUS, of which ceilings are said; that of the device by default.
        json_file: also write the numbers there.

    Raises:
        BeyondClsError: a parameter file that describes no project, or what an extraction refuses.
    """
    params = read_params(params_file)
    check_project(params, params_file)
    place = choose_device(device)
    planned_gpu = GPUS[gpu or gpu_of(place)]
    sizes, images = all_sizes(params)
    folder = existing_folder(out)
    with tempfile.TemporaryDirectory(prefix="beyondcls-plan-") as temporary:
        source = images.source if images is not None else f"stand-in JPEGs of {WIDTH} x {HEIGHT}, as no data set is there"
        if images is None:
            from extract.datasets import open_images

            images = open_images(
                str(write_stand_ins(Path(temporary) / "images", n_sampled or SAMPLE[place.type])), form="folder"
            )
        encoders = measure_encoders(params, images, given, device, folder, n_sampled, say)
    say("measuring the disk …")
    memory, own = free_memory(torch.device("cpu")), free_memory(place)
    machine = Machine(str(place), *measure_disk(folder), FEATURES_SHARE * max(memory, own), VECTORS_SHARE * own)
    project = Project(params, given, encoders, sizes, machine, MeasuredRates(place))
    say("measuring heads …")
    works, left_out = project.works()
    other, now = dict(words.otherwise(project, works)), total(works)
    threads = f", {torch.get_num_threads()} threads" if place.type == "cpu" else ""
    say(f"\nhours are {'GPU-hours of one such GPU' if place.type == 'cuda' else 'those of this machine, without a GPU'}")
    say(f"measured on {place}{threads}, by {_sampled(encoders)} images an encoder: {source}")
    for line in _lines(project, works, other, now, left_out, n_tasks, planned_gpu):
        say(line)
    if json_file is not None:
        about = {"device": str(place), "images": source, "n_tasks": n_tasks}
        json_file.write_text(
            json.dumps(about | numbers(project, works, other, left_out, n_tasks, planned_gpu), indent=1) + "\n"
        )


def _sampled(encoders: Encoders) -> str:
    """`8`, or `2 to 8`."""
    counts = [measured.rates.n_sampled for measured in encoders.by_name.values()]
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(max(counts))


def _lines(
    project: Project, works: Sequence[Work], other: Mapping[str, Total], now: Total, left_out: LeftOut, n_tasks: int, gpu: Gpu
) -> Iterator[str]:
    """All tables, and what is left to say."""
    for lines in (
        words.images_table(project),
        words.encoders_table(project),
        words.extraction_table(project, works),
        flops_table(project, works, gpu),
        _ceilings_table(project, gpu),
        words.training_table(works),
        words.stages_table(works, n_tasks),
        [
            words.memory_line(project.machine),
            *words.saved(other, now),
            words.loop_line(now),
            *words.left_out_lines(left_out),
            UNCOUNTED,
        ],
    ):
        yield from ("", *lines)


def _demand(measured: Measured) -> Demand:
    return Demand(measured.cost, measured.input_size, sum(measured.nbytes.values()))


def _ceilings_table(project: Project, gpu: Gpu) -> list[str]:
    measured = project.encoders.by_name
    decoded = {name: one.rates.decoded_per_s for name, one in measured.items()}
    demands = {name: _demand(one) for name, one in measured.items()}
    return ceilings_table(demands, decoded, project.machine.written_per_s, gpu)


def numbers(
    project: Project, works: Sequence[Work], other: Mapping[str, Total], left_out: LeftOut, n_tasks: int, gpu: Gpu
) -> dict[str, Any]:
    """All numbers as plain values; seconds and bytes."""
    encoders = {**project.encoders.by_name, **{f"block_studies.{n}": m for n, m in project.encoders.by_study.items()}}
    stages, counted = by_stage(works, n_tasks), flops(project, works)
    operations = sum(sum(one.values()) for one in counted.values())
    return {
        "machine": asdict(project.machine),
        "datasets": {name: asdict(sizes) for name, sizes in project.sizes.items()},
        "encoders": {
            name: {
                "rates": asdict(one.rates),
                "dtype": one.dtype,
                "nbytes": dict(one.nbytes),
                "flops": one.cost and one.cost.flops,
            }
            for name, one in encoders.items()
        },
        "estimate": {"gpu": str(gpu), "share": SHARE, "flops": counted, "seconds": estimated_seconds(operations, gpu)},
        "ceilings": {
            name: ceilings(_demand(one), gpu, one.rates.decoded_per_s, project.machine.written_per_s)
            for name, one in project.encoders.by_name.items()
        },
        "works": [asdict(work) for work in works],
        "stages": {
            name: {**asdict(one), "elapsed_shared": shared, "bottleneck": one.bottleneck}
            for name, (one, shared) in stages.items()
        },
        "total": {**asdict(total(works)), "elapsed_shared": sum(shared for _, shared in stages.values())},
        "otherwise": {option: asdict(one) for option, one in other.items()},
        "absent": {head: sorted(encoders_of) for head, encoders_of in left_out.absent.items()},
        "unknown": left_out.unknown,
    }
