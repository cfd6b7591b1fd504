"""Heads as `beyondcls probe` keeps them, and whether a feature set is one that they can be measured on."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Int

from probe.class_maps import ClassMap, read_class_map, same_names
from probe.head import Head
from probe.record import DAMAGED, read_record
from probe.result_files import METRICS, read_result
from probe.saved import load_with
from probe.sources import JOINED, Source, check_class_numbers, check_trained_on
from probe.subsets import draws_of, k_shot, percentage
from store import BeyondClsError, FeatureStore

ENOUGH = 10_000  # images that a temperature is fitted to, at most


@dataclass(frozen=True, eq=False)
class Trained:
    """PROBES/ENCODER/HEAD with its weights.

    Attributes:
        result: the content of description.json.
        about: that of the first seed's file.
    """

    folder: Path
    result: dict[str, Any]
    about: dict[str, Any]
    by_seed: dict[int, Head]

    @property
    def classes(self) -> list[str]:
        """Names; numbers where it has none."""
        return self.about["classes"] or [str(label) for label in range(int(self.about["n_classes"]))]

    @property
    def reads(self) -> Sequence[str]:
        """Kinds of features, as `Source.arrays` takes them."""
        return next(iter(self.by_seed.values())).aggregator.reads

    def reading(self, stores: Iterable[FeatureStore]) -> "Trained":
        """The same, with vectors read in place of the tokens that they were made of where all of these sets have them."""
        sources, by_seed = [Source(store, block=self.about["block"]) for store in stores], deepcopy(self.by_seed)
        for head in by_seed.values():
            head.use_vectors(lambda kind: all(source.describes(kind) for source in sources))
        return replace(self, by_seed=by_seed)

    def source(self, store: FeatureStore) -> Source:
        """The features that it reads in a feature set.

        Raises:
            BeyondClsError: they are of another encoder, or otherwise preprocessed, or of another shape, or not there; or labels
                are no class numbers, or images have several.
        """
        recorded, source = self.about, Source(store, block=self.about["block"])
        if second := [kind for kind in self.reads if kind.startswith(JOINED)]:
            raise BeyondClsError(f"{self.folder} reads {second[0]!r}, of a second set, expected features of one; leave it out")
        check_trained_on(self.folder, recorded, store)
        if store.multilabel or recorded["multilabel"]:
            several = store.where if store.multilabel else self.folder
            raise BeyondClsError(f"{several} has several labels an image, expected one; sets of those are not scored")
        check_class_numbers(store)
        source.check_width(self.reads, int(recorded["dim"]))
        if recorded["n_patches"] not in (None, source.n_patches):
            raise BeyondClsError(
                f"{store.where} has {source.n_patches} patches an image, expected {recorded['n_patches']} as {self.folder}; "
                "extract the images with the input size of the training images"
            )
        return source

    def class_map(self, store: FeatureStore, file: Path | None) -> ClassMap:
        """What it chooses among on a feature set.

        Raises:
            BeyondClsError: as `same_names`, or `read_class_map`.
        """
        named = store.attributes.get("classes")
        names = named or [str(label) for label in range(store.n_classes)]
        if file is not None:
            return read_class_map(file, self.classes, names)
        try:
            shown = np.unique(store.labels[store.labelled])
            return same_names(self.classes, names, shown, bool(named or self.about["classes"]))
        except BeyondClsError as error:
            raise BeyondClsError(f"{store.where}: {error}") from error

    def unseen(self, store: FeatureStore, seed: int) -> Int[np.ndarray, "n"]:
        """Labelled rows of a feature set that a seed's head was not trained on, ENOUGH at most; of other sets any.

        Images that were held out while settings were selected are not among them: all train in the end.

        Raises:
            BeyondClsError: there are none, or it is not known which they are.
        """
        rows, subset = np.flatnonzero(store.labelled), self.result.get("subset") or {}
        if store.spec.key == self.result["features"]["training"]:
            of = seed if subset.get("seed") == "own" else subset.get("seed", seed)
            if "percent" in subset:
                learnt = percentage(store.labels, subset["percent"], of, rows)
            else:
                learnt = k_shot(store.labels, subset["k_shot"], of, rows) if "k_shot" in subset else rows
            other = "give --held-out a feature set of other images"
            try:
                request = read_record(self.folder)["request"]
                drawn = dict(zip(self.result["seeds"], request.get("draws", ()), strict=False))
                recorded = drawn.get(seed, request["training"]["rows"])
            except DAMAGED as error:
                raise BeyondClsError(f"{self.folder} does not say which images it was trained on ({error}); {other}") from error
            if xxhash.xxh3_128_hexdigest(learnt.tobytes()) != recorded:
                raise BeyondClsError(
                    f"{self.folder} was trained on a list of images of {store.where}, expected all, a percentage or k of each "
                    f"class, as it is not known which are left; {other}"
                )
            rows = np.setdiff1d(rows, learnt)
            if not len(rows):
                raise BeyondClsError(
                    f"{self.folder} was trained on all {len(learnt):,} images of {store.where}, so none is held out to fit a "
                    f"temperature to; train it with --percent 90, or {other}"
                )
        return np.sort(rows[draws_of(rows, 0, "temperature").argsort()[:ENOUGH]])


def load_trained(folder: Path, own: str | None = None) -> Trained:
    """A head with its seeds.

    Raises:
        BeyondClsError: its weights were not kept, or files are missing or damaged.
    """
    result = read_result(folder / METRICS)
    files = [folder / f"trained/seed{seed}" for seed in result.get("seeds", ())]
    if not files or not all(file.with_suffix(".safetensors").is_file() for file in files):
        raise BeyondClsError(
            f"{folder} has no weights, expected trained/seed*.safetensors; fetch them (`dvc pull`), or train it in steps: k-NN "
            "and other protocols without gradient steps keep none"
        )
    loaded = {seed: load_with(file, own) for seed, file in zip(result["seeds"], files, strict=True)}
    return Trained(folder, result, next(iter(loaded.values()))[1], {seed: head for seed, (head, _) in loaded.items()})
