"""Pretrain one quickstart encoder on CIFAR-10's training images, without their labels.

    python -m pipelines.quickstart.pretrain mae CIFAR10.npz --epochs 16 --out quickstart/encoders

writes `mae.safetensors` (float16), `mae.json` (recipe, loss curve, accuracies) and `mae.md`, the card to read. A run
that was stopped goes on from its checkpoint when the same command is given again; a run that has ended is trained further by
the same command with one more `--epochs`. Augmentation, forward pass and optimiser run on one device without a data loader,
so a few lines keep a GPU busy.
"""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from tqdm import tqdm

from pipelines.process.allocator import keep_freed_memory
from pipelines.quickstart import cifar10
from pipelines.quickstart.accuracy import LABELLED, PROTOCOLS, accuracy, pooled
from pipelines.quickstart.card import write_card
from pipelines.quickstart.mae import MAE
from pipelines.quickstart.mocov3 import MoCoV3
from pipelines.quickstart.vit import small_vit
from probe.optim import learning_rate
from store import BeyondClsError
from store.errors import unknown

OBJECTIVES = {"mae": MAE, "mocov3": MoCoV3}


class Run:
    """A model, its optimiser, and how far they got.

    `recipe`: epochs (of each cycle of the learning rate: a warm restart between two, arXiv 1608.03983), batch, base_lr (the
    peak learning rate of AdamW), weight_decay (of matrices), warmup (share of a cycle in which the learning rate rises) and
    seed. The same recipe on the same images and hardware gives the same weights, whether the run was stopped or not.
    """

    def __init__(self, model: MAE | MoCoV3, recipe: Mapping[str, Any]):
        self.model, self.recipe = model, dict(recipe)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.ndim > 1], "weight_decay": recipe["weight_decay"]},
            {"params": [p for p in self.trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe["base_lr"], betas=(0.9, 0.95))
        self.generator = torch.Generator().manual_seed(recipe["seed"])
        self.seconds, self.curve = 0.0, list[dict[str, Any]]()

    def epoch(self, images: Tensor) -> None:
        """One pass over `images` [n, 3, 32, 32] uint8, in a newly drawn order; the last incomplete batch is left out."""
        start, total, done = time.perf_counter(), 0.0, len(self.curve)
        batch = self.recipe["batch"]
        steps = len(images) // batch
        order = torch.randperm(len(images), generator=self.generator)
        for step in tqdm(range(steps), desc=f"epoch {done + 1}/{sum(self.recipe['epochs'])}", mininterval=10):
            progress = cycle_progress(done + step / steps, self.recipe["epochs"])
            chosen = images[order[step * batch : (step + 1) * batch].to(images.device)]
            total += self.step(chosen.float() / 255, progress)
        self.seconds += time.perf_counter() - start
        self.curve.append({"epoch": done + 1, "loss": round(total / steps, 5)})

    def step(self, images: Tensor, progress: float) -> float:
        """Take one step of the optimiser; returns the loss.

        Raises:
            BeyondClsError: the loss is not a finite number.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(progress, self.recipe["base_lr"], epochs=1, warmup=self.recipe["warmup"])
        loss = self.model.loss(images, self.generator, progress)
        if not torch.isfinite(loss):
            raise BeyondClsError(
                f"the loss is {loss.item()} in epoch {len(self.curve) + 1}, expected a finite number; "
                f"lower --base-lr (now {self.recipe['base_lr']})"
            )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 3.0)
        self.optimiser.step()
        self.model.after_step(progress)
        return loss.item()

    def save(self, file: Path) -> None:
        """All at once: a run that is killed while it saves leaves the file as it was."""
        partial = file.with_suffix(".partial")
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        facts = {"recipe": self.recipe, "epoch": len(self.curve), "seconds": self.seconds, "curve": self.curve}
        torch.save({**state, **facts, "generator": self.generator.get_state()}, partial)
        partial.replace(file)

    def resume(self, file: Path) -> None:
        """From a run of the same recipe, or of one with fewer cycles.

        Raises:
            BeyondClsError: the recipes differ otherwise.
        """
        state = torch.load(file, weights_only=True)
        cycles = len(state["recipe"]["epochs"])
        shortened = self.recipe | {"epochs": self.recipe["epochs"][:cycles]}
        other = {name: value for name, value in state["recipe"].items() if shortened.get(name) != value}
        if other:
            ours = {name: self.recipe.get(name) for name in other}
            raise BeyondClsError(
                f"{file} was left by a run with {_listed(other)}, this one has {_listed(ours)}; "
                "give the same options, or another --checkpoint"
            )
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.seconds, self.curve = state["seconds"], state["curve"]


def cycle_progress(epoch: float, cycles: Sequence[int]) -> float:
    """How far (0...1) a fractional `epoch` of the whole run is in its cycle; `cycles` are their lengths in epochs."""
    for cycle in cycles[:-1]:
        if epoch < cycle:
            return epoch / cycle
        epoch -= cycle
    return epoch / cycles[-1]


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def tensors(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)


def held_out(vit: VisionTransformer, images: Tensor, labels: np.ndarray) -> dict[str, float]:
    """k-NN accuracy of the last 2,000 training images among the first 8,000, by pooling; labels only monitor the run."""
    return accuracy(pooled(vit, images[:8000]), labels[:8000], pooled(vit, images[-2000:]), labels[-2000:], "knn")


def accuracies(encoders: Mapping[str, VisionTransformer], splits: cifar10.Splits, device: torch.device) -> dict[str, Any]:
    """Percent of the test images by encoder, protocol and pooling, with the labels of the first LABELLED training images."""
    training, test = tensors(splits["train"][0][:LABELLED], device), tensors(splits["test"][0], device)
    by_encoder: dict[str, Any] = {}
    for name, vit in encoders.items():
        learnt, asked = pooled(vit, training), pooled(vit, test)
        by_encoder[name] = {p: accuracy(learnt, splits["train"][1][:LABELLED], asked, splits["test"][1], p) for p in PROTOCOLS}
    return by_encoder


def hardware(device: torch.device) -> str:
    """`NVIDIA H200`, or `1 thread of AMD EPYC-Milan Processor`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    n = torch.get_num_threads()
    return f"{n} thread{'s' * (n > 1)} of {models[0] if models else platform.machine()}"


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
