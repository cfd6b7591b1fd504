"""Fine-tune the quickstart's MAE on the labels of CIFAR-10's training images, through [cls].

    python -m quickstart.finetune CIFAR10.npz --epochs 4 --out quickstart/encoders

writes `mae-ft.safetensors` (float16, with the classifier), `mae-ft.json` (recipe, loss curve, accuracies) and `mae-ft.md`, the
card to read. A run that was stopped goes on from its checkpoint when the same command is given again. Nothing is selected: the
test images are shown once, when training has ended.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from extract.encoders.weights import load_strictly, read_checkpoint, weights_digest
from pipelines.process.device import keep_freed_memory
from quickstart import cifar10
from quickstart.accuracy import LABELLED, accuracies
from quickstart.card import write_card
from quickstart.classifier import ClsClassifier
from quickstart.training import Run, hardware
from quickstart.vit import small_vit, tensors
from store import BeyondClsError

BETAS = (0.9, 0.999)
DATA = "CIFAR-10, 50,000 training images, with their labels"


def accuracies_of(weights: Path) -> dict[str, Any]:
    """What the card beside the weights of an encoder says of it and of its random twin.

    Raises:
        BeyondClsError: there is no card.
    """
    card = weights.with_suffix(".json")
    if not card.is_file():
        raise BeyondClsError(f"{card} is missing, expected the card of {weights.name} beside it; both come from pretraining")
    return json.loads(card.read_text(encoding="utf-8"))["accuracy"]


def main(
    data: Annotated[Path, typer.Argument(help="CIFAR-10 as .npz (x, y, xt, yt), or a folder for torchvision")],
    out: Annotated[Path, typer.Option(help="folder for weights and card")] = Path("quickstart/encoders"),
    parent: Annotated[Path, typer.Option(help="weights to start from, of pretraining")] = Path(
        "quickstart/encoders/mae.safetensors"
    ),
    epochs: Annotated[int, typer.Option(min=1)] = 4,
    batch: Annotated[int, typer.Option(min=1, help="images a step")] = 128,
    base_lr: Annotated[float, typer.Option(help="peak learning rate of AdamW, of the last layer")] = 1e-3,
    layer_decay: Annotated[float, typer.Option(min=0, max=1, help="learning rate of a layer, of that of the next one")] = 0.75,
    weight_decay: Annotated[float, typer.Option(min=0)] = 0.05,
    warmup: Annotated[float, typer.Option(help="share of the run with rising learning rate")] = 0.05,
    drop_path: Annotated[float, typer.Option(min=0, max=1, help="share of images that leave out the last block")] = 0.1,
    tokens: Annotated[int, typer.Option(min=1, max=64, help="patches of an image in a step, of 64")] = 16,
    smallest_crop: Annotated[float, typer.Option(min=0, max=1, help="share of the image's area")] = 0.5,
    mixed: Annotated[float, typer.Option(min=0, max=1, help="share of images that are mixed with others")] = 0.2,
    smoothing: Annotated[float, typer.Option(min=0, max=1, help="of labels")] = 0.1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if torch.cuda.is_available() else "cpu",
    note: Annotated[str, typer.Option(help="what else the card should say, e.g. that the run was continued")] = "",
    checkpoint: Annotated[Path | None, typer.Option(help="where an unfinished run is kept; OUT/mae-ft.ckpt by default")] = None,
) -> None:
    """Fine-tune the quickstart's MAE on labels, through [cls]."""
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    place, name = torch.device(device), f"{parent.stem}-ft"
    splits = cifar10.load(data)
    images, labels = (tensors(splits["train"][0], place), torch.from_numpy(splits["train"][1]).to(place))
    if batch > len(images):
        raise BeyondClsError(f"--batch is {batch}, expected at most {len(images)}, the training images of {data}")
    vit = small_vit(seed, drop_path)
    load_strictly(vit, read_checkpoint(parent), str(parent))
    before = accuracies_of(parent)
    recipe: dict[str, Any] = {"epochs": [epochs], "batch": batch, "base_lr": base_lr, "layer_decay": layer_decay}
    recipe |= {"weight_decay": weight_decay, "warmup": warmup, "drop_path": drop_path}
    options: dict[str, Any] = {"tokens": tokens, "smallest_crop": smallest_crop, "mixed": mixed, "smoothing": smoothing}
    recipe |= options | {"seed": seed, "parent": weights_digest(vit)}
    model = ClsClassifier(vit, len(cifar10.CLASSES), **options).to(place)
    run = Run(model, recipe, model.groups(weight_decay, layer_decay), BETAS)
    saved = checkpoint or out / f"{name}.ckpt"
    out.mkdir(parents=True, exist_ok=True)
    if saved.exists():
        run.resume(saved)
    while len(run.curve) < epochs:
        run.epoch(images, labels)
        print(json.dumps({**run.curve[-1], "seconds": round(run.seconds)}), flush=True)
        run.save(saved)
    test = (tensors(splits["test"][0], place), torch.from_numpy(splits["test"][1]).to(place))
    right = {"test": model.top1(*test), "train": model.top1(images[:LABELLED], labels[:LABELLED])}
    facts = {"data": DATA, "parent": parent.stem, "recipe": run.recipe, "seconds": round(run.seconds), "note": note}
    facts |= {"hardware": hardware(place), "curve": run.curve, "classifier": right}
    facts["accuracy"] = accuracies({name: vit}, splits, place) | before
    write_card(out, name, vit, facts, model.classifier)


if __name__ == "__main__":
    typer.run(main)
