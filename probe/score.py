"""Trained heads on other test sets: nothing is trained, and no encoder runs."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from probe.calibration import bins_of_mass, bins_of_width, brier_scores, calibration_error, fit_temperature, reliability
from probe.class_maps import ClassMap
from probe.evaluate import balanced_accuracy
from probe.metrics import PER_IMAGE
from probe.result_files import BALANCED, METRICS, NLL, computed_by, is_measure, over_seeds, read_result, write_result
from probe.results import digest_of_images, folder_of_head, write_correct
from probe.sources import Source
from probe.trained import Trained, load_trained
from store import BeyondClsError, FeatureStore
from store.places.disk import check_writable

SCORED = "scored"  # in description.json of what is written here, and of nothing else
TEMPERED = "tempered_"  # before names of measures of logits / T
BATCH_SIZE = 256
Key = tuple[Trained, int]  # a head, and one of its seeds


@dataclass(frozen=True, eq=False)
class Judged:
    """What was measured of a head on a test set.

    Attributes:
        source: the images that it is measured on.
        labels: of each the choice of the head that is right.
        by_seed: values by image of each seed: PER_IMAGE, NLL, "brier" and "confidence"; the last three also as "tempered_…".
    """

    source: Source
    labels: Int64[np.ndarray, "N"]
    by_seed: list[dict[str, np.ndarray]]

    @property
    def correct(self) -> Bool[np.ndarray, "S N"]:
        return np.stack([images["top1"] for images in self.by_seed])


@torch.no_grad()
def score(
    heads: Sequence[Trained | str | os.PathLike[str]],
    tests: Mapping[str, FeatureStore],
    out: str | os.PathLike[str],
    maps: Mapping[str, Path] = {},
    held_out: FeatureStore | None = None,
    *,
    written: Collection[str] | None = None,
    device: str | torch.device = "cpu",
    notes: Mapping[str, Any] | None = None,
) -> dict[Path, dict[str, Any]]:
    """Measure heads on test sets, whose features are read once for all heads; returns what describes each result, by folder.

    Writes `out`/NAME/ENCODER/HEAD: metrics.json and description.json as of a trained head, with measures of this set: those of
    PER_IMAGE and balanced accuracy, percent; "nll", nats; "brier", 0…2; "ece" and "ece_mass", calibration errors in 15 bins of
    equal width, and of as many images each, percent; these four also as `tempered_nll` and so on, of logits divided by
    "temperature", if images are held out; and "gap", top-1 less that of the first test set, points. Where a map restricts
    classes, the gap is to the images of the first set that are of them, with the same choices. trained/correct.npz has
    `correct`, and of these images `reference`.

    Args:
        heads: PROBES/ENCODER/HEAD, folders of trained heads, or what `load_trained` made of these.
        tests: feature sets by name.
        maps: files of classes by the name of a test set, as `probe.class_maps.read_class_map` takes them.
        held_out: to fit temperatures to: the training images, of which those count that a head was not trained on; or others.
        written: names of the test sets of which results are written; all by default.
        notes: written into description.json, too.

    Raises:
        BeyondClsError: heads and feature sets do not fit each other, or a folder has what is no score.
    """
    check_writable(out := Path(out))
    sets = [*tests.values(), *([] if held_out is None else [held_out])]
    opened = [(head if isinstance(head, Trained) else load_trained(Path(head))).reading(sets) for head in heads]
    kept = [name for name in tests if written is None or name in written]
    if same := [name for name, store in tests.items() if held_out is not None and store.spec.key == held_out.spec.key]:
        raise BeyondClsError(f"held-out images are test set {same[0]}, expected some that nothing is measured on; give others")
    places = {(name, head): out / name / head.folder.parent.name / head.folder.name for name in kept for head in opened}
    for place in places.values():
        if (place / METRICS).is_file() and SCORED not in read_result(place / METRICS):
            raise BeyondClsError(f"{place} holds a head that was trained, expected a score or nothing; give another --out")
    results = {(n, h): folder_of_head(place, tests[n].attributes["encoder"]) for (n, h), place in places.items()}
    sources = {(name, head): head.source(store) for name, store in tests.items() for head in opened}
    choices = {(name, head): head.class_map(tests[name], maps.get(name)) for name, head in sources}
    first, on = next(iter(tests)), torch.device(device)
    if len(tests) > 1 and any(len(group) > 1 for head in opened for group in choices[first, head].groups):
        raise BeyondClsError(
            f"{maps[first]} joins classes of {first}, the first test set, which others are compared with; expected one class "
            "of the head for each of its own; name another test set first"
        )
    named = {name: [name, *(other for other in maps if name == first != other)] for name in tests}  # maps that it is judged by
    asked = {(n, h): {o: _right_choices(s, choices[n, h], choices[o, h], o) for o in named[n]} for (n, h), s in sources.items()}
    temperatures = {} if held_out is None else _temperatures(opened, held_out, on)
    references: dict[tuple[Trained, str], Judged] = {}
    described: dict[Path, dict[str, Any]] = {}
    for name in tests:
        by_map = {(head, o): (choices[o, head], right) for head in opened for o, right in asked[name, head].items()}
        judged = _judge({head: sources[name, head] for head in opened}, by_map, temperatures, on)
        references = references or judged
        for head in opened if name in kept else ():
            own, reference = judged[head, name], references.get((head, name), references[head, first])
            about: dict[str, Any] = {
                "n_choices": len(choices[name, head].groups),
                "n_left_out": len(sources[name, head].rows) - len(own.labels),
                "first": first,
                "n_reference": len(reference.labels),
                "reference_images": digest_of_images(reference.source),
                "held_out": held_out and held_out.spec.key,
            }
            content = _describe_score(head, own, temperatures) | {
                "features": {"training": head.result["features"]["training"], "test": tests[name].spec.key},
                SCORED: about,
                "notes": _notes(head, own, about),
                **(notes or {}),
                **computed_by(on),
            }
            if name != first:
                content["gap"] = over_seeds((100 * (own.correct.mean(1) - reference.correct.mean(1))).tolist())
            with results[name, head].written() as folder:
                (folder / "trained").mkdir()
                write_result(folder / METRICS, content)
                write_correct(folder, own.correct, reference=None if name == first else reference.correct)
            described[places[name, head]] = content
    return described


def _right_choices(source: Source, own: ClassMap, other: ClassMap, name: str) -> Int64[np.ndarray, "N"]:
    """For each image of a test set, whose map is `own`, the choice of the map of test set `name` that is right; -1 for none."""
    labels = own.labels[source.store.labels[source.rows]]
    if other is not own:
        classes = np.array([group[0] for group in own.groups])
        choices = other.choices_of(1 + max(classes.max(), *map(max, other.groups)))
        labels = np.where(labels >= 0, choices[classes[labels]], -1)
    if not (labels >= 0).any():
        raise BeyondClsError(
            f"none of the {len(labels):,} images of {source.store.where} is of a class that the map of {name} names; name some"
        )
    return labels


def _judge(
    sources: Mapping[Trained, Source],
    asked: Mapping[tuple[Trained, str], tuple[ClassMap, Int64[np.ndarray, "N"]]],
    temperatures: Mapping[Key, float],
    device: torch.device,
) -> dict[tuple[Trained, str], Judged]:
    """Measure heads on the images of one test set, by each of their maps and what is right by it."""
    parts: dict[tuple[Trained, str, int], dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for place, head, seed, logits in _logits(sources, device):
        for (other, name), (class_map, labels) in asked.items():
            if other is head:
                right = torch.from_numpy(labels[place]).to(device)
                chosen, right = class_map.choose(logits[right >= 0]), right[right >= 0]
                for measure, values in _measures_by_image(chosen, right, temperatures.get((head, seed))).items():
                    parts[head, name, seed][measure].append(values.cpu().numpy())
    judged = {
        (head, name): Judged(sources[head].part(sources[head].rows[labels >= 0]), labels[labels >= 0], [])
        for (head, name), (_, labels) in asked.items()
    }
    for (head, name, _), of_seed in parts.items():
        judged[head, name].by_seed.append({measure: np.concatenate(values) for measure, values in of_seed.items()})
    return judged


def _logits(
    sources: Mapping[Trained, Source], device: torch.device
) -> Iterator[tuple[slice, Trained, int, Float[Tensor, "B K"]]]:
    """Finite logits of heads and their seeds, batch by batch, and which of the rows are in a batch."""
    for block in dict.fromkeys(source.block for source in sources.values()):
        heads = [head for head, source in sources.items() if source.block == block]
        source, kinds = sources[heads[0]], sorted({kind for head in heads for kind in head.reads})
        loader = source.loader(kinds, shuffle=False, batch_size=BATCH_SIZE, device=device, placement="stream")
        begin = 0
        for batch in loader.epoch():
            place = slice(begin, begin + len(batch["row"]))
            begin = place.stop
            for head in heads:
                for seed, module in head.by_seed.items():
                    logits = module.to(device)(batch)[0]
                    if not (finite := logits.isfinite().all(-1)).all():
                        row = source.rows[place][int(finite.int().argmin())]
                        raise BeyondClsError(
                            f"seed {seed} of {head.folder} gives no number for image {source.store.ids[row]!r} of "
                            f"{source.store.where}, expected logits; leave that image or this head out"
                        )
                    yield place, head, seed, logits


def _measures_by_image(logits: Float[Tensor, "B G"], labels: Int[Tensor, "B"], temperature: float | None) -> dict[str, Tensor]:
    measured = {name: measure(logits, labels) for name, measure in PER_IMAGE.items()}
    for prefix, divisor in {"": 1.0, TEMPERED: temperature}.items():
        if divisor is not None:
            log_p = (logits.double() / divisor).log_softmax(-1)
            nll, brier = -log_p.gather(-1, labels[:, None]).squeeze(-1), brier_scores(log_p.exp(), labels)
            measured |= {prefix + NLL: nll, f"{prefix}brier": brier, f"{prefix}confidence": log_p.exp().amax(-1)}
    return measured


def _describe_score(head: Trained, judged: Judged, temperatures: Mapping[Key, float]) -> dict[str, Any]:
    """What described the head, with measures of these images in place of its own."""
    content = {name: value for name, value in head.result.items() if not is_measure(value)}
    images, correct = judged.by_seed, judged.correct

    def mean(measure: str, factor: float = 1.0) -> dict[str, Any]:
        return over_seeds([factor * float(of_seed[measure].mean()) for of_seed in images])

    measures = {name: mean(name, 100) for name in PER_IMAGE}
    measures[BALANCED] = over_seeds(balanced_accuracy(torch.from_numpy(correct), torch.from_numpy(judged.labels)))
    bins: dict[str, Any] = {}
    for prefix in ("", TEMPERED) if temperatures else ("",):
        confidences = [of_seed[f"{prefix}confidence"] for of_seed in images]
        measures |= {prefix + name: mean(prefix + name) for name in (NLL, "brier")}
        for name, bins_of in (("ece", bins_of_width), ("ece_mass", bins_of_mass)):
            errors = [calibration_error(c, right, bins_of(c)) for c, right in zip(confidences, correct, strict=True)]
            measures[prefix + name] = over_seeds(errors)
        of_all = np.concatenate(confidences)
        bins[f"{prefix}reliability"] = reliability(of_all, correct.reshape(-1), bins_of_width(of_all))
    if temperatures:
        measures["temperature"] = over_seeds([temperatures[head, seed] for seed in head.by_seed])
    return content | measures | bins | {"n_test": len(judged.labels), "test_images": digest_of_images(judged.source)}


def _notes(head: Trained, judged: Judged, about: Mapping[str, Any]) -> list[str]:
    """What of classes a reader of the numbers should know."""
    n_choices, n_left_out = about["n_choices"], about["n_left_out"]
    n_tested, n_images = len(np.unique(judged.labels)), len(judged.labels) + n_left_out
    said = {
        f"the head chooses among {n_choices} of its {len(head.classes)} classes": n_choices < len(head.classes),
        f"the test set has {n_tested} of {n_choices} classes; the head chooses among all of these": n_tested < n_choices,
        f"{n_left_out:,} of {n_images:,} images are of classes that the map does not name, and are left out": n_left_out > 0,
    }
    return [note for note, holds in said.items() if holds]


def _temperatures(heads: Sequence[Trained], store: FeatureStore, device: torch.device) -> dict[Key, float]:
    """Of each seed of each head, fitted to images that it was not trained on; each set of them is read once."""
    sources = {head: head.source(store) for head in heads}
    unseen = {(head, seed): head.unseen(store, seed) for head in heads for seed in head.by_seed}
    labels = {head: head.class_map(store, None).labels[store.labels] for head in heads}
    fitted = {}
    for rows in {rows.tobytes(): rows for rows in unseen.values()}.values():
        of_rows = {key for key, others in unseen.items() if np.array_equal(rows, others)}
        logits: dict[Key, list[Tensor]] = defaultdict(list)
        for _, head, seed, batch in _logits({head: sources[head].part(rows) for head, _ in of_rows}, device):
            if (head, seed) in of_rows:
                logits[head, seed].append(batch)
        for key, batches in logits.items():
            fitted[key] = fit_temperature(torch.cat(batches), torch.from_numpy(labels[key[0]][rows]).to(device))
    return fitted
