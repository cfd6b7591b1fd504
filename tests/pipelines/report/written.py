"""Small folders as the other stages write them, and the images that they are of; probes without files; parts of a section."""

import csv
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from extract.datasets import open_images
from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Gallery, Section, Table, Text
from pipelines.report.measured import Measure, Probe
from probe.result_files import DESCRIPTION, METRICS, read_result, write_result
from store.format.pretraining import JOINT, LABELS, MASKED, UNKNOWN, Pretraining

CLASSES = ("<script>alert(1)</script>", "dog", "cat")
STATISTICS = ("cls_self", "cls_patch_entropy", "patch_self", "patch_patch_entropy")
ACCURACY = {"mae": {"cls": 46.25, "average": 48.5, "abmilp": 51.5}, "random": {"cls": 34.0, "average": 35.0, "abmilp": 36.5}}
UNITS = ("share of attention, 0–1", "entropy, nats")
N_IMAGES, N_TOKENS = 7, 4
PRETRAINING = {
    **dict.fromkeys(("mae", "simmim", "mae-b16", "quickstart-mae"), Pretraining(MASKED)),
    **dict.fromkeys(("dino", "mocov3", "dino-b16", "quickstart-mocov3"), Pretraining(JOINT)),
    **dict.fromkeys(("deit", "deit-l"), Pretraining(LABELS)),
    **dict.fromkeys(("random", "a-twin", "b-twin", "quickstart-random"), Pretraining(random_seed=0)),
}
PARAMETERS = {"abmilp": 193, "sa-abmilp": 147_841}  # of aggregators; others have none


def pretraining_of(encoder: str) -> Pretraining:
    """What files record of an encoder; the program learns nothing from its name."""
    return PRETRAINING.get(encoder, UNKNOWN)


