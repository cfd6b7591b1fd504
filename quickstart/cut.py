"""Cut the quickstart's data out of CIFAR-10: a balanced subset as PNG files in WebDataset tars.

    python -m quickstart.cut CIFAR10.npz --out quickstart/data/cifar10

gives 500 training and 100 test images of each class, drawn with a seed, in shuffled order; ids name the position in CIFAR-10.
The same input gives the same bytes.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from webdataset import TarWriter

from extract.datasets.webdataset_tars import CLASS_NAMES
from pipelines.quickstart.objects import png
from quickstart import cifar10


def balanced(labels: np.ndarray, per_class: int, generator: np.random.Generator) -> np.ndarray:
    """Positions of `per_class` images of each class, without replacement, in shuffled order."""
    chosen = [generator.choice(np.flatnonzero(labels == c), per_class, replace=False) for c in np.unique(labels)]
    return generator.permutation(np.concatenate(chosen))


def main(
    data: Annotated[Path, typer.Argument(help="CIFAR-10 as .npz (x, y, xt, yt), or a folder for torchvision")],
    out: Annotated[Path, typer.Option(help="folder for the tars")] = Path("quickstart/data/cifar10"),
    train: Annotated[int, typer.Option(min=1, help="training images per class")] = 500,
    test: Annotated[int, typer.Option(min=1, help="test images per class")] = 100,
    per_tar: Annotated[int, typer.Option(min=1)] = 1000,
    seed: int = 0,
) -> None:
    """Write OUT/train/*.tar, OUT/test/*.tar, each with classes.txt."""
    splits = cifar10.load(data)
    generator = np.random.default_rng(seed)
    for name, per_class in (("train", train), ("test", test)):
        images, labels = splits[name]
        order = balanced(labels, per_class, generator)
        (out / name).mkdir(parents=True, exist_ok=True)
        for number, start in enumerate(range(0, len(order), per_tar)):
            with TarWriter(str(out / name / f"{number:03d}.tar"), mtime=0, user="cifar10", group="cifar10") as tar:
                for i in order[start : start + per_tar]:
                    tar.write({"__key__": f"{name}-{i:05d}", "png": png(images[i]), "cls": int(labels[i])})
        (out / name / CLASS_NAMES).write_text("".join(f"{c}\n" for c in cifar10.CLASSES))
        print(f"{out / name}: {len(order)} images")


if __name__ == "__main__":
    typer.run(main)
