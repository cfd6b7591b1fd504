"""Pretrain one quickstart encoder on CIFAR-10's training images, without their labels.

    python -m quickstart.pretrain mae CIFAR10.npz --epochs 16 --out quickstart/encoders

writes `mae.safetensors` (float16), `mae.json` (recipe, loss curve, accuracies) and `mae.md`, the card to read. A run
that was stopped goes on from its checkpoint when the same command is given again; a run that has ended is trained further by
the same command with one more `--epochs`. Augmentation, forward pass and optimiser run on one device without a data loader,
so a few lines keep a GPU busy.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pipelines.process.device import keep_freed_memory
from quickstart import cifar10
from quickstart.accuracy import accuracies, accuracy, pooled
from quickstart.card import write_card
from quickstart.mae import MAE
from quickstart.mocov3 import MoCoV3
from quickstart.training import Run, hardware
from quickstart.vit import small_vit, tensors
from store import BeyondClsError
from store.errors import unknown

OBJECTIVES = {"mae": MAE, "mocov3": MoCoV3}


def held_out(vit: VisionTransformer, images: Tensor, labels: np.ndarray) -> dict[str, float]:
    """k-NN accuracy of the last 2,000 training images among the first 8,000, by pooling; labels only monitor the run."""
    return accuracy(pooled(vit, images[:8000]), labels[:8000], pooled(vit, images[-2000:]), labels[-2000:], "knn")


def main(
    objective: Annotated[str, typer.Argument(help="mae or mocov3")],
    data: Annotated[Path, typer.Argument(help="CIFAR-10 as .npz (x, y, xt, yt), or a folder for torchvision")],
    out: Annotated[Path, typer.Option(help="folder for weights and card")] = Path("quickstart/encoders"),
    epochs: Annotated[
        list[int], typer.Option(min=1, help="given again: another cycle of the learning rate, from its peak to zero")
    ] = [16],  # noqa: B006 (typer copies it)
    batch: Annotated[int, typer.Option(min=1, help="images a step")] = 256,
    base_lr: Annotated[float, typer.Option(help="peak learning rate of AdamW")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(min=0)] = 0.05,
    warmup: Annotated[float, typer.Option(help="share of a cycle with rising learning rate")] = 0.05,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    query_tokens: Annotated[int, typer.Option(min=1, max=64, help="mocov3: patches of a query, of 64")] = 16,
    key_tokens: Annotated[int, typer.Option(min=1, max=64, help="mocov3: patches of a key, of 64")] = 16,
    momentum: Annotated[float, typer.Option(min=0, max=1, help="mocov3: of the encoder of keys, when a cycle begins")] = 0.95,
    follow: Annotated[
        int, typer.Option(min=1, help="epochs from one k-NN accuracy on held-out training images to the next")
    ] = 2,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if torch.cuda.is_available() else "cpu",
    note: Annotated[str, typer.Option(help="what else the card should say, e.g. that the run was continued")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="where an unfinished run is kept; OUT/OBJECTIVE.ckpt by default")
    ] = None,
) -> None:
    """Pretrain a small ViT by masked autoencoding (mae) or by contrast (mocov3)."""
    if objective not in OBJECTIVES:
        raise BeyondClsError(unknown("objective", objective, OBJECTIVES))
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    place = torch.device(device)
    splits = cifar10.load(data)
    images, labels = tensors(splits["train"][0], place), splits["train"][1]
    if batch > len(images):
        raise BeyondClsError(f"--batch is {batch}, expected at most {len(images)}, the training images of {data}")
    recipe: dict[str, Any] = {"epochs": epochs, "batch": batch, "base_lr": base_lr, "weight_decay": weight_decay}
    recipe |= {"warmup": warmup, "seed": seed}
    options: dict[str, Any] = {}
    if objective == "mocov3":
        options = {"query_tokens": query_tokens, "key_tokens": key_tokens, "momentum": momentum}
    model = OBJECTIVES[objective](small_vit(seed), **options).to(place)
    run = Run(model, recipe | options)
    saved = checkpoint or out / f"{objective}.ckpt"
    out.mkdir(parents=True, exist_ok=True)
    if saved.exists():
        run.resume(saved)
    while len(run.curve) < sum(epochs):
        run.epoch(images)
        if len(run.curve) % follow == 0:
            run.curve[-1]["knn"] = held_out(model.encoder, images, labels)
        print(json.dumps({**run.curve[-1], "seconds": round(run.seconds)}), flush=True)
        run.save(saved)
    twins = {objective: model.encoder, "random twin": small_vit(seed).to(place)}
    facts = {"recipe": run.recipe, "seconds": round(run.seconds), "hardware": hardware(place), "note": note, "curve": run.curve}
    write_card(out, objective, model.encoder, {**facts, "accuracy": accuracies(twins, splits, place)})


if __name__ == "__main__":
    typer.run(main)
