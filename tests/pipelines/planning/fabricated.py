"""A project of round numbers, so that its costs can be counted by hand."""

from collections.abc import Mapping
from typing import Any

from extract.plan import Rates
from pipelines.planning.encoders import Encoders, Measured
from pipelines.planning.machine import Machine
from pipelines.planning.project import Project
from pipelines.planning.sizes import PUBLISHED, Sizes
from pipelines.planning.work import Work
from probe.grid import HeadSpec
from probe.rates import HeadRate

# Bytes of an image: 1,000 of patch tokens, 10 of [cls], 4 of a statistic, 6 of a map, 8 of its id.
NBYTES = {
    "patch/block1/view0": 1000,
    "cls/block1/view0": 10,
    "statistics/cls_self/view0": 4,
    "attention/cls/block1/view0": 6,
    "images/id": 8,
}
NARROW = {**NBYTES, "patch/block1/view0": 500, "patch/block1/view0-scale": 12}
SHAPES = {"patch/block1/view0": (4, 8), "cls/block1/view0": (8,), "attention/cls/block1/view0": (2, 4)}
RATES = Rates(n_sampled=8, decoded_per_s=100.0, encoded_per_s=20.0, computed_per_s=10.0)
ENCODER = Measured(RATES, NBYTES, NARROW, SHAPES, "float16")
DEEPER = Measured(RATES, {**NBYTES, "patch/block0/view0": 1000}, NARROW, {**SHAPES, "patch/block0/view0": (4, 8)}, "float16")
WITHOUT_CLS = Measured(
    RATES,
    {name: n for name, n in NBYTES.items() if "cls" not in name},
    NARROW,
    {"patch/block1/view0": (4, 8)},
    "float16",
)
# It writes 10 kB/s and reads 100 kB/s; features are streamed, and 1 MB of vectors is kept.
MACHINE = Machine("cpu", written_per_s=1e4, read_per_s=1e5, features_nbytes=0, vectors_nbytes=1e6)
LEARN, JUDGE, POOL = 0.01, 0.002, 0.001  # seconds of an image and a member


def rate(spec: HeadSpec, shapes: Mapping[str, tuple[int, ...]], n_members: int, n_classes: int, multilabel: bool) -> HeadRate:
    """[cls], averages and maps have no parameters; each member takes as long."""
    pool_s = 0.0 if spec.aggregator == "abmilp" else POOL
    return HeadRate(n_members * LEARN, n_members * JUDGE, pool_s, 8)


def project(
    machine: Machine = MACHINE,
    given: Mapping[str, Any] | None = None,
    encoders: Mapping[str, Measured] | None = None,
    **params: Any,
) -> Project:
    """One encoder, one data set of 1,000 and 100 images, four epochs and three seeds; `params` are more sections."""
    measured = dict(encoders or {"e": ENCODER})
    about: dict[str, Any] = {
        "data": "nowhere",
        "datasets": {"d": {}},
        "encoders": {name: {"block": 1} for name in measured},
        "probe": {"epochs": 4, "warmup_epochs": 0, "seeds": [0, 1, 2]},
        **params,
    }
    sizes = {name: Sizes(1000, 100, 5, False, PUBLISHED) for name in about["datasets"]}
    studies = dict.fromkeys(about.get("block_studies", ()), DEEPER)
    return Project(about, given or {}, Encoders(measured, studies), sizes, machine, rate)


def work(planned: Project, stage: str, name: str, encoder: str = "e") -> Work:
    """The one work of this name."""
    (one,) = (w for w in planned.works()[0] if (w.stage, w.name, w.encoder) == (stage, name, encoder))
    return one
