"""Results of heads: what describes them, and the files of a head's folder."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Bool

from probe import timing
from probe.closed import Vectors, described
from probe.convergence import notes_on_convergence
from probe.cost import Cost, bytes_read, cost_of, shapes_read
from probe.evaluate import map_without_each
from probe.grid import HeadPlan
from probe.metrics import top_k_hits
from probe.notes import augmentation, notes_on_classes, notes_on_draws, notes_on_training
from probe.passes import HeadPasses, Outcome
from probe.result_files import DESCRIPTION, METRICS, over_seeds, read_result, result_folder, write_result
from probe.saved import save_probe
from probe.select import Selected
from probe.sources import JOINED, TOKENS, VECTORS, Source
from store import BeyondClsError, FeatureStore
from store.format.layout import kind_of
from store.format.pretraining import NAMES, pretraining_fields
from store.writing.results import ResultFolder

# Without it a head is not complete; the same bytes whenever the same head is trained on one machine, as DVC compares them.
RECORD = "trained/record.json"
FILES = (  # of a head; kept.json of earlier versions
    *(RECORD, "trained/seed*.json", "trained/seed*.safetensors", "trained/weights.npy", "trained/correct.npz"),
    *(METRICS, DESCRIPTION, "curves.csv", timing.FILE, "kept.json"),
)
UNCOUNTED = "flops_per_image is unknown: this aggregator's steps depend on values, or on its device"


def measures_of(name: str, plan: HeadPlan, passes: HeadPasses, outcomes: Sequence[Outcome], chosen: Selected) -> dict[str, Any]:
    """What is measured of a head that was trained, and what describes it: the content of `result_files`."""
    cost, ends, without = _cost(name, passes), [o.curve[-1] for o in outcomes], [o.without for o in outcomes]
    notes = notes_on_training(plan.recipe, passes.n_training, len(plan.seeds), passes.shown, passes.drop_path)
    if passes.test.store.multilabel:
        learnt = [passes.learnt_by(seed) for seed in passes.draws] or [passes.training]
        labels, of_test = passes.training.store.labels, passes.test.store.labels[passes.test.rows]
        notes += dict.fromkeys(note for source in learnt for note in notes_on_classes(labels[source.rows], of_test))
    if cost.flops_per_image is None:
        notes.append(UNCOUNTED)
    return {
        **_describe_training(name, plan, passes),
        **{m: over_seeds([o.result[m] for o in outcomes], without if m == "map" else ()) for m in outcomes[0].result},
        **{measure: over_seeds([end[measure] for end in ends]) for measure in ends[0] if measure.startswith("train_")},
        "seeds": list(plan.seeds),
        "recipe": _recipe(plan, chosen),
        "selected": chosen.to_dict(),
        **({} if passes.loop is None else {"encoder_passes": encoder_passes(plan)}),
        "n_parameters": sum(p.numel() for p in outcomes[0].head.parameters()),
        "cost": asdict(cost),
        "notes": [
            *notes_on_convergence(outcomes, bool(augmentation(passes.shown)["n_crops"])),
            *chosen.notes,
            *notes,
            *(notes_on_draws(len(plan.seeds)) if passes.draws else ()),
            *_cautions(name, passes),
        ],
    }


def measures_of_closed(name: str, plan: HeadPlan, passes: HeadPasses) -> tuple[dict[str, Any], Bool[np.ndarray, "M N"] | None]:
    """The same of a protocol without gradient steps, run on view 0; and which test images it gets right.

    Where seeds draw their own training images, once for each of them. What it gets right is None where images have several
    labels.
    """
    protocol, sides = plan.closed, zip((passes.training, passes.test), passes.vectors(name), strict=True)
    assert protocol is not None
    training, test = (Vectors(pooled.vectors[0].cpu(), s.labels[s.rows], s.n_classes) for s, pooled in sides)
    seeds = list(plan.seeds) if passes.draws else []
    learnt = [training.rows(passes.places(passes.learnt_by(seed))) for seed in seeds] or [training]
    results, cost = [protocol.fit(vectors, test) for vectors in learnt], _cost(name, passes)
    if not protocol.linear:
        cost = replace(cost, parameters=0, parameters_classifier=None, flops_per_image=None, memory_per_image=None)
    scores, first = [result.scores.cpu() for result in results], results[0]
    correct = None if test.multilabel else np.stack([top_k_hits(s, test.labels).numpy() for s in scores])
    without = [map_without_each(s, test.labels.cpu()) for s in scores] if test.multilabel else ()
    measures = {
        **_describe_training(name, plan, passes),
        **{m: over_seeds([r.metrics[m] for r in results], without if m == "map" else ()) for m in first.metrics},
        "seeds": seeds,
        "protocol": described(protocol),
        "cost": asdict(cost),
        "selected": {**first.chosen, **asdict(first.selection)},
        **({"selected_by_seed": [r.chosen for r in results]} if seeds else {}),
        "notes": [
            *dict.fromkeys(note for result in results for note in result.notes),
            *(notes_on_draws(len(seeds)) if seeds else ()),
            *_cautions(name, passes),
        ],
    }
    return measures, correct


def _describe_training(name: str, plan: HeadPlan, passes: HeadPasses) -> dict[str, Any]:
    reads = passes.template(name).aggregator.reads
    return {
        "encoder": passes.training.store.attributes["encoder"],
        **pretraining_fields(passes.training.store.attributes),
        **plan.head.to_dict(),
        "all_options": defaults_of(type(passes.template(name).aggregator)) | dict(plan.head.options),
        "block": passes.training.probed_block,
        "transform": dict(passes.training.store.spec.transform),
        "n_training": passes.n_training,
        # Which images each seed has drawn, by the digest of their ids.
        **({"drawn": {str(s): digest_of_images(passes.learnt_by(s)) for s in plan.seeds}} if passes.draws else {}),
        "n_test": len(passes.test.rows),
        "test_images": digest_of_images(passes.test),
        "n_views": None if passes.shown is None else len(passes.shown),
        "augmentation": augmentation(passes.shown, passes.drop_path),
        "n_tokens": _n_patches(passes, reads),
        "n_classes": passes.training.store.n_classes,
    }


def defaults_of(aggregator: type) -> dict[str, Any]:
    """Options of an aggregator that were not given: what results say of a head does not depend on how it was asked for."""
    parameters = signature(aggregator).parameters.items()
    return {name: p.default for name, p in parameters if isinstance(p.default, bool | int | float | str | None)}


def _cautions(name: str, passes: HeadPasses) -> list[str]:
    """What extraction recorded about the encoder's [cls] token, for a head that reads it; and that classes are not tested."""
    caution = passes.training.store.attributes.get("cls_caution")
    reads_cls = any(kind_of(kind) == "cls" for kind in passes.template(name).aggregator.reads)  # of any block
    numbers, n_classes = passes.test.numbers, passes.test.n_classes
    n_tested = n_classes if numbers is None else int((numbers >= 0).sum())
    untested = [f"the test set has {n_tested} of the {n_classes} classes; heads choose among all"] * (n_tested < n_classes)
    return ([f"[cls]: {caution}"] if caution and reads_cls else []) + untested


