"""The study of benchmarks.peers as people write it in plain PyTorch and scikit-learn, one way in a process of its own.

    python -m benchmarks.plain_study WAY FOLDER STUDY EPOCHS

STUDY is JSON, and EPOCHS how many of its epochs are trained. `images`, `h5`: a training loop with the frozen encoder in front,
or over FOLDER/features.h5; heads and seeds of the study learn from the same batches. `script`: as MAE's main_linprobe trains
[cls] (random crops, LARS, measured after each epoch). `npy`, `h5-cache` write FOLDER/*.npy and FOLDER/features.h5; `sklearn`
fits logistic regressions to the former. The last line is JSON: `epochs` (of scikit-learn: fits), what each took, and `top1`.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from timm.optim import Lars
from torch import Tensor

from benchmarks.plain_data import Cache, Images, plain_encoder, write_h5, write_npy
from benchmarks.plain_heads import PlainHead
from benchmarks.study import SPLITS, Study
from benchmarks.took import Took
from probe.grid import HeadSpec
from probe.optim import learning_rate
from probe.recipe import Recipe


class Batches(Protocol):
    """Tokens by kind, and labels."""

    dim: int
    n_classes: int

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]: ...


class HeadRun:
    """A head that learns from one seed, by SGD with the study's momentum; or by LARS."""

    def __init__(self, study: Study, name: str, seed: int, batches: Batches, lars: bool = False):
        self.name, self.head = name, PlainHead(name, batches.dim, batches.n_classes)
        self.head.start_as(HeadSpec(name).build(batches.dim, None, batches.n_classes, seed=seed))
        momentum = study.recipe.momentum
        if lars:  # without weight decay; steps of biases are not adapted
            groups = [{"params": [p], "always_adapt": p.ndim > 1} for p in self.head.parameters()]
            self.optimiser: torch.optim.Optimizer = Lars(groups, momentum=momentum)
        else:
            self.optimiser = torch.optim.SGD(self.head.parameters(), momentum=momentum)

    def step(self, tokens: dict[str, Tensor], labels: Tensor, lr: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        loss = F.cross_entropy(self.head(tokens[self.head.kind]), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def train(runs: list[HeadRun], batches: Batches, recipe: Recipe, epochs: int, test: Batches | None = None) -> list[Took]:
    """Train for some of the recipe's epochs; where `test` is given, runs are measured on it after each."""
    ended = []
    for epoch in range(epochs):
        took = Took()
        with took.whole():
            for number, (tokens, labels) in enumerate(batches):
                lr = learning_rate(epoch + number / len(batches), recipe.lr, recipe.epochs, recipe.warmup_epochs)
                with took.heads():
                    for run in runs:
                        run.step(tokens, labels, lr)
            if test is not None:
                accuracies(runs, test)
        ended.append(took)
    return ended


@torch.no_grad()
def accuracies(runs: list[HeadRun], test: Batches) -> dict[str, list[float]]:
    """Percentage of the test images that each run classifies correctly, by head."""
    right, n = [0] * len(runs), 0
    for run in runs:
        run.head.eval()
    for tokens, labels in test:
        n += len(labels)
        for number, run in enumerate(runs):
            right[number] += int((run.head(tokens[run.head.kind]).argmax(1) == labels).sum())
    top1 = defaultdict(list)
    for run, count in zip(runs, right, strict=True):
        run.head.train()
        top1[run.name].append(100 * count / n)
    return dict(top1)


def from_images(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """A training loop with the encoder in front."""
    model = plain_encoder(study.encoder)
    return loop(study, Images(study, model, "train", shuffled=True), Images(study, model, "test"), epochs)


def from_h5(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """A training loop over cached tokens."""
    file, kinds = folder / "features.h5", sorted({"cls" if name == "cls" else "patch" for name in study.heads})
    return loop(study, Cache(study, file, "train", kinds, shuffled=True), Cache(study, file, "test", kinds), epochs)


def loop(study: Study, training: Batches, test: Batches, epochs: int) -> dict[str, Any]:
    """All heads and seeds on the same batches; measured in the end."""
    runs = [HeadRun(study, name, seed, training) for name in study.heads for seed in study.seeds]
    return {"epochs": train(runs, training, study.recipe, epochs), "top1": accuracies(runs, test)}


def as_script(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """As MAE's main_linprobe: a run of [cls], measured after each epoch. Its base learning rate is 0.1."""
    (seed,), model = study.seeds, plain_encoder(study.encoder)
    torch.manual_seed(seed)
    training, test = Images(study, model, "train", crops=True), Images(study, model, "test")
    runs = [HeadRun(study, "cls", seed, training, lars=True)]
    recipe = replace(study.recipe, optimiser="lars", base_lr=0.1)
    return {"epochs": train(runs, training, recipe, epochs, test), "top1": accuracies(runs, test)}


def fits(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """scikit-learn's logistic regression on standardised vectors, with its default C."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    took, top1 = [], {}
    for name in ("cls", "average"):
        x, y, x_test, y_test = (np.load(folder / f"{split}-{part}.npy") for split in SPLITS for part in (name, "label"))
        fit = Took()
        with fit.whole(), fit.heads():
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
        took.append(fit)
        top1[name] = [100 * float(model.score(x_test, y_test))]
    return {"epochs": took, "top1": top1}


def npy_cache(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """Vectors that scikit-learn reads."""
    write_npy(study, folder)
    return {}


def h5_cache(study: Study, folder: Path, epochs: int) -> dict[str, Any]:
    """Tokens that a training loop reads."""
    write_h5(study, folder)
    return {}


WAYS: dict[str, Callable[[Study, Path, int], dict[str, Any]]] = {
    "images": from_images,
    "h5": from_h5,
    "script": as_script,
    "sklearn": fits,
    "npy": npy_cache,
    "h5-cache": h5_cache,
}


def main() -> None:
    way, folder, study, epochs = sys.argv[1:]
    result = WAYS[way](Study.from_json(study), Path(folder), int(epochs))
    print(json.dumps(result | {"epochs": [asdict(took) for took in result.get("epochs", [])]}))


if __name__ == "__main__":
    main()
