"""Detectors from feature sets, without the encoder: training, COCO's average precision, and the files of both."""

import csv
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from jaxtyping import Bool

from probe.checkpoint import Checkpoint, Unfinished
from probe.detection.average_precision import EXAMPLES, AveragePrecision, coco_truths, examples
from probe.detection.detected import detections
from probe.detection.detector import LOSSES, Detector, save_detector
from probe.detection.recipe import DetectionRecipe, DetectorOptions
from probe.detection.sets import ImagesWithObjects, check_sets, notes_on, survey
from probe.detection.targets import detection_batches
from probe.detection.training import new_detector, train_detector
from probe.grid import Epoch, Member
from probe.head import FinalNorm
from probe.result_files import METRICS, computed_by, over_seeds, result_folder, write_result
from probe.sources import Source
from probe.subsets import without_each
from store import BeyondClsError, StoreError
from store.format.pretraining import pretraining_fields
from store.places.disk import check_writable

Curve = list[dict[str, float]]
Measures = dict[str, dict[str, float | None]]  # of boxes and masks, by name
HEAD = "detector"  # what trains, for `on_epoch`


@dataclass
class Detection:
    """Detectors of all seeds for one pair of sets, and how they are trained and measured.

    Attributes:
        training, test: images of one encoder.
        recipe, options: how detectors are trained, and what they are built from.
        seeds: each trains a detector of its own: initial parameters, order of the images, regions that are drawn.
        views: of the training images; each epoch shows one of them of each image, at random.
        block: whose tokens are read, of both sets; by default the deepest one of the training set.
        device: where detectors train.
        placement: of the tokens, as for `store.Loader`.
        workers: processes that decode masks, in addition to this one; results do not depend on it.
        n_examples: test images whose objects are kept with what is found in them.
        unfinished: for checkpoints; None for none.
        progress: called with the number of steps and test images since the last call (`n_units` in all).
        on_epoch: called after each epoch of each seed, as of `probe`; the name of its head is "detector".
    """

    training: ImagesWithObjects
    test: ImagesWithObjects
    recipe: DetectionRecipe = field(default_factory=DetectionRecipe)
    options: DetectorOptions = field(default_factory=DetectorOptions)
    seeds: Sequence[int] = (0,)
    views: Sequence[int] = (0,)
    block: int | None = None
    device: str | torch.device = "cpu"
    placement: Any = "auto"
    workers: int = 0
    n_examples: int = 6
    unfinished: Unfinished | None = None
    progress: Callable[[int], None] = lambda _: None
    on_epoch: Callable[[Epoch], None] | None = None

    def __post_init__(self) -> None:
        """Check what was asked for.

        Raises:
            BeyondClsError: masks where the set has none, no seed or one twice, or a view or block that is not stored.
        """
        check_sets(self.training.store, self.test.store)
        if self.options.masks and not all(images.store.instances.has_masks for images in (self.training, self.test)):
            self.options = replace(self.options, masks=False)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BeyondClsError(f"seeds is {tuple(self.seeds)}, expected whole numbers, each once, e.g. 0,1,2")
        n_views = self.training.store.spec.n_views
        if not self.views or not all(0 <= view < n_views for view in self.views):
            raise StoreError(
                f"views is {tuple(self.views)}, expected numbers from 0 to {n_views - 1}, the views that "
                f"{self.training.store.where} has; extract it with --views"
            )
        if self.block is None:  # the deepest one of the test set may be another
            self.block = self.training.store.spec.deepest
        for images in (self.training, self.test):
            images.store.tokens("patch", self.block)

    @property
    def n_units(self) -> int:
        """Steps and test images of all seeds."""
        steps = -(-len(self.training.rows) // self.recipe.batch_size) * self.recipe.epochs
        return (steps + len(self.test.rows)) * len(self.seeds)

    @property
    def description(self) -> dict[str, Any]:
        """The encoder that a detector needs, and its classes; plain values."""
        described = Source(self.training.store, block=self.block).description
        return {**described, "classes": list(self.training.store.instances.classes)}

    def request(self) -> dict[str, Any]:
        """Everything that the results depend on, as plain values."""
        request: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "detector": self.options.to_dict(),
            "views": list(self.views),
            "encoder": self.description,
        }
        for name, one in (("training", self.training), ("test", self.test)):
            rows = xxhash.xxh3_128_hexdigest(np.asarray(one.rows, np.int64).tobytes())
            request[name] = {"key": one.store.spec.key, "truths": dict(one.store.spec.truths), "rows": rows}
        return dict(json.loads(json.dumps(request)))

    def new(self, seed: int) -> Detector:
        """An untrained detector."""
        store, norm = self.training.store, None
        if self.options.final_norm and store.attributes["norm_eps"] is not None:
            norm = FinalNorm.from_store(store)
        given = store.tokens("patch", self.block).shape[-1], store.grid, len(store.instances.classes), self.options, norm
        return new_detector(lambda: Detector(*given), seed).to(self.device)

    def train(self, seed: int) -> tuple[Detector, Curve]:
        """A trained detector and its curve; goes on from the last checkpoint of this request.

        Raises:
            BeyondClsError: as `train_detector`.
        """
        detector = self.new(seed)
        shown: dict[str, Any] = {"views": self.views, "block": self.block, "masks": self.options.masks}
        placed: dict[str, Any] = {"workers": self.workers, "device": self.device, "placement": self.placement}
        batches = detection_batches(self.training.store, self.training.rows, self.recipe.batch_size, **shown, **placed)
        described = {"seed": seed, **self.request()}
        checkpoint = None if self.unfinished is None else Checkpoint(self.unfinished.path_of(described))
        member = Member(HEAD, self.recipe.lr, self.recipe.weight_decay, seed)

        def after_epoch(entry: dict[str, float], is_replayed: bool) -> None:
            if self.on_epoch is not None:
                self.on_epoch(Epoch(member, "training", entry, is_replayed))

        calls: dict[str, Any] = {"checkpoint": checkpoint, "after_step": self.progress, "after_epoch": after_epoch}
        return detector, train_detector(detector, batches, self.recipe, seed, **calls)

    def measure(self, detector: Detector) -> tuple[Measures, list[Measures], list[dict[str, Any]]]:
        """AP of boxes, and of masks if the detector has any: of all test images, and without each group of them in turn
        (`probe.subsets`); and its detections in COCO's format of results.
        """
        results, ids = list[dict[str, Any]](), self.test.image_ids
        where: dict[str, Any] = {"block": self.block, "device": self.device, "placement": self.placement}
        for one, image_id in zip(detections(detector, self.test.store, self.test.rows, **where), ids, strict=True):
            results += one.to_coco(image_id)
            self.progress(1)
        truths = coco_truths(self.test.store.instances, self.test.rows, ids)
        kinds: tuple[Literal["box", "mask"], ...] = ("box", "mask") if detector.options.masks else ("box",)
        of_kinds = {kind: AveragePrecision(truths, results, kind) for kind in kinds}

        def measured(chosen: Bool[np.ndarray, "N"]) -> Measures:
            return {kind: one.of(list(itertools.compress(ids, chosen.tolist()))) for kind, one in of_kinds.items()}

        return measured(np.ones(len(ids), bool)), without_each(len(ids), measured), results


