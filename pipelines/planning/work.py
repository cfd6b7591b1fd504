"""Work of a project: how long each part of it keeps which resource of this machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

RESOURCES = ("decoding", "encoder", "writing", "reading", "heads")
STAGES = ("extract", "probe-cls", "probe", "probe-own", "study", "extract-blocks", "study-blocks", "extract-whole", "attention")
EXTRACTIONS = ("extract", "extract-blocks", "extract-whole")


@dataclass(frozen=True)
class Work:
    """One run of a stage of dvc.yaml; of an extraction, one split.

    Attributes:
        stage: one of STAGES.
        name: the split, head or study.
        seconds: that each resource would need by itself, of RESOURCES.
        elapsed: seconds, where what can overlap does.
        written, read: bytes of features.
        looped: seconds that the same results take with the encoder in the loop, in every epoch; 0 for an extraction.
        crops: images in all views that go through the encoder; 0 unless it is an extraction.
    """

    stage: str
    name: str
    encoder: str
    dataset: str
    elapsed: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    written: float = 0.0
    read: float = 0.0
    looped: float = 0.0
    crops: int = 0


@dataclass(frozen=True)
class Total:
    """Several works.

    Attributes:
        n: how many.
        elapsed, looped: seconds.
        seconds: of each resource.
        written, read: bytes.
    """

    n: int
    elapsed: float
    looped: float
    seconds: Mapping[str, float]
    written: float
    read: float

    @property
    def bottleneck(self) -> str:
        """The resource that is needed for longest."""
        return max(RESOURCES, key=lambda resource: self.seconds[resource])


def total(works: Iterable[Work]) -> Total:
    """The sum of works, one after the other."""
    summed = list(works)
    return Total(
        len(summed),
        sum(work.elapsed for work in summed),
        sum(work.looped for work in summed),
        {resource: sum(work.seconds.get(resource, 0.0) for work in summed) for resource in RESOURCES},
        sum(work.written for work in summed),
        sum(work.read for work in summed),
    )


def by_stage(works: Sequence[Work], n_tasks: int = 1) -> dict[str, tuple[Total, float]]:
    """Total of each stage that has work, and its seconds where `n_tasks` machines share extractions."""
    totals = {stage: total(work for work in works if work.stage == stage) for stage in STAGES}
    return {
        stage: (one, one.elapsed / n_tasks if stage in EXTRACTIONS else one.elapsed) for stage, one in totals.items() if one.n
    }
