"""What each resource allows by itself, before a GPU is there: the lowest of these ceilings binds."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from extract.encoders.cost import Cost
from pipelines.planning.gpus import SHARE, Gpu
from pipelines.planning.words import rate
from pipelines.store.table import size, table

BATCH = 128  # images among which the reading of weights is divided
OF_GPU = ("PCIe", "FLOP/s", "memory")
CEILINGS = ("decoding", *OF_GPU, "writing")


@dataclass(frozen=True)
class Demand:
    """What the extraction of one crop needs.

    Attributes:
        cost: of the encoder; None if it could not be counted.
        input_size: channels, height and width; pixels go to the device in 8 bits.
        nbytes: that are copied back and written.
    """

    cost: Cost | None
    input_size: tuple[int, ...]
    nbytes: float


def ceilings(demand: Demand, gpu: Gpu, decoded_per_s: float, written_per_s: float) -> dict[str, float]:
    """Crops a second that each resource of CEILINGS allows; those of which the demand is not known are left out.

    Args:
        decoded_per_s: crops that this machine decodes.
        written_per_s: bytes that its disk takes.
    """
    allowed = {
        "decoding": decoded_per_s,
        "PCIe": gpu.link_per_s / max(prod(demand.input_size), demand.nbytes),  # both directions at once
        "writing": written_per_s / demand.nbytes,
    }
    if demand.cost is not None:
        allowed["FLOP/s"] = SHARE * gpu.flops_per_s / demand.cost.flops
        allowed["memory"] = gpu.memory_per_s / (demand.cost.moved_nbytes + demand.cost.weights_nbytes / BATCH)
    return allowed


def ceilings_table(
    demands: Mapping[str, Demand], decoded_per_s: Mapping[str, float], written_per_s: float, gpu: Gpu
) -> list[str]:
    """Ceilings of each encoder, and what it would write if the GPU alone set the pace."""
    rows = [[f"images/s with {gpu.title}", *CEILINGS, "binds", "writes at the GPU's pace"]]
    for name, demand in demands.items():
        allowed = ceilings(demand, gpu, decoded_per_s[name], written_per_s)
        cells = [rate(allowed[resource]) if resource in allowed else "not counted" for resource in CEILINGS]
        rows.append([name, *cells, _lowest(allowed), f"{size(_pace(allowed) * demand.nbytes)}/s"])
    return [
        *table(rows, right=(*range(1, 1 + len(CEILINGS)), 2 + len(CEILINGS))),
        f"decoding and writing were measured on this machine; the others follow from the data sheet: {gpu.link_per_s / 1e9:g} "
        f"GB/s over PCIe each way, {SHARE:.0%} of {gpu.flops_per_s / 1e12:.0f} TFLOP/s in bf16, "
        f"{gpu.memory_per_s / 1e12:g} TB/s of its memory; statistics are not counted",
    ]


def ceilings_line(demand: Demand, gpu: Gpu, decoded_per_s: float, written_per_s: float) -> str:
    """The same of one extraction in words, first what binds."""
    allowed = ceilings(demand, gpu, decoded_per_s, written_per_s)
    listed = ", ".join(f"{resource} {rate(allowed[resource])}" for resource in CEILINGS if resource in allowed)
    pace = _pace(allowed)
    return (
        f"{_lowest(allowed)}, at {rate(min(allowed.values()))} crops/s with {gpu} ({listed}); {gpu.title} alone would "
        f"make {rate(pace)}, which write {size(pace * demand.nbytes)}/s"
    )


def _lowest(allowed: Mapping[str, float]) -> str:
    return min(allowed, key=lambda resource: allowed[resource])


def _pace(allowed: Mapping[str, float]) -> float:
    """Of the GPU and its link alone."""
    return min(allowed[resource] for resource in OF_GPU if resource in allowed)
