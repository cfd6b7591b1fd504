"""Weights of a quickstart encoder as float16 safetensors, and the card that says what they are."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

from extract.encoders.quickstart import ARCHITECTURE
from extract.encoders.weights import weights_digest
from pipelines.quickstart.accuracy import LABELLED
from pipelines.quickstart.vit import small_vit

OBJECTIVE = {
    "mae": "masked autoencoding (MAE: mask ratio 0.75, normalised-pixel target, decoder 96 wide and 2 deep; dropped here)",
    "mocov3": "contrast (MoCo v3: symmetric loss, momentum encoder, frozen patch embedding; the encoder of queries is kept)",
}
PROTOCOL = {
    "knn": "k nearest neighbours (k = 20, cosine, weighted as DINO's)",
    "linear": "logistic regression (standardised; its penalty selected on a tenth of the training images)",
}
# Percent, as its card says; it does not name the version of MoCo.
PUBLISHED = "huggingface.co/HugoPlanchat/self-supervised-to-jepa"
COMPARABLE = {"mae": {"knn": 46.77, "linear": 49.05}, "mocov3": {"knn": 74.13, "linear": 69.68}}
POOLING = {"cls": "[cls]", "average": "average patch"}


def write_card(out: Path, name: str, vit: VisionTransformer, facts: dict[str, Any]) -> None:
    """Write `name`.safetensors, `name`.json and `name`.md into `out`.

    `facts`: `recipe`, `seconds` (of wall-clock), `hardware`, `note`, `curve` (an entry an epoch: epoch, loss, and knn of some),
    `accuracy` (percent by encoder, protocol and pooling).
    """
    file = out / f"{name}.safetensors"
    state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in vit.state_dict().items()}
    save_file(state, file)
    published = small_vit(0)
    published.load_state_dict(load_file(file))
    facts = {
        "architecture": ARCHITECTURE,
        "parameters": sum(v.numel() for v in state.values()),
        "weights": weights_digest(published),
        "data": "CIFAR-10, 50,000 training images, no labels",
        **facts,
    }
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    (out / f"{name}.md").write_text(card(name, facts))


def _cycles(epochs: list[int]) -> str:
    """`half a cosine of 9 epochs, then another of 16`."""
    first, *others = epochs
    return f"half a cosine of {first} epochs" + "".join(f", then another of {n}" for n in others)


def card(name: str, facts: dict[str, Any]) -> str:
    """The card in Markdown; the loss curve is in the .json whole, here by the epochs that were measured."""
    epochs = facts["recipe"]["epochs"]
    options = [("epochs", n) for n in epochs] + [(k, v) for k, v in facts["recipe"].items() if k != "epochs"]
    command = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options)
    shape, other = facts["architecture"], COMPARABLE[name]
    note = f" {facts['note']}" if facts["note"] else ""
    rows = "\n".join(
        f"| {PROTOCOL[protocol]} | {who} | " + " | ".join(f"{by_pooling[pooling]:.1f}" for pooling in POOLING) + " |"
        for who, by_protocol in facts["accuracy"].items()
        for protocol, by_pooling in by_protocol.items()
    )
    curve = "\n".join(
        f"| {at['epoch']} | {at['loss']:.4f} | "
        + " | ".join(f"{at['knn'][pooling]:.1f}" if "knn" in at else "" for pooling in POOLING)
        + " |"
        for at in facts["curve"]
    )
    return f"""# Quickstart encoder `{name}`

A ViT of {facts["parameters"] / 1e6:.2f} M parameters, pretrained by {OBJECTIVE[name]}.
It is {shape["embed_dim"]} wide, has {shape["depth"]} blocks and {shape["num_heads"]} attention heads;
patches of {shape["patch_size"]} on {shape["img_size"]} x {shape["img_size"]} pixels give 64 patch tokens, and there is [cls].

- Weights: `{name}.safetensors`, float16, {facts["weights"]}.
- Data: {facts["data"]}.
- Recipe: AdamW; of the learning rate, {_cycles(epochs)}; the whole of it is
  `python -m pipelines.quickstart.pretrain {name} CIFAR10.npz {command}`.
- Time and hardware: {facts["seconds"]:,} s on {facts["hardware"]}.{note}
- What it is for: showing the pipeline at work on real photographs in minutes. It is a short run of a small model, far below
  what the objective reaches with its published budget; say nothing about the objective at large from it.

Percent of CIFAR-10's 10,000 test images that are classified correctly from the frozen encoder, with the labels of the first
{LABELLED:,} training images; the random twin has the same architecture and was never trained:

| protocol | encoder | [cls] | average patch |
|---|---|---|---|
{rows}

Published of a comparable model, by others and with other details of the protocols ({PUBLISHED}):
k-NN {other["knn"]:.1f}, linear {other["linear"]:.1f}, by a ViT of 1.2 M parameters, 128 wide, 6 blocks, patches of 4, after
100 epochs on STL-10's unlabelled images, measured on CIFAR-10. It saw more images, for longer.

Loss per epoch, with the k-NN accuracy of the last 2,000 training images against the first 8,000:

| epoch | loss | [cls] | average patch |
|---|---|---|---|
{curve}
"""
