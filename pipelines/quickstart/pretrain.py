"""Pretrain one quickstart encoder on CIFAR-10's training images, without their labels.

    python -m pipelines.quickstart.pretrain mae CIFAR10.npz --epochs 15 --out quickstart/encoders

writes `mae.safetensors` (float16), `mae.json` (recipe, loss curve, k-NN accuracy) and `mae.md`, the card to read. A run
that was stopped goes on from its checkpoint when the same command is given again. Augmentation, forward pass and optimiser
run on one device without a data loader, so a GPU is kept busy by a few lines.
"""

import json
import platform
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.neighbors import KNeighborsClassifier
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from tqdm import tqdm

from pipelines.quickstart import cifar10
from pipelines.quickstart.card import write_card
from pipelines.quickstart.dino import DINO
from pipelines.quickstart.mae import MAE
from pipelines.quickstart.vit import encode, normalise, small_vit
from probe.optim import learning_rate

OBJECTIVES = {"mae": MAE, "dino": DINO}


@torch.no_grad()
def cls_and_average(vit: VisionTransformer, images: Tensor, batch: int = 100) -> dict[str, np.ndarray]:
    """[cls] and the average patch token after the final norm, [n, D] each; images [n, 3, 32, 32] uint8."""
    vit.eval()
    tokens = [encode(vit, normalise(part.float() / 255)).cpu() for part in images.split(batch)]
    vit.train()
    return {
        "cls": torch.cat([t[:, 0] for t in tokens]).numpy(),
        "average": torch.cat([t[:, 1:].mean(1) for t in tokens]).numpy(),
    }


def knn_accuracy(
    vit: VisionTransformer, train: tuple[Tensor, np.ndarray], test: tuple[Tensor, np.ndarray], k: int = 20
) -> dict[str, float]:
    """Percent of test images whose class the k nearest training images name (cosine distance, distance-weighted)."""
    bank, queries = cls_and_average(vit, train[0]), cls_and_average(vit, test[0])
    result = {}
    for name in bank:
        classifier = KNeighborsClassifier(k, metric="cosine", weights="distance").fit(bank[name], train[1])
        result[name] = round(100 * float(classifier.score(queries[name], test[1])), 2)
    return result


def tensors(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU thread(s), {platform.machine()}"


def main(
    objective: Annotated[str, typer.Argument(help="mae or dino")],
    data: Annotated[Path, typer.Argument(help="CIFAR-10 as .npz (x, y, xt, yt), or a folder for torchvision")],
    out: Annotated[Path, typer.Option(help="folder for weights and card")] = Path("quickstart/encoders"),
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    base_lr: Annotated[float, typer.Option(help="peak learning rate of AdamW")] = 1e-3,
    weight_decay: float = 0.05,
    warmup: Annotated[float, typer.Option(help="share of the run with rising learning rate")] = 0.05,
    seed: int = 0,
    student_tokens: Annotated[int, typer.Option(help="dino: patches the student sees, of 64")] = 24,
    teacher_tokens: Annotated[int | None, typer.Option(help="dino: patches the teacher sees; all 64 by default")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if torch.cuda.is_available() else "cpu",
    note: Annotated[str, typer.Option(help="what else the card should say, e.g. that the run was continued")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="where an unfinished run is kept; OUT/OBJECTIVE.ckpt by default")
    ] = None,
) -> None:
    """Pretrain a small ViT by masked autoencoding (mae) or self-distillation (dino)."""
    if objective not in OBJECTIVES:
        raise typer.BadParameter(f"unknown objective {objective!r}; known: {', '.join(OBJECTIVES)}")
    if threads:
        torch.set_num_threads(threads)
    place = torch.device(device)
    splits = cifar10.load(data)
    images = tensors(splits["train"][0], place)
    vit = small_vit(seed).to(place)
    options: dict[str, Any] = (
        {"student_tokens": student_tokens, "teacher_tokens": teacher_tokens} if objective == "dino" else {}
    )
    model = OBJECTIVES[objective](vit, **options).to(place)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=base_lr, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(seed)
    steps = len(images) // batch
    first, seconds, curve = 0, 0.0, []
    saved = checkpoint or out / f"{objective}.ckpt"
    out.mkdir(parents=True, exist_ok=True)
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        generator.set_state(state["generator"])
        first, seconds, curve = state["epoch"], state["seconds"], state["curve"]
    for epoch in range(first, epochs):
        start, total = time.perf_counter(), 0.0
        order = torch.randperm(len(images), generator=generator)
        for step in tqdm(range(steps), desc=f"{objective} epoch {epoch + 1}/{epochs}", mininterval=10):
            progress = (epoch * steps + step) / (epochs * steps)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(progress, base_lr, epochs=1, warmup=warmup)
            chosen = images[order[step * batch : (step + 1) * batch].to(place)]
            loss = model.loss(chosen.float() / 255, generator, progress)
            if not torch.isfinite(loss):
                raise SystemExit(f"loss is {loss.item()} in epoch {epoch + 1}, step {step}; lower --base-lr (now {base_lr})")
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 3.0)
            optimiser.step()
            model.after_step(progress)
            total += loss.item()
        seconds += time.perf_counter() - start
        # Labels are only looked at here, to follow the run: the last 2,000 training images against the first 8,000.
        y = splits["train"][1]
        knn = knn_accuracy(model.encoder, (images[:8000], y[:8000]), (images[-2000:], y[-2000:]))
        curve.append({"epoch": epoch + 1, "loss": round(total / steps, 5), "knn": knn})
        print(json.dumps({**curve[-1], "seconds": round(seconds)}), flush=True)
        state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "generator": generator.get_state()}
        partial = saved.with_suffix(".partial")
        torch.save({**state, "epoch": epoch + 1, "seconds": seconds, "curve": curve}, partial)
        partial.replace(saved)

    recipe = {
        "epochs": epochs,
        "batch": batch,
        "base_lr": base_lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "seed": seed,
        **options,
    }
    test = tensors(splits["test"][0], place)
    accuracy = {
        name: knn_accuracy(encoder, (images, splits["train"][1]), (test, splits["test"][1]))
        for name, encoder in {objective: model.encoder, "random twin": small_vit(seed).to(place)}.items()
    }
    facts = {
        "recipe": recipe,
        "seconds": round(seconds),
        "hardware": hardware(place),
        "note": note,
        "curve": curve,
        "knn": accuracy,
    }
    write_card(out, objective, model.encoder, facts)


if __name__ == "__main__":
    typer.run(main)