def write_images(folder: Path, n: int = N_IMAGES, problem: bool = False, pictures: Iterable[Image.Image] | None = None) -> str:
    """Tars with `n` images of three classes; image i is of class -i mod 3. Returns the folder's name."""
    folder.mkdir(parents=True)
    plain = (Image.new("RGB", (8, 8), (20 * i, 40, 200 - 20 * i)) for i in range(n))
    with tarfile.open(folder / "000.tar", "w") as tar:
        for i, image in enumerate(pictures or plain):
            picture = io.BytesIO()
            image.save(picture, "PNG")
            label = b"no number" if problem and i == n - 1 else str(-i % 3).encode()
            for name, content in ((f"{i:03d}.png", picture.getvalue()), (f"{i:03d}.cls", label)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return str(folder)


def write_probe(
    root: Path,
    encoder: str,
    head: str,
    top1: float,
    *,
    std: float = 0.5,
    seeds: tuple[int, ...] = (0, 1, 2),
    n_tokens: int = N_TOKENS,
    n_test: int = N_IMAGES,
    recorded: str | None = None,
    more: float = 0.0,
    **changes: object,
) -> Path:
    """One PROBES/ENCODER/HEAD; AbMILP looks at patch 0 alone, in half of each image's weight.

    Args:
        more: is added to numbers that are measured.
        changes: of description.json.
    """
    folder = root / encoder / head
    (folder / "trained").mkdir(parents=True)
    spread = std * np.linspace(-1, 1, len(seeds)) if len(seeds) > 1 else np.zeros(1)

    def measure(mean: float) -> dict[str, object]:
        return {"mean": mean, "std": std if len(seeds) > 1 else 0.0, "values": list(mean + spread)}

    metrics = {
        "encoder": recorded or encoder,
        **pretraining_of(encoder).to_dict(),
        "aggregator": head,
        "options": {"depth": 1} if head == "abmilp" else {},
        "top1": measure(top1 + more),
        "top5": measure(top1 + more + 40),
        **({"entropy": measure(1.1)} if head == "abmilp" else {}),
        "n_training": 50,
        "n_test": n_test,
        "n_tokens": None if head == "cls" else n_tokens,
        "n_classes": 3,
        "seeds": list(seeds),
        "recipe": {"epochs": 2, "base_lr": 0.03 + more},
        "selected": {"base_lr": 0.03, "weight_decay": 0.0, "on": "nothing", "by": None, "n_images": 0},
        "command": f"beyondcls probe --head {head} --out probes/<{encoder}>",
        "features": {"training": f"training-{encoder}", "test": f"test-{encoder}"},
        "cost": {"parameters": PARAMETERS.get(head, 0)},
        **changes,
    }
    write_result(folder / METRICS, metrics)
    curve = [(seed, epoch, 2.0 / epoch + seed + more, 10.0 * epoch + seed) for seed in seeds for epoch in (1, 2)]
    _table(folder / "curves.csv", ("seed", "epoch", "loss", "top1"), curve)
    if head == "abmilp":
        weights = np.full((n_test, n_tokens), 0.5 / (n_tokens - 1), np.float16)
        weights[:, 0] = 0.5
        np.save(folder / "trained" / "weights.npy", weights)
    return folder


def describe(metrics: Path, text: str) -> None:
    """Write a result's description anew: an object with the digest of its measures, any other text as it is."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict):
        write_result(metrics, content)
    else:
        metrics.with_name(DESCRIPTION).write_text(text)


def several_labels(folder: Path) -> None:
    """Turn a probe into one that was measured by mean average precision."""
    content = read_result(folder / METRICS)
    content["map"] = content.pop("top1")
    content.pop("top5", None)
    write_result(folder / METRICS, content)
    rows = list(csv.reader((folder / "curves.csv").read_text().splitlines())) if (folder / "curves.csv").exists() else []
    if rows:
        rows[0] = ["map" if name == "top1" else name for name in rows[0]]
        (folder / "curves.csv").write_text("\n".join(map(",".join, rows)) + "\n")


def write_correct(
    folder: Path, correct: np.ndarray, images: str | None = "images", converged: np.ndarray | None = None
) -> Path:
    """Say of a probe that `write_probe` wrote which test images each seed classifies correctly, bool [S, N].

    Args:
        converged: likewise of the converged classifiers beside it.
    """
    beside = {} if converged is None else {"converged": converged}
    np.savez_compressed(folder / "trained" / "correct.npz", correct=correct, **beside)
    metrics = read_result(folder / METRICS)
    values = 100 * correct.mean(1)
    measured = {"mean": values.mean(), "std": values.std(ddof=1) if len(values) > 1 else 0.0, "values": values.tolist()}
    metrics |= {"n_test": correct.shape[1], "seeds": list(range(len(correct))), "top1": measured}
    if converged is not None:
        reached = (100 * converged.mean(1)).tolist()
        metrics["converged_top1"] = {"mean": float(np.mean(reached)), "std": float(np.std(reached, ddof=1)), "values": reached}
    write_result(folder / METRICS, metrics | ({} if images is None else {"test_images": images}))
    return folder


def write_attention(
    root: Path, encoder: str, digest: str, n_tokens: int = N_TOKENS, more: float = 0.0, statistics: Iterable[str] = STATISTICS
) -> Path:
    """One ATTENTION/ENCODER with two blocks; [cls] looks at the last patch of images that are 8 pixels wide and high.

    `more` is added to the statistics, and to what it gives to that patch.
    """
    folder = root / encoder
    (folder / "maps").mkdir(parents=True)
    rows = [(name, block, 0.5 + block / 4 + more, 0.125) for name in statistics for block in (0, 1)]
    _table(folder / "statistics.csv", ("statistic", "block", "mean", "std"), rows)
    by_head = [(name, block, head, 0.5 + block / 4 - head / 8) for name in statistics for block in (0, 1) for head in (0, 1, 2)]
    _table(folder / "heads.csv", ("statistic", "block", "head", "mean"), by_head)
    maps = np.full((N_IMAGES, n_tokens), 0.25 / (n_tokens - 1), np.float16)
    maps[:, -1] = 0.75 + more
    np.save(folder / "maps/cls_map.npy", maps)
    np.save(folder / "maps/crops.npy", np.tile(np.array([0, 0, 8, 8], np.float32), (N_IMAGES, 1)))
    summary = {
        "encoder": encoder,
        **pretraining_of(encoder).to_dict(),
        "key": f"test-{encoder}",
        "data": digest,
        "n_images": N_IMAGES,
        "n_tokens": n_tokens,
        "classes": list(CLASSES),
        "architecture": {"patch_size": 4},
        "statistics": {name: {"title": f"Title of {name}", "unit": UNITS["entropy" in name]} for name in statistics},
        "unbounded": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(root: Path, statistics: Iterable[str] = STATISTICS) -> dict[str, Path]:
    """Images, probes of ACCURACY and their attention under `root`; the arguments of the command, `out` included."""
    data = write_images(root / "data")
    digest = open_images(data).digest
    for encoder, heads in ACCURACY.items():
        write_attention(root / "attention", encoder, digest, statistics=statistics)
        for head, top1 in heads.items():
            write_probe(root / "probes", encoder, head, top1)
    return {"probes": root / "probes", "attention": root / "attention", "data": Path(data), "out": root / "out"}


def _table(file: Path, names: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    with file.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows(rows)


RECIPE = {"epochs": 4, "batch_size": 128, "optimiser": "sgd", "base_lr": 0.03}


def measure(mean: float, std: float = 0.5, n: int = 3) -> Measure:
    return Measure(mean, std if n > 1 else 0.0, (mean,) * n)


def studied(encoder: str, head: str, top1: float, aggregator: str = "abmilp", **more) -> Probe:
    """`more`: options of the aggregator, and std, n_seeds, parameters, flops, recipe, entropy."""
    std, n_seeds = more.pop("std", 0.5), more.pop("n_seeds", 3)
    cost = {"parameters": more.pop("parameters", 193), "parameters_classifier": 1930}
    cost["flops_per_image"] = more.pop("flops", 53_000)
    entropy = {"entropy": measure(more.pop("entropy"))} if "entropy" in more else {}
    return Probe(
        encoder=encoder,
        head=head,
        recorded_encoder=encoder,
        recipe=more.pop("recipe", RECIPE),
        options=more,
        measures={"top1": measure(top1, std, n_seeds), **entropy},
        n_training=5000,
        n_test=1000,
        n_tokens=64,
        n_classes=10,
        seeds=tuple(range(n_seeds)),
        features={"training": "a", "test": "b"},
        selected="nothing",
        aggregator=aggregator,
        cost=cost,
        pretraining=pretraining_of(encoder),
    )


def inputs(study: str, *probes: Probe, main: tuple[Probe, ...] = ()) -> Inputs:
    return Inputs({(p.encoder, p.head): p for p in main}, studies={study: {(p.encoder, p.head): p for p in probes}})


def tables(section: Section | None) -> dict[str, Table]:
    """By name; those of the paper left out."""
    assert section is not None
    return {block.name: block for block in section.blocks if isinstance(block, Table) and not block.published}


def figures(section: Section | None) -> list[Figure]:
    assert section is not None
    return [figure for block in section.blocks if isinstance(block, Figures) for figure in block.figures]


def words(section: Section | None, *kinds: str) -> list[str]:
    """Paragraphs of some kinds, or of all, each with its list; spaces may be parted by a line break."""
    assert section is not None
    texts = [block for block in section.blocks if isinstance(block, Text) and (not kinds or block.kind in kinds)]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for text in texts for line in (text.text, *text.items)]


def shown(table: Table, columns: slice = slice(None)) -> list[list[str]]:
    """The text of its cells, row by row."""
    return [[cell.text for cell in row.cells[columns]] for row in table.rows]


def best(table: Table, columns: slice = slice(None)) -> list[list[bool]]:
    """Which cells are bold."""
    return [[cell.best for cell in row.cells[columns]] for row in table.rows]


def gallery(section: Section | None) -> Gallery | None:
    """The only one; None without any."""
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, Gallery)]
    assert len(found) < 2
    return found[0] if found else None
