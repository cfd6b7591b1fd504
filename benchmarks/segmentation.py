"""Segmentation from cached patch tokens, against scikit-learn and against a plain loop with the encoder in front.

    python -m benchmarks.segmentation [--quick] [--rounds 3]

Tokens are those of a ViT-S/14 at 224 pixels ([256, 384]) of 367 training and 233 test images with 11 classes, as CamVid
has them, drawn around class means. `knn_vs_sklearn`: seconds of KNeighborsClassifier (brute force, cosine, k = 30, all
cores) / seconds of four k by two metrics here, on a fourth of the test patches. `logistic_vs_sklearn`: seconds of
LogisticRegression for 8 C, one after the other / seconds here, on a fourth of the training patches.
`linear_vs_recompute`: seconds of 9 linear heads (3 learning rates, 3 seeds), 40 epochs, by a plain loop with the ViT in
front, one head a run (a step is timed, and multiplied) / seconds of running the ViT once (likewise) and of training all
nine from tokens. With --quick fewer images: under a minute, and no evidence. The last line is JSON.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import conclude
from pipelines.process.device import keep_freed_memory
from probe.recipe import Recipe
from probe.segmentation.label_maps import Upsampling
from probe.segmentation.linear import SPEC, PatchStack, pixel_loss
from probe.segmentation.neighbours import REFERENCES, nearest_rows
from probe.softmax_regression import fit, stored_blocks
from probe.train import Family, train

TOKENS, DIM, CLASSES, GRID, SIZE = 256, 384, 11, (16, 16), 224
CS = [10.0 ** (-6 + 11 * i / 7) for i in range(8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, and no evidence")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    quick, rounds = given.quick, 1 if given.quick else given.rounds
    x, y = patches(8 if quick else 367)
    queries, _ = patches(4 if quick else 58)
    ratios = {
        "knn_vs_sklearn": knn(x, y, queries, rounds),
        "logistic_vs_sklearn": logistic(x[::4], y[::4], CS[:3] if quick else CS, rounds),
        "linear_vs_recompute": linear(*((8, 1, 2) if quick else (367, 40, 16))),
    }
    conclude(ratios, rounds >= 3)


def patches(n_images: int) -> tuple[Tensor, Tensor]:
    """Standardised tokens of patches, [n, D], and their classes."""
    means = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1)) * 0.15
    y = torch.randint(CLASSES, (n_images * TOKENS,))
    x = torch.randn(len(y), DIM) * torch.logspace(0, -1, DIM) + means[y]
    return (x - x.mean(0)) / x.std(0), y


def ratio(theirs: Callable[[], Any], ours: Callable[[], Any], rounds: int, what: str) -> float:
    """Median over interleaved rounds of seconds of `theirs` / seconds of `ours`."""
    pairs = [(seconds_of(theirs), seconds_of(ours)) for _ in range(rounds)]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{what}: {a:.2f} s / {b:.2f} s")
    return statistics.median(one / other for one, other in pairs)


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def knn(x: Tensor, y: Tensor, queries: Tensor, rounds: int) -> float:
    """scikit-learn's neighbours by one metric / ours by both."""
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(30, metric="cosine", algorithm="brute", n_jobs=-1).fit(x.numpy(), y.numpy())

    def ours() -> None:
        nearest_rows(queries, x.split(REFERENCES), 30, ("cosine", "euclidean"))

    return ratio(
        lambda: model.kneighbors(queries.numpy()), ours, rounds, f"30 nearest of {len(x):,} for {len(queries):,} patches"
    )


def logistic(x: Tensor, y: Tensor, cs: list[float], rounds: int) -> float:
    """scikit-learn's L-BFGS for each C / ours for all."""
    from sklearn.linear_model import LogisticRegression

    def theirs() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for c in cs:
                LogisticRegression(C=c, tol=1e-6, max_iter=1000).fit(x.numpy().astype(np.float64), y.numpy())

    def ours() -> None:
        fit(lambda: stored_blocks(x, y, 8192), len(x), CLASSES, cs)

    return ratio(theirs, ours, rounds, f"logistic regression of {len(x):,} patches for {len(cs)} C")


class Images:
    """Images in memory as the ViT takes them, or their tokens, with label maps."""

    def __init__(self, n: int, batch_size: int):
        self.n_rows, self.batch_size = n, batch_size
        self.pixels = torch.randn(min(n, 16), 3, SIZE, SIZE)
        self.labels = torch.randint(-1, CLASSES, (16, SIZE, SIZE), dtype=torch.int16)
        self.tokens = torch.randn(n, TOKENS, DIM).half()

    def epoch(self, seed: int = 0, start: int = 0) -> Any:
        order = torch.randperm(self.n_rows, generator=torch.Generator().manual_seed(seed % 2**63))
        for rows in order.split(self.batch_size)[start:]:
            yield {"patch": self.tokens[rows].float(), "label": torch.zeros(len(rows), 1, dtype=torch.long), "row": rows}


def linear(n: int, epochs: int, batch_size: int) -> float:
    """Nine heads, each with the ViT in the loop / the ViT once, and nine heads from its tokens."""
    model: Any = timm.create_model("vit_small_patch14_dinov2", img_size=SIZE, num_classes=0).eval().requires_grad_(False)
    images = Images(n, batch_size)
    upsampling = Upsampling.to_frame(GRID, (SIZE, SIZE))
    recipe = Recipe(epochs=epochs, batch_size=batch_size, optimiser="adamw", base_lr=0.03, warmup_epochs=0)
    heads = [SPEC.build(DIM, TOKENS, CLASSES, seed=seed) for seed in range(9)]
    rates = torch.tensor([0.01, 0.03, 0.1], dtype=torch.float64).repeat_interleave(3)

    def loss(logits: Tensor, batch: Any) -> Tensor:
        labels = [images.labels[row % 16] for row in batch["row"].tolist()]
        return pixel_loss(logits.unflatten(1, (len(labels), *GRID)), labels, [upsampling] * len(labels))

    family = Family(PatchStack(heads), rates, torch.zeros(9, dtype=torch.float64), list(range(9)))
    with torch.inference_mode():
        encode = min(seconds_of(lambda: model.forward_features(images.pixels)) for _ in range(2)) * n / len(images.pixels)
    training = seconds_of(lambda: train([family], images, None, recipe, losses=loss))
    plain_head = nn.Sequential(nn.BatchNorm2d(DIM, affine=False), nn.Conv2d(DIM, CLASSES, 1))
    optimiser = torch.optim.AdamW(plain_head.parameters(), 1e-3)

    def plain() -> None:
        with torch.no_grad():
            tokens = model.forward_features(images.pixels)[:, 1:].mT.unflatten(2, GRID)
        pixels = F.interpolate(plain_head(tokens), size=(SIZE, SIZE), mode="bilinear")
        F.cross_entropy(pixels, images.labels[: len(pixels)].long(), ignore_index=-1).backward()
        optimiser.step()
        optimiser.zero_grad()

    plain()
    theirs = min(seconds_of(plain) for _ in range(2)) / len(images.pixels) * n * epochs * 9
    print(f"9 linear heads, {epochs} epochs: {theirs:.0f} s with the ViT in the loop / {encode + training:.1f} s here")
    print(f"  of which {encode:.1f} s are the ViT, once")
    return theirs / (encode + training)


if __name__ == "__main__":
    main()