def digest_of_images(source: Source) -> str:
    """xxh3_128 of the ids of the images, one a line, in the order of their rows: equal digests mean the same images."""
    ids = source.store.ids
    return xxhash.xxh3_128_hexdigest("\n".join(ids[row] for row in source.rows).encode())


def _n_patches(passes: HeadPasses, reads: Sequence[str]) -> int | None:
    """T; None for a head that reads no patch tokens, whether they are stored or not."""
    return passes.n_patches if any(kind.startswith("patch") for kind in reads) else None


def _cost(name: str, passes: HeadPasses) -> Cost:
    head = passes.template(name)
    flops_of_encoder = passes.training.store.attributes.get("encoder_flops")
    return cost_of(head, shapes_read(head, passes.shapes), bytes_read(head, passes.shapes), flops_of_encoder)


def encoder_passes(plan: HeadPlan) -> dict[str, int]:
    """Epochs through which the encoder ran, and what they would be with a run for each seed and setting.

    The first are shared by all heads of the command that have this recipe, but for its learning rate and weight decay.
    """
    n_orders, n_runs = len(plan.seeds) if plan.recipe.order == "own" else 1, len(plan.seeds)
    n_selecting = len(plan.settings) if len(plan.settings) > 1 else 0
    made = n_orders * (1 + bool(n_selecting))
    return {"made": plan.recipe.epochs * made, "one_by_one": plan.recipe.epochs * n_runs * (1 + n_selecting)}


def _recipe(plan: HeadPlan, chosen: Selected) -> dict[str, Any]:
    return asdict(replace(plan.recipe, base_lr=chosen.base_lr, weight_decay=chosen.weight_decay))


def folder_of_head(folder: Path, encoder: str) -> ResultFolder:
    """The folder of a head, for its next result.

    Raises:
        BeyondClsError: nothing describes the metrics.json there, which may be of something else; or as `result_folder`.
    """
    metrics = folder / METRICS
    if metrics.exists() and not (folder / DESCRIPTION).exists():
        raise BeyondClsError(
            f"{metrics} has no {DESCRIPTION} next to it, so it is not replaced: give another --out, or move it"
        )
    return result_folder(folder, encoder, FILES, RECORD)


