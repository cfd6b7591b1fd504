"""The results of a large project: 14 encoders, 8 data sets; and its page.

    python -m tests.pipelines.report.large OUT

writes them to OUT/results and OUT/page, for a look.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from extract.datasets import open_images
from pipelines.report import files
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Section
from pipelines.report.sections import sections
from store.format.pretraining import JOINT, LABELS, MASKED, Pretraining
from tests.pipelines.report.everything import write_by_block
from tests.pipelines.report.written import (
    N_IMAGES,
    PRETRAINING,
    STATISTICS,
    write_attention,
    write_correct,
    write_images,
    write_probe,
)

# Points that AbMILP gains on each, or so.
MASKED_ONES = {"mae-b16": 5.0, "mae-l16": 4.0, "simmim-b16": 8.0, "data2vec-b16": 6.0, "vit_base_patch16_224.beit": 9.0}
JOINT_ONES = {"dino-b16": 0.6, "mocov3-b16": 1.5, "ibot-b16": 0.8, "msn-b16": -0.5}
LABELLED_ONES = {"deit-b16": 0.1, "augreg-b16": -0.2}
OTHERS = {"dinov2-b14": 0.4, "franca-b14": 0.9}
TWIN = "random-b16"
GAINS = MASKED_ONES | JOINT_ONES | LABELLED_ONES | OTHERS | {TWIN: 4.0}
OF_FAMILY = {MASKED: MASKED_ONES, JOINT: JOINT_ONES, LABELS: LABELLED_ONES}
PRETRAINING |= {name: Pretraining(family) for family, names in OF_FAMILY.items() for name in names} | {
    TWIN: Pretraining(random_seed=0)
}
DATASETS = ("cifar10", "cifar100", "cub200", "dtd", "flowers102", "food101", "pets", "sun397")
HEADS = {
    "cls": (0.0, 7680),
    "average": (0.3, 7680),
    "abmilp": (1.0, 315_000),
    "simpool": (1.1, 1_200_000),
    "ep": (1.3, 4_800_000),
}


def write_large(
    root: Path, n_encoders: int = 14, n_datasets: int = 8, n_blocks: int = 12, n_heads: int = 12, n_tokens: int = 196
) -> Folders:
    """Encoders with five heads each, of which three weight patches, on several data sets, and photograph-like images."""
    generator = np.random.default_rng(0)
    coarse = (Image.fromarray(generator.integers(0, 256, (24, 24, 3), np.uint8)) for _ in range(N_IMAGES))
    data = write_images(root / "data", pictures=[image.resize((224, 224), Image.Resampling.BICUBIC) for image in coarse])
    digest = open_images(data).digest
    encoders = [*list(GAINS)[: n_encoders - 1], TWIN]
    for encoder in encoders:
        maps = generator.dirichlet(np.full(n_tokens, 0.2), N_IMAGES)
        _write_attention(root / "attention", encoder, digest, generator.random((len(STATISTICS), n_blocks, n_heads)), maps)
        for place, dataset in enumerate(DATASETS[:n_datasets]):
            _write_heads(root / "probes" / dataset, encoder, generator, None if place else maps)
        series = {
            (head, "linear"): tuple(30 + 3 * np.arange(n_blocks) + generator.random(n_blocks)) for head in ("cls", "average")
        }
        write_by_block(root / "blocks", encoder, series)
    return Folders(
        root / "probes" / DATASETS[0],
        root / "attention",
        images=data,
        datasets=(root / "probes",),
        blocks=root / "blocks",
        dataset=DATASETS[0],
    )


def write_page(folders: Folders, out: Path) -> tuple[Inputs, list[Section]]:
    """As `beyondcls report` does; what the page is made of."""
    inputs = collect(folders)
    result = sections(inputs)
    files.write(out, inputs, result)
    return inputs, result


def _write_attention(root: Path, encoder: str, digest: str, values: np.ndarray, maps: np.ndarray) -> None:
    """`values` by statistic, block and attention head."""
    folder = write_attention(root, encoder, digest, maps.shape[1], side=224)
    means = values.mean(2)
    _table(
        folder / "statistics.csv",
        ("statistic", "block", "mean", "std"),
        [(STATISTICS[s], b, m, 0.1) for (s, b), m in np.ndenumerate(means)],
    )
    rows = [(STATISTICS[s], block, head, value) for (s, block, head), value in np.ndenumerate(values)]
    _table(folder / "heads.csv", ("statistic", "block", "head", "mean"), rows)
    np.save(folder / "maps/cls_map.npy", maps)


def _write_heads(root: Path, encoder: str, generator: np.random.Generator, maps: np.ndarray | None) -> None:
    """Main heads say which images they classify correctly; with `maps`, heads have weights, too."""
    base, n_test = (25.0 if encoder == TWIN else 60.0) + 12 * generator.random(), 400
    order = generator.random(n_test)  # how hard an image is
    for head, (part, flops) in HEADS.items():
        top1 = base + part * GAINS[encoder]
        probe = write_probe(
            root, encoder, head, top1, n_test=n_test, cost={"parameters": flops // 400, "flops_per_image": flops}
        )
        curve = [(seed, epoch, 2 + generator.random(), 40 + generator.random()) for seed in (0, 1, 2) for epoch in range(1, 31)]
        _table(probe / "curves.csv", ("seed", "epoch", "loss", "top1"), curve)
        if head in ("cls", "average", "abmilp"):
            rates = top1 / 100 + np.array([[-0.002], [0.0], [0.002]])
            write_correct(probe, order + 0.05 * generator.random((3, n_test)) - 0.025 < rates)
        if maps is not None and head not in ("cls", "average"):
            np.save(probe / "trained" / "weights.npy", maps[::-1])


def _table(file: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with file.open("w", newline="") as target:
        csv.writer(target).writerows([names, *rows])


if __name__ == "__main__":
    out = Path(sys.argv[1])
    write_page(write_large(out / "results"), out / "page")
    print(out / "page" / "index.html")
