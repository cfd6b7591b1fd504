"""Weights of a quickstart encoder as float16 safetensors, and the card that says what they are."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from extract.encoders.quickstart import ARCHITECTURE

OBJECTIVE = {
    "mae": "masked autoencoding (MAE: mask ratio 0.75, normalised-pixel target, decoder 96 wide and 2 deep; dropped here)",
    "dino": "self-distillation (DINO: EMA teacher, Sinkhorn-Knopp centring, two crops; the teacher is what is kept)",
}


def write_card(out: Path, name: str, vit: VisionTransformer, facts: dict[str, Any]) -> None:
    """Write `name`.safetensors, `name`.json and `name`.md into `out`.

    `facts`: `recipe`, `seconds`, `hardware`, `note`, `curve` (an entry per epoch: epoch, loss, knn), `knn` (percent).
    """
    state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in vit.state_dict().items()}
    save_file(state, out / f"{name}.safetensors")
    n = sum(v.numel() for v in state.values())
    facts = {
        "architecture": ARCHITECTURE,
        "parameters": n,
        "data": "CIFAR-10, 50,000 training images, no labels",
        **facts,
    }
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    (out / f"{name}.md").write_text(card(name, facts))


def card(name: str, facts: dict[str, Any]) -> str:
    recipe = ", ".join(f"{k} {v}" for k, v in facts["recipe"].items() if v is not None)
    knn = "\n".join(f"| {who} | {a['cls']:.1f} | {a['average']:.1f} |" for who, a in facts["knn"].items())
    curve = "\n".join(
        f"| {c['epoch']} | {c['loss']:.4f} | {c['knn']['cls']:.1f} | {c['knn']['average']:.1f} |" for c in facts["curve"]
    )
    shape = facts["architecture"]
    note = f" {facts['note']}" if facts["note"] else ""
    return f"""# Quickstart encoder `{name}`

A ViT of {facts["parameters"] / 1e6:.2f} M parameters, pretrained by {OBJECTIVE[name]}.
It is {shape["embed_dim"]} wide, has {shape["depth"]} blocks and {shape["num_heads"]} attention heads;
patches of {shape["patch_size"]} on {shape["img_size"]} x {shape["img_size"]} pixels give 64 patch tokens, and there is [cls].

- Data: {facts["data"]}.
- Recipe: {recipe}; AdamW, cosine schedule. `pipelines/quickstart/pretrain.py` is the whole of it.
- Time and hardware: {facts["seconds"]} s on {facts["hardware"]}.{note}
- What it is for: showing the pipeline at work on real photographs in minutes. It is a short run of a small model, far below
  what the objective reaches with its published budget; say nothing about MAE or DINO at large from it.

k-NN accuracy in percent on CIFAR-10's 10,000 test images (k = 20, cosine, all 50,000 training images as the bank):

| encoder | [cls] | average patch |
|---|---|---|
{knn}

Loss per epoch, with the k-NN accuracy of 2,000 training images against 8,000 others (followed, not used to choose anything):

| epoch | loss | [cls] | average patch |
|---|---|---|---|
{curve}
"""