def write_measures(folder: Path, measures: Mapping[str, Any]) -> None:
    """Write metrics.json and description.json into an empty folder.

    A stage of dvc.yaml also has the outputs `trained` and `curves.csv`: where nothing is trained by steps, they are empty.
    """
    (folder / "trained").mkdir(parents=True)
    (folder / "curves.csv").write_text("seed,epoch\n")
    write_result(folder / METRICS, measures)


def update_description(folder: Path, pretraining: Mapping[str, Any]) -> dict[str, Any]:
    """What describes a head, which is rewritten if it says otherwise of the encoder's pretraining."""
    timed, metrics = timing.matches_result(folder), folder / METRICS
    measures = read_result(metrics)
    if {name: measures[name] for name in NAMES} != pretraining:
        measures |= pretraining
        write_result(metrics, measures)
        if timed:
            timing.restamp_timing(folder)
    return measures


def write_correct(
    folder: Path,
    correct: Bool[np.ndarray, "M N"] | None,
    converged: Bool[np.ndarray, "M N"] | None = None,
    reference: Bool[np.ndarray, "M R"] | None = None,
) -> None:
    """Write which test images each seed's head is right about, for statistics that pair two probes by image.

    Columns are the measured test images in the order of their rows in the feature set; rows are the seeds, as in
    description.json (a protocol without gradient steps has one row), where `test_images` says which images these are.
    `converged` is the same of a converged classifier on the vectors of each seed's aggregator, if one was fitted; `reference`
    that of the images of another test set, which a score is compared with. Nothing is written where images have several labels.
    """
    if correct is None:
        return
    arrays: dict[str, Any] = {"correct": correct, "converged": converged, "reference": reference}
    np.savez_compressed(folder / "trained/correct.npz", **{name: right for name, right in arrays.items() if right is not None})


def write_trained(
    folder: Path,
    plan: HeadPlan,
    passes: HeadPasses,
    outcomes: Sequence[Outcome],
    chosen: Selected,
    about: Mapping[str, Any],
) -> None:
    """Write the probes, their weights on the test images, which of those they get right, and their curves."""
    trained, classes = folder / "trained", passes.training.store.attributes.get("classes")
    common = {"recipe": _recipe(plan, chosen), **about, **passes.training.description, "classes": classes}
    for outcome in outcomes:
        details = {"seed": outcome.member.seed, "result": outcome.result, **common}
        n_patches = _n_patches(passes, outcome.head.aggregator.reads)
        save_probe(trained / f"seed{outcome.member.seed}", outcome.head, plan.head, n_patches, details)
    weights = [outcome.weights for outcome in outcomes if outcome.weights is not None]
    if weights:
        mean = torch.stack(weights).mean(0)
        patches = mean[:, -passes.n_patches :] if passes.n_patches else mean  # [cls] comes first where it is weighted too
        np.save(trained / "weights.npy", patches.numpy().astype(np.float32))
    by_image = [[of for o in outcomes if (of := getattr(o, name)) is not None] for name in ("correct", "converged")]
    write_correct(folder, *(torch.stack(rows).numpy() if rows else None for rows in by_image))
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["seed", *outcomes[0].curve[0]])
        writer.writeheader()
        writer.writerows({"seed": outcome.member.seed, **entry} for outcome in outcomes for entry in outcome.curve)


def absent_kinds(
    heads: Mapping[str, HeadPlan], training: FeatureStore, joined: FeatureStore | None = None
) -> dict[str, list[str]]:
    """Kinds of tokens that heads read but the encoder does not have, by head; heads that can be trained are left out.

    What was not extracted (blocks, views, attention maps, tokens in addition to vectors) doesn't count: it can be, and `probe`
    says how.

    Raises:
        BeyondClsError: unknown aggregator or options.
    """

    def is_absent(kind: str) -> bool:
        store, token_kind = joined if kind.startswith(JOINED) else training, kind_of(kind.removeprefix(JOINED))
        if store is None or (token_kind in ("patch", "registers") and not store.spec.blocks):
            return False
        return token_kind in (*TOKENS, *VECTORS) and token_kind not in store.extracted_kinds

    sizes = (source := Source(training)).dim, source.n_patches, training.n_classes
    reads = {name: plan.head.build(*sizes).aggregator.reads for name, plan in heads.items()}
    return {name: missing for name, kinds in reads.items() if (missing := list(filter(is_absent, kinds)))}


def write_absent(folder: Path, plan: HeadPlan, missing: list[str], training: FeatureStore, test: FeatureStore) -> None:
    """Write into description.json that there was nothing to measure; what an earlier run wrote into `folder` is removed."""
    encoder, features = training.attributes["encoder"], {"training": training.spec.key, "test": test.spec.key}
    with folder_of_head(folder, encoder).written() as place:
        write_measures(place, {"encoder": encoder, **plan.head.to_dict(), "features": features, "absent": missing})
