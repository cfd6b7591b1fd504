"""All that the stages can write, so that every section has something to say; names of users look like markup."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from extract.datasets import open_images
from pipelines.report.collect import Examples, Folders, Inputs, collect
from pipelines.report.galleries.images import DenseImages
from pipelines.report.published.row import PublishedRow
from pipelines.report.sections import depth
from probe.result_files import METRICS, read_result, write_result
from tests.pipelines.report.written import pretraining_of, write_attention, write_correct, write_images, write_probe

CLASSES = ("road", "sky", "car")  # of label maps, and of objects
SQUARE = "b04400000>"  # the mask of the middle 4 x 4 of 8 x 8 pixels
UPPER = "04400000000000000"  # of the upper half
EVIL = '<script>alert(1)<x" onload="x'
ENCODERS = ("mae", "dino", EVIL, "random")
N = 200  # test images of the main heads
STUDIES: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {
    "variants": {
        "abmilp": (50, {}),
        "deep": (51, {"aggregator": "abmilp", "options": {"depth": 2, "activation": "gelu"}}),
        EVIL: (53, {"aggregator": "sa-abmilp"}),
    },
    "poolings": {"cls": (46, {}), "abmilp": (50, {}), EVIL: (54, {"aggregator": "ep"})},
    "branches": {"abmilp": (50, {}), EVIL: (52, {"aggregator": "abmilp", "options": {"branches": 4}})},
    "blocks": {"abmilp": (50, {}), EVIL: (52, {"aggregator": "abmilp", "options": {"blocks": [1]}})},
    "selection": {"pca": (48, {}), EVIL: (49, {"aggregator": "norm", "options": {"top_k": 2}})},
    "views": {
        f"cls-{n}": (40 + i, {"augmentation": {"n_crops": n}, "aggregator": "cls"}) for i, n in enumerate((0, 2, "fresh"))
    },
}
PUBLISHED = (
    PublishedRow("mae", "one", "cls", "mae-lars", "top1", 40.25, EVIL, EVIL),
    PublishedRow(EVIL, EVIL, EVIL, EVIL, EVIL, 1.0, EVIL),
)


def everything(root: Path, more: float = 0.0) -> Inputs:
    """`more` is added to all numbers that are measured."""
    data = write_images(root / "data")
    digest = open_images(data).digest
    for i, encoder in enumerate(ENCODERS):
        folder = write_attention(root / "attention", encoder, digest, more=more / 10)
        np.save(folder / "maps/crops.npy", np.tile(np.array([0, 0, 8 - more, 8], np.float32), (7, 1)))
        for j, head in enumerate(("cls", "average", "abmilp", EVIL)):
            probe = write_probe(
                root / "probes", encoder, head, 1.0, more=more, notes=[f"note <b>{head}</b>"], recorded=EVIL, n_test=7
            )
            rate = (50 + 5 * i + 2 * j + more * (i == 0)) / 100  # the others, the twin among them, stay
            if head in ("cls", "abmilp"):
                write_correct(probe, (np.arange(N) + 0.5) / N < rate + np.array([[-0.005], [0.0], [0.005]]))
        for study, heads in STUDIES.items():
            for j, (head, (top1, changes)) in enumerate(heads.items()):
                cost = {"parameters": 193 * j, "parameters_classifier": 30, "flops_per_image": 1000 * (j + 1 + round(more))}
                measured = {"entropy": over_seeds(1.1 + more / 10)} if study == "selection" else {}
                changes = {"cost": cost if study != "selection" else {"parameters": 0}, **measured, **changes}
                write_probe(root / "studies" / study, encoder, head, top1 + i, more=more, **changes)
        write_divergence(root / "divergence", encoder, ("abmilp", EVIL, 0.5 + more, 0), (EVIL, "abmilp", "", 10), more=more)
        write_localisation(root / "localisation", encoder, score_maps(20 + i + more), data=digest)
        linear, neighbours = (40 + i + more, 50 + i), (30 + i, 30 + i)
        write_by_block(root / "blocks", encoder, {("cls", "linear"): linear, (EVIL, "knn"): neighbours})
        write_geometry(root / "geometry", encoder, ("cls", 0, 3 + more), ("cls", 1, 9 - i + more), (EVIL, 1, 7 + more))
        write_norms(root / "norms", encoder, {0: 4 + more, 1: 2.0})
        write_few_shot(root / "few_shot", encoder, 20 + more)
        write_correspondence(root / "correspondence" / EVIL, encoder, 30 + more)
        write_retrieval(root / "retrieval" / EVIL, encoder, 30 + more)
        write_tracking(root / "tracking" / EVIL, encoder, 30 + more)
        for k, name in enumerate(("first", EVIL, "fog-1", "fog-2")):
            right = (np.arange(N) + 0.5) / N < np.array([[0.5 - k / 10 + more / 100], [0.52 - k / 10]])
            write_score(root / "scores", name, encoder, "cls" if i % 2 else EVIL, right, more=more)
        write_boxes(root / "localisation", encoder, digest, [f"{n:03d}" for n in range(7)], iou=0.2 + more / 10)
    write_similarity(root / "similarity/all", (0.5 + more / 10), *((encoder, 1) for encoder in ENCODERS))
    for name in ("one", EVIL):
        for head, top1 in (("cls", 40.0), ("abmilp", 45.0), ("ep", 46.0)):
            for encoder in ENCODERS if head != "ep" or name == "one" else ():
                write_probe(root / "sets" / name, encoder, head, top1, more=more)
    for dataset in ("one", EVIL):
        write_dense(root, dataset, more)
    return replace(collect(folders(root), Examples(2)), against={EVIL: PUBLISHED})


def write_dense(root: Path, dataset: str, more: float) -> None:
    """Segmentation and detection of one data set, with pictures over its images."""
    digest = open_images(write_images(root / "dense" / dataset)).digest
    ids, classes = [f"{n:03d}" for n in range(7)], (*CLASSES[:2], EVIL)
    for i, encoder in enumerate(ENCODERS):
        by_seed = (43.0 + i + more, 45.0 + i)
        protocols = {"knn": protocol(34.0, held_out=33.0), "linear": protocol(*by_seed, held_out=40.0, notes=[EVIL])}
        maps = [on_foreground("attention", "cls", 30.0 + i), on_foreground("probe", "abmilp", 40.0 + more, 42.0)]
        about = {"data": digest, "foreground": {"classes": [EVIL], "maps": [*maps, on_foreground("probe", EVIL, 20.0)]}}
        folder = write_segmentation(root / "segmentation" / dataset, encoder, protocols, classes, **about, notes=[EVIL])
        write_maps(folder, ids, digest, classes)
        box, mask = average_precisions(12.0 + i + more), average_precisions(9.0 + i, small=None)
        about = {"data": digest, "classes": list(classes), "notes": [EVIL], "preset": EVIL, "recipe": {EVIL: EVIL}}
        folder = write_detection(root / "detection" / dataset, encoder, box, mask, **about)
        write_examples(folder, ids, digest, classes)
        for task, names in depth.MEASURES.items():
            write_depth(root / "depth" / f"{dataset} {task}", encoder, task, dict.fromkeys(names, 3.0 + i + more))


def folders(root: Path) -> Folders:
    """Of what `everything` writes."""
    of_encoders = ("probes", "attention", "divergence", "localisation", "blocks", "geometry", "similarity", "norms", "few_shot")
    others = ("correspondence", "retrieval", "tracking", "scores", "segmentation", "depth", "detection")
    return Folders(
        **{name: root / name for name in (*of_encoders, *others)},
        studies=(root / "studies",),
        datasets=(root / "sets",),
        images=str(root / "data"),
        dense_images=DenseImages(str(root / "dense"), split=None),
    )


def little(root: Path) -> Inputs:
    """One head, of one seed, of an encoder of which nothing is known."""
    write_probe(root / "probes", "mine", "average", 40.0, seeds=(0,))
    return collect(Folders(root / "probes"))


def over_seeds(*values: float) -> dict[str, Any]:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": sum(values) / len(values), "std": std, "values": list(values)}


def protocol(
    *values: float, at: Sequence[str] = ("original",), held_out: float | None = None, **changes: Any
) -> dict[str, Any]:
    """One entry of `protocols`: mIoU of each seed at the grid, and 4 points below it elsewhere."""
    measures: dict[str, Any] = {}
    for place, resolution in enumerate(("grid", *at)):
        measures[f"miou_{resolution}"] = over_seeds(*(value - 4 * (place > 0) for value in values))
        measures[f"accuracy_{resolution}"] = over_seeds(*(value + 30 for value in values))
    selected = {"on": "hold-out", "by": "miou_grid", "n_images": 3, "candidates": [1, 3], "percent": [1.0, held_out]}
    content = {**measures, "seeds": list(range(len(values))) if len(values) > 1 else [], "chosen": {"k": 3}}
    return {**content, "selected": None if held_out is None else selected, "seconds": 1.5, "notes": [], **changes}


def on_foreground(source: str, name: str, *shares: float, area: float = 20.0) -> dict[str, Any]:
    """One entry of `foreground`: percent of its weight, a value a seed."""
    measures = {"share": over_seeds(*shares), "gain": over_seeds(*(share / area for share in shares))}
    return {"source": source, "name": name, "seeds": [], **measures, "chance": area, "n_images": 5, "n_without": 2}


def write_of(root: Path, encoder: str, file: str = METRICS, **content: Any) -> Path:
    """A result in the folder of its encoder, with what every result says of that."""
    folder = root / encoder
    folder.mkdir(parents=True)
    write_result(folder / file, {"encoder": encoder, **pretraining_of(encoder).to_dict(), **content})
    return folder


def write_segmentation(
    root: Path,
    encoder: str,
    protocols: dict[str, Any] | None = None,
    classes: Sequence[str] = CLASSES,
    at: Sequence[str] = ("original",),
    **changes: Any,
) -> Path:
    """One DATASET/ENCODER below `root`; IoU of class i by protocol j is 10 i + j."""
    if protocols is None:
        protocols = {"knn": protocol(34.0, at=at, held_out=33.0), "linear": protocol(43.0, 45.0, at=at, held_out=40.0)}
    baselines = {"most-frequent-class": protocol(6.5, at=at), "drawn-by-prior": protocol(9.0, at=at)}
    content: dict[str, Any] = {
        "task": "segmentation",
        "data": "d",
        "features": {"training": "a", "test": "b"},
        "block": 11,
        "grid": [4, 4],
        "n_training": 12,
        "n_test": 7,
        "classes": list(classes),
    }
    content |= {"shown": {"shows": "whole", "percent_outside": 0.0, "words": "whole image"}, "protocols": protocols | baselines}
    folder = write_of(root, encoder, **{**content, "notes": [], **changes})
    with (folder / "per_class.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        columns = [f"{name} iou_{resolution}" for name in protocols for resolution in ("grid", *at)]
        writer.writerow(["class", "n_training_patches", "n_test_patches", *columns])
        for i, name in enumerate(classes):
            writer.writerow([name, 100 * i, 10 * i, *("" if i == 2 else 10 * i + j for j in range(len(columns)))])
    return folder


def write_depth(root: Path, encoder: str, task: str, measures: dict[str, float]) -> Path:
    """One DEPTH/DATASET/ENCODER: the mean of the training pixels has twice as much of each measure."""
    of_test = {"measured": 1000, "missing": 3, "beyond": 20, "outside": 400}
    linear = {name: over_groups(value) for name, value in measures.items()} | {"seeds": [0]}
    mean = {name: over_groups(2 * value) for name, value in measures.items()}
    content = {"task": task, "data": "d", "block": 11, "n_training": 12, "n_test": 7, "n_without": {"training": 0, "test": 1}}
    return write_of(root, encoder, **content, pixels={"test": of_test}, protocols={"linear": linear, "mean": mean})


def write_maps(folder: Path, ids: Sequence[str], data: str = "d", classes: Sequence[str] = CLASSES) -> None:
    """Maps of 8 x 8 pixels beside results: of truth the lower half is class 0, the upper half class 1 and its first row void.

    A protocol predicts class 0 everywhere, linear that the first column is class 2.
    """
    truth = np.zeros((8, 8), np.uint8)
    truth[:4], truth[0] = 1, 255
    linear = np.zeros((8, 8), np.uint8)
    linear[:, 0] = 2
    images = []
    for one in ids:
        for name, label_map in (("truth", truth), ("knn", np.zeros((8, 8), np.uint8)), ("linear", linear)):
            (folder / "maps" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(label_map).save(folder / f"maps/{name}/{one}.png")
        images.append({"id": one, "file": f"{one}.png", "crop": [0, 0, 8, 8], "flip": False})
    content = {"data": data, "resolution": "original", "unseen": 255, "classes": list(classes), "images": images}
    (folder / "maps/images.json").write_text(json.dumps(content))


def average_precisions(ap: float, *more: float, small: float | None = 2.0) -> dict[str, Any]:
    """Measures of boxes or masks, a value a seed; those of large objects are 10 higher."""
    values = (ap, *more)
    names = {"ap": 0, "ap50": 20, "ap75": 1, "ap_large": 10, "ap_medium": 0, "ar100": 5}
    measures = {name: over_seeds(*(value + higher for value in values)) for name, higher in names.items()}
    return {**measures, "ap_small": None if small is None else over_seeds(small)}


def write_detection(root: Path, encoder: str, box: dict[str, Any], mask: dict[str, Any] | None = None, **changes: Any) -> Path:
    """One DATASET/ENCODER below `root`."""
    counted = {"n_images": 7, "objects": {"small": 3, "medium": 1234, "large": 5}}
    content: dict[str, Any] = {
        "task": "detection",
        "data": "d",
        "features": {"training": "a", "test": "b"},
        "box": box,
        **({"mask": mask} if mask else {}),
        "seeds": list(range(len(box["ap"]["values"]))),
    }
    content |= {"recipe": {"epochs": 2, "lr": 0.001}, "detector": {"width": 8, "masks": bool(mask)}, "n_parameters": 1234}
    content |= {"grid": [4, 4], "frame": [64, 64], "views": [0], "block": 11, "n_training": 12, "n_test": 7}
    content |= {"classes": list(CLASSES), "objects": {"training": counted, "test": counted}, "notes": [], "preset": "small"}
    return write_of(root, encoder, **content | changes)


def write_examples(folder: Path, ids: Sequence[str], data: str = "d", classes: Sequence[str] = CLASSES) -> None:
    """examples.json beside results: each image of 8 x 8 pixels has an object of class 2 and a crowd, two are detected."""
    objects = [
        {"label": 2, "box": [2, 2, 6, 6], "crowd": False, "counts": SQUARE},
        {"label": 1, "box": [0, 0, 8, 4], "crowd": True, "counts": UPPER},
    ]
    detections = [
        {"label": 2, "score": 0.8, "box": [2, 2, 6, 6], "counts": SQUARE},
        {"label": 0, "score": 0.1, "box": [0, 0, 8, 4], "counts": UPPER},
    ]
    images = [{"id": one, "size": [8, 8], "objects": objects, "detections": detections} for one in ids]
    (folder / "examples.json").write_text(json.dumps({"data": data, "classes": list(classes), "images": images}))


def write_by_block(root: Path, encoder: str, reached: dict[tuple[str, str], tuple[float, ...]], n_test: int = 20_000) -> None:
    """One BLOCKS/ENCODER/metrics.json; `reached`: by head and protocol, percent of each block from the first on."""
    rows = []
    for (head, protocol), values in reached.items():
        about = {"head": head, "protocol": protocol, "bytes_per_image": 768 if head == "average" else 384}
        for block, mean in enumerate(values):
            measured = over_seeds(mean - 0.5, mean, mean + 0.5) if protocol == "linear" else over_seeds(mean)
            rows.append({**about, "block": block, "top1": measured})
    write_of(root, encoder, measure="top1", n_test=n_test, rows=rows)


def write_geometry(root: Path, encoder: str, *vectors: tuple[str, int, float]) -> None:
    """One GEOMETRY/ENCODER/metrics.json; `vectors`: kind, block, and RankMe, with 20 groups of images left out."""
    rows = [{"vector": kind, "block": block, "rankme": over_groups(rankme)} for kind, block, rankme in vectors]
    write_of(root, encoder, n_images=500, vectors=rows)


def over_groups(value: float) -> dict[str, Any]:
    """A number with 20 groups of images left out in turn, by which it is known to 0.12 or so; 0 without any of them, too."""
    return over_seeds(value) | {"without": (value + np.linspace(-0.01, 0.01, 20) * (value != 0)).tolist()}


def write_similarity(folder: Path, value: float, *places: tuple[str, int]) -> None:
    """One comparison; `places`: encoders and blocks, compared with one another; `value`: CKA of the first pair."""
    sides = [{"encoder": encoder, "vector": "cls", "block": block} for encoder, block in places]
    pairs = [
        {"a": a, "b": b, "debiased_cka": over_groups(value / n), "mutual_knn": over_groups(value / n / 2)}
        for n, (a, b) in enumerate(combinations(sides, 2), 1)
    ]
    folder.mkdir(parents=True)
    write_result(folder / METRICS, {"data": "d", "n_images": 500, "pairs": pairs})


def write_norms(root: Path, encoder: str, shares: dict[int, float]) -> None:
    """One NORMS/ENCODER/metrics.json; `shares`: of outliers by block, percent; those of the last draw 3 and 2 times as much."""
    blocks: list[dict[str, Any]] = [
        {"block": block, "share": over_groups(s), "images": over_groups(50.0)} for block, s in shares.items()
    ]
    blocks[-1] |= {"attention": over_groups(3.0), "weight of abmilp": over_groups(2.0)}
    write_of(root, encoder, n_images=500, times=3.0, blocks=blocks)


def write_few_shot(root: Path, encoder: str, percent: float) -> None:
    """One FEW_SHOT/ENCODER/metrics.json: [cls] of two blocks, the last of which has `percent`, and 10 more of more images."""

    def vector(block: int, percent: float) -> dict[str, Any]:
        shots = {f"top1_{k}shot": over_draws(percent + 10 * (k > 1)) for k in (10, 1)}
        return {"vector": "cls", "block": block, "seeds": [0, 1], "protocol": {"name": "lsr"}, **shots}

    write_of(root, encoder, n_images=500, vectors=[vector(0, 5.0), vector(1, percent)])


def over_draws(percent: float) -> dict[str, Any]:
    return over_seeds(percent - 1, percent + 1) | {"without": [percent + (-1) ** group for group in range(20)]}


def write_correspondence(root: Path, encoder: str, percent: float) -> None:
    """One CORRESPONDENCE/DATASET/ENCODER/metrics.json: two blocks, the last of which finds more."""
    counts = {"n_images": 9, "n_pairs": 7, "n_points": 40, "n_points_outside": 3, "at": [0.1]}
    blocks = [
        {"block": b, "pck_0.1_point": over_groups(p), "pck_0.1_image": over_groups(p - 1), "chance": {"0.1": 4.0}}
        for b, p in ((0, 8.0), (1, percent))
    ]
    write_of(root, encoder, **counts, blocks=blocks)


def write_retrieval(root: Path, encoder: str, percent: float) -> None:
    """One RETRIEVAL/DATASET/ENCODER/metrics.json: two protocols of [cls] of a block, the second of which is harder."""
    searches = [
        {"vector": "cls", "block": 1, "protocol": name, "n_queries": 5}
        | {"map": over_groups(p), "precision_10": over_groups(p + 1), "micro_ap": over_groups(p - 1)}
        for name, p in (("medium", percent), ("hard", percent / 2))
    ]
    write_of(root, encoder, n_images=9, n_queries=5, searches=searches)


def write_tracking(root: Path, encoder: str, percent: float) -> None:
    """One TRACKING/DATASET/ENCODER/metrics.json of one block."""
    measures = {name: over_groups(percent + more) for name, more in (("j_and_f", 0), ("j", -1), ("f", 1))}
    blocks = [{"block": 1, **measures, "n_objects": 6, "still": {"j_and_f": 12.0, "j": 11.0, "f": 13.0}}]
    write_of(root, encoder, n_images=9, n_videos=3, n_measured=5, blocks=blocks)


def write_score(
    root: Path, name: str, encoder: str, head: str, correct: np.ndarray, images: str = "images", more: float = 0.0
) -> Path:
    """One SCORES/NAME/ENCODER/HEAD, `correct` bool [S, N]; the first set is called "first", and written before others."""
    folder = write_probe(root / name, encoder, head, 0.0, seeds=tuple(range(len(correct))), n_test=correct.shape[1])
    write_correct(folder, correct, images)
    first, content = root / "first" / encoder / head, read_result(folder / METRICS)
    of_first = read_result(first / METRICS)
    content["scored"] = {"first": "first", "n_choices": 3, "n_reference": of_first["n_test"]}
    content["scored"]["reference_images"] = of_first["test_images"]
    bins = {"n": [0, 10, 30], "confidence": [0.0, 0.5, 0.8], "accuracy": [0.0, 0.4, 0.7 + more / 100]}
    content |= {"reliability": bins, "tempered_reliability": bins, "temperature": over_seeds(1.2 + more, 1.4)}
    for prefix in ("", "tempered_"):
        content |= {f"{prefix}{measure}": over_seeds(0.5 + more, 0.7) for measure in ("nll", "brier", "ece", "ece_mass")}
    if name != "first":
        reference = np.load(first / "trained/correct.npz")["correct"]
        content["gap"] = over_seeds(*(100 * (correct.mean(1) - reference.mean(1))).tolist())
        np.savez_compressed(folder / "trained/correct.npz", correct=correct, reference=reference)
    write_result(folder / METRICS, content)
    return folder


def write_divergence(root: Path, encoder: str, *rows: tuple, key: str | None = None, more: float = 0.0) -> Path:
    """One DIVERGENCE/ENCODER; rows: from, to, mean or "", number of infinite images of 10."""
    folder = root / encoder
    folder.mkdir(parents=True)
    with (folder / "divergence.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(("from", "to", "mean", "std", "n_images", "n_infinite"))
        writer.writerows((p, q, mean, mean and 0.125 + more, 10, infinite) for p, q, mean, infinite in rows)
    (folder / "summary.json").write_text(json.dumps({"key": key or f"test-{encoder}"}))
    return folder


def score_map(source: str, name: str, *v2: float, n_flat: int = 0) -> dict[str, object]:
    """What one map finds: half as much by MaxBoxAcc as by MaxBoxAccV2, of one seed each."""
    by_iou = {iou: over_seeds(*(v + apart for v in v2)) for iou, apart in (("0.3", 10), ("0.5", 0), ("0.7", -10))}
    measures = {"max_box_acc_v2": over_seeds(*v2), "by_iou": by_iou, "max_box_acc": over_seeds(*(v / 2 for v in v2))}
    return {"source": source, "name": name, "seeds": [], "n_flat": [n_flat] * len(v2), **measures}


def score_maps(
    cls: float = 20, heads: tuple[float, ...] = (30, 25), abmilp: tuple[float, ...] = (44, 46, 48), centre: float = 34.5
) -> list[dict[str, object]]:
    """Those of [cls], of its attention heads, of AbMILP and of the baseline."""
    single = [score_map("attention", f"cls-head-{i}", value) for i, value in enumerate(heads)]
    others = [score_map("probe", "abmilp", *abmilp), score_map("baseline", "centre", centre)]
    return [score_map("attention", "cls", cls), *single, *others]


OFFICIAL = {"words": "whole image, squashed to 224 x 224 pixels", "official": True}
SIZE = 64  # of the frame
WIDE = (40, 20)  # pixels of the images


def write_localisation(root: Path, encoder: str, maps: list[dict[str, object]], **others: object) -> Path:
    """One LOCALISATION/ENCODER/localisation.json."""
    about = {"data": "d", "n_images": 1000, "n_images_outside": 0, "size": 224, "maps": maps, "frame": OFFICIAL}
    return write_of(root, encoder, "localisation.json", **about | others) / "localisation.json"


def write_boxes(root: Path, encoder: str, data: str, ids: list[str], iou: float = 0.25, **others: object) -> Path:
    """boxes.json beside it. [cls] predicts a quarter of the frame, AbMILP and another head the true box; the second image's is
    outside of the frame."""
    n, true, quarter = len(ids), [8, 16, 40, 48], [0, 0, 32, 32]
    entries = [
        {"source": source, "name": name, "seed": None, "threshold": 0.1, "boxes": [box] * n, "ious": [of_one] * n}
        for source, name, box, of_one in (
            ("attention", "cls", quarter, iou),
            ("probe", "abmilp", true, 1),
            ("probe", "ep", true, 1),
        )
    ]
    content = {"data": data, "size": SIZE, "view": 0, "ids": ids, "crops": [[0, 0, *WIDE]] * n, "flips": [False] * n}
    content |= {"boxes": [[true], [], *[[true]] * (n - 2)], "maps": entries, **others}
    (root / encoder / "boxes.json").write_text(json.dumps(content))
    return root / encoder / "boxes.json"
