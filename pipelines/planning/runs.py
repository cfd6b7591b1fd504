"""Runs of `beyondcls probe` that a parameter file asks for, and what their heads read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.parameters.common import common_layers
from pipelines.parameters.groups import GROUPS
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.params import section
from pipelines.parameters.studies import PLACES, plans_of_study
from pipelines.planning.encoders import Encoders, Measured
from pipelines.planning.extractions import n_views
from probe.aggregators import make_aggregator
from probe.grid import HeadPlan
from store.format.layout import SCALE, ArrayName

JOINED = "joined/"
TOKENS = ("patch", "cls", "registers")
STAGE_OF = {
    "cls_heads": "probe-cls",
    "heads": "probe",
    "own_heads": "probe-own",
    "studies": "study",
    "block_studies": "study-blocks",
}


@dataclass(frozen=True)
class Run:
    """One run of `beyondcls probe`.

    Attributes:
        stage: of dvc.yaml.
        name: of the head or the study.
        measured: its encoder.
        joined: the encoder whose features are read as `joined/…`, if there is one.
        plans: of its heads, by name.
        of_run: parameters of the whole run.
        n_views: stored views of the training images.
    """

    stage: str
    name: str
    encoder: str
    dataset: str
    measured: Measured
    joined: Measured | None
    plans: Mapping[str, HeadPlan]
    of_run: Mapping[str, Any]
    n_views: int = 1

    def reads(self, head: str) -> tuple[str, ...]:
        """Kinds of features that a head reads, as `Aggregator.reads`.

        Raises:
            BeyondClsError: unknown aggregator or options, or values that do not suit the encoder's width.
        """
        patch, cls = self._array("patch"), self._array("cls")
        tokens = self.measured.shapes[next(name for name in (patch, cls) if name is not None)]
        spec = self.plans[head].head
        with torch.device("meta"):  # takes no memory
            n_patches = tokens[0] if patch is not None else None
            return tuple(make_aggregator(spec.aggregator, tokens[-1], n_patches, **spec.options).reads)

    def shapes(self, head: str) -> dict[str, tuple[int, ...]] | None:
        """Shape of one image, by kind; None if the encoder does not have one of them."""
        arrays = {kind: self._array(kind) for kind in self.reads(head)}
        return (
            {kind: self._of(kind).shapes[name] for kind, name in arrays.items() if name is not None}
            if None not in arrays.values()
            else None
        )

    def nbytes(self, heads: Iterable[str]) -> int:
        """Bytes of one view of an image that these heads read together."""
        nbytes = 0
        for kind in sorted({kind for head in heads for kind in self.reads(head)}):
            name, stored = self._array(kind), self._of(kind).nbytes
            nbytes += stored[str(name)] + stored.get(f"{name}{SCALE}", 0)
        return nbytes

    def encoders(self, heads: Iterable[str]) -> list[Measured]:
        """Encoders whose features these heads read."""
        is_joined = {kind.startswith(JOINED) for head in heads for kind in self.reads(head)}
        return [self.measured, *([self.joined] if self.joined is not None and True in is_joined else [])]

    def _of(self, kind: str) -> Measured:
        return self.joined if kind.startswith(JOINED) and self.joined is not None else self.measured

    def _array(self, kind: str) -> str | None:
        """The array of a kind in view 0; None if there is none. A kind that names no block means the one that is probed."""
        measured, name = self._of(kind), ArrayName.parse(kind.removeprefix(JOINED))
        blocks = [block for array in measured.nbytes if (block := ArrayName.parse(array).block) is not None]
        block = None if kind.startswith(JOINED) else self.of_run.get("block")
        block = max(blocks) if block is None or block < 0 else block
        array = str(replace(name, block=block if name.block is None else name.block, view=0))
        return array if array in measured.nbytes else None


def runs(params: Mapping[str, Any], given: Mapping[str, Any], encoders: Encoders, datasets: Iterable[str]) -> Iterator[Run]:
    """All runs of heads and studies.

    Raises:
        BeyondClsError: unknown names, invalid values, or values that exclude each other.
    """
    names = list(datasets)
    for encoder, measured in encoders.by_name.items():
        for dataset in names:
            layers, views = common_layers(params, encoder, dataset), n_views(params, given, encoder, dataset, "train")
            for group in GROUPS:
                for head in section(params, group):
                    plans, of_run = plans_and_run([head], params, {}, {}, layers)
                    yield Run(STAGE_OF[group], head, encoder, dataset, measured, None, plans, of_run, views)
    for place in PLACES:
        for study in section(params, place):
            yield _study(params, given, encoders, place, study)


def _study(params: Mapping[str, Any], given: Mapping[str, Any], encoders: Encoders, place: str, study: str) -> Run:
    entry = section(params, place, study)
    encoder, dataset, joined = entry["encoder"], entry["dataset"], entry.get("joined")
    plans, of_run = plans_of_study(params, study, None, encoder, dataset)
    measured = encoders.by_study[study] if place == "block_studies" else encoders.by_name[encoder]
    second = None if joined is None else encoders.by_name[joined]
    views = n_views(params, given, encoder, dataset, "train")
    return Run(STAGE_OF[place], study, encoder, dataset, measured, second, plans, of_run, views)