def detect(detection: Detection, out: Path, notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train a detector for each seed, measure it, and write all results into `out`; returns what describes them.

    Writes `trained/seed<S>.safetensors` and `.json` (`load_detector`), `curves.csv` (seed, epoch, lr, loss and its parts),
    `detections.json` (those of the first seed in the test images, in COCO's format of results), `examples.json` (those in a few
    test images, with their objects), `metrics.json` (means) and `description.json` (all else). What an earlier run wrote
    there is replaced. A run that was killed goes on from its last checkpoint (in `.unfinished` next to `out`) when it is
    started again.

    Args:
        notes: written into description.json too, e.g. the command.

    Raises:
        BeyondClsError: sets that do not belong together, nothing can be written to `out`, or a seed diverged.
    """
    check_writable(out)
    unfinished = Unfinished.beside(out)
    detection = replace(detection, unfinished=unfinished)
    test, described = detection.test, {**detection.description, "recipe": asdict(detection.recipe)}
    result = result_folder(out, test.store.attributes["encoder"], ("trained/seed*.json", "trained/seed*.safetensors"))
    curves = list[dict[str, float]]()
    measured, without = list[Measures](), list[list[Measures]]()
    with result.written() as folder:
        for seed in detection.seeds:
            detector, curve = detection.train(seed)
            measures, without_groups, results = detection.measure(detector)
            curves += [{"seed": seed, **entry} for entry in curve]
            measured.append(measures)
            without.append(without_groups)
            save_detector(folder / f"trained/seed{seed}", detector, {**described, "seed": seed, "result": measures})
            if seed == detection.seeds[0]:
                (folder / "detections.json").write_text(json.dumps(results) + "\n")
                (folder / EXAMPLES).write_text(json.dumps(examples(test, results, detection.n_examples)) + "\n")
        of_kinds = {kind: _over_seeds(kind, measured, without) for kind in measured[0]}
        content = {**_describe(detection, detector, of_kinds), **(notes or {}), **computed_by(torch.device(detection.device))}
        with (folder / "curves.csv").open("w", newline="") as file:
            names = [name for name in ("seed", "epoch", "lr", "loss", *LOSSES) if name in curves[0]]
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(curves)
        write_result(folder / METRICS, content)
    unfinished.remove()
    return content


def _describe(detection: Detection, detector: Detector, of_kinds: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured, and what describes it."""
    training, test = detection.training, detection.test
    surveys = {"training": survey(training.store, training.rows), "test": survey(test.store, test.rows)}
    notes = [note for name, counted in surveys.items() for note in notes_on(counted, name)]
    if not detector.options.masks:
        notes.append("boxes alone: no masks are learnt or measured")
    if set(detection.views) == {0}:
        notes.append("every epoch shows the same view of each image: nothing is augmented")
    return {
        "task": "detection",
        "encoder": test.store.attributes["encoder"],
        **pretraining_fields(test.store.attributes),
        "features": {"training": training.store.spec.key, "test": test.store.spec.key},
        "data": test.store.spec.data,
        **of_kinds,
        "seeds": list(detection.seeds),
        "recipe": asdict(detection.recipe),
        "detector": detector.options.to_dict() | {"final_norm": detector.final_norm is not None},
        "n_parameters": sum(p.numel() for p in detector.parameters()),
        "grid": list(detector.grid),
        "frame": list(detector.frame),
        "views": list(detection.views),
        "block": detection.description["block"],
        "n_training": len(training.rows),
        "n_test": len(test.rows),
        "classes": detection.description["classes"],
        "objects": surveys,
        "notes": notes,
    }


def _over_seeds(kind: str, of_seeds: Sequence[Measures], without: Sequence[Sequence[Measures]]) -> dict[str, Any]:
    """Each measure of boxes or masks, as `over_seeds` gives it; null where no object has that size."""
    measures: dict[str, Any] = {}
    for name in of_seeds[0][kind]:
        values = [value for one in of_seeds if (value := one[kind][name]) is not None]
        left_out = [[math.nan if (value := one[kind][name]) is None else value for one in groups] for groups in without]
        measures[name] = over_seeds(values, left_out) if values else None
    return measures
