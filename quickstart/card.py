"""Weights of a quickstart encoder as float16 safetensors, and the card that says what they are."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from extract.encoders.quickstart import ARCHITECTURE
from extract.encoders.weights import weights_digest
from quickstart.accuracy import LABELLED
from quickstart.terms import LIMITS, front_matter, licence, loading
from quickstart.vit import small_vit

OBJECTIVE = {
    "mae": "masked autoencoding (MAE: mask ratio 0.75, normalised-pixel target, decoder 96 wide and 2 deep; dropped here)",
    "mocov3": "contrast (MoCo v3: symmetric loss, momentum encoder, frozen patch embedding; the encoder of queries is kept)",
}
FINE_TUNING = (
    "MAE's for fine-tuning (arXiv 2111.06377, Table 9): AdamW (0.9, 0.999), learning rates that fall from layer to layer\n"
    "  towards the images, warm-up, drop path, label smoothing, mixup and CutMix"
)
PROTOCOL = {
    "knn": "k nearest neighbours (k = 20, cosine, weighted as DINO's)",
    "linear": "logistic regression (standardised; its penalty selected on a tenth of the training images)",
}
# Percent, as its card says; it does not name the version of MoCo.
PUBLISHED = "huggingface.co/HugoPlanchat/self-supervised-to-jepa"
COMPARABLE = {"mae": {"knn": 46.77, "linear": 49.05}, "mocov3": {"knn": 74.13, "linear": 69.68}}
POOLING = {"cls": "[cls]", "average": "average patch"}


def write_card(
    out: Path, name: str, vit: VisionTransformer, facts: dict[str, Any], classifier: nn.Linear | None = None
) -> None:
    """Write `name`.safetensors, `name`.json and `name`.md into `out`.

    Args:
        facts: `recipe`, `seconds` (of wall-clock), `hardware`, `note`, `curve` (an entry an epoch: epoch, loss, and knn of
            some), `accuracy` (percent by encoder, protocol and pooling); of a fine-tuned encoder also `data`, `parent` (its
            name) and `classifier` (percent by images).
        classifier: of a fine-tuned encoder; its tensors are in the file, too.
    """
    file = out / f"{name}.safetensors"
    state = _halved(vit)
    save_file(state | {f"head.{k}": v for k, v in (_halved(classifier) if classifier else {}).items()}, file)
    published = small_vit(0)
    published.load_state_dict({k: v for k, v in load_file(file).items() if k in state})
    facts = {
        "architecture": ARCHITECTURE,
        "parameters": sum(v.numel() for v in state.values()),
        "weights": weights_digest(published),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "data": "CIFAR-10, 50,000 training images, no labels",
        **facts,
    }
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    (out / f"{name}.md").write_text(card(name, facts))


def _halved(module: nn.Module) -> dict[str, Tensor]:
    """Its tensors as float16, on the CPU."""
    return {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in module.state_dict().items()}


def _cycles(epochs: list[int]) -> str:
    """`half a cosine of 9 epochs, then another of 16`."""
    first, *others = epochs
    return f"half a cosine of {first} epochs" + "".join(f", then another of {n}" for n in others)


def card(name: str, facts: dict[str, Any]) -> str:
    """The card in Markdown; the loss curve is in the .json whole, here by the epochs that were measured."""
    if "recipe" not in facts:
        return _untrained(name, facts)
    return _fine_tuned(name, facts) if "parent" in facts else _pretrained(name, facts)


def _pretrained(name: str, facts: dict[str, Any]) -> str:
    epochs, other = facts["recipe"]["epochs"], COMPARABLE[name]
    curve = "\n".join(
        f"| {at['epoch']} | {at['loss']:.4f} | "
        + " | ".join(f"{at['knn'][pooling]:.1f}" if "knn" in at else "" for pooling in POOLING)
        + " |"
        for at in facts["curve"]
    )
    return f"""{front_matter(name)}
# Quickstart encoder `{name}`

A ViT of {facts["parameters"] / 1e6:.2f} M parameters, pretrained by {OBJECTIVE[name]}.
{_shape(facts)}

{_weights(name, facts)}.
{licence()}
{loading(name)}
- Data: {facts["data"]}.
- Recipe: AdamW; of the learning rate, {_cycles(epochs)}; the whole of it is
  `python -m quickstart.pretrain {name} CIFAR10.npz {_options(facts["recipe"])}`.
- Time and hardware: {_time(facts)}
- What it is for: showing the pipeline at work on real photographs in minutes. It is a short run of a small model, far below
  what the objective reaches with its published budget; say nothing about the objective at large from it.
- What to keep in mind: {LIMITS}

Percent of CIFAR-10's 10,000 test images that are classified correctly from the frozen encoder, with the labels of the first
{LABELLED:,} training images; the random twin has the same architecture and was never trained:

{_accuracies(facts)}

Published of a comparable model, by others and with other details of the protocols ({PUBLISHED}):
k-NN {other["knn"]:.1f}, linear {other["linear"]:.1f}, by a ViT of 1.2 M parameters, 128 wide, 6 blocks, patches of 4, after
100 epochs on STL-10's unlabelled images, measured on CIFAR-10. It saw more images, for longer.

Loss per epoch, with the k-NN accuracy of the last 2,000 training images against the first 8,000:

| epoch | loss | [cls] | average patch |
|---|---|---|---|
{curve}
"""


def _fine_tuned(name: str, facts: dict[str, Any]) -> str:
    parent, recipe = facts["parent"], facts["recipe"]
    curve = "\n".join(f"| {at['epoch']} | {at['loss']:.4f} |" for at in facts["curve"])
    return f"""{front_matter("fine-tuned")}
# Quickstart encoder `{name}`

A ViT of {facts["parameters"] / 1e6:.2f} M parameters: the encoder `{parent}`, fine-tuned on labels through [cls].
{_shape(facts)}

{_weights(name, facts)}; the classifier is in the file, too.
{licence()}
{loading(name)}
- Fine-tuned from: `{parent}.safetensors`, {recipe["parent"]}.
- Data: {facts["data"]}.
- Recipe: {FINE_TUNING}; half a cosine of {recipe["epochs"][0]} epochs; the whole of it is
  `python -m quickstart.finetune CIFAR10.npz {_options(recipe)}`.
{_differing(recipe)}
- Time and hardware: {_time(facts)}
- What it is for: showing what fine-tuning through [cls] does to what a probe finds in the patches. It is a short run of a
  small model; say nothing about fine-tuning at large from it.
- What to keep in mind: it has seen every training image together with its label, so a probe that is trained on these images
  learns from features that already fit their labels. The test images were seen by neither pretraining nor fine-tuning.
- Besides, {LIMITS}

Its classifier is right on {facts["classifier"]["test"]:.1f} % of CIFAR-10's 10,000 test images, and on
{facts["classifier"]["train"]:.1f} % of the first {LABELLED:,} training images, all without augmentation.

Percent of the test images that are classified correctly from the frozen encoder, with the labels of the first
{LABELLED:,} training images; `{parent}` is what it was before fine-tuning, and the random twin was never trained:

{_accuracies(facts)}

Loss per epoch, on augmented images:

| epoch | loss |
|---|---|
{curve}
"""


def _untrained(name: str, facts: dict[str, Any]) -> str:
    return f"""{front_matter("untrained", is_trained=False)}
# Quickstart encoder `{name}`

A ViT of {facts["parameters"] / 1e6:.2f} M parameters that was never trained: the twin beside which the others are measured.
{_shape(facts)}

{_weights(name, facts, "float32")}.
{licence(is_trained=False)}
{loading(name)}
- Data: none. The weights were drawn by timm's initialisation from seed {facts["seed"]}, and are kept in a file because other
  CPUs draw other last bits.
- What it is for: showing which part of a result an architecture reaches without training. It is of no other use.

Percent of CIFAR-10's 10,000 test images that are classified correctly from the frozen encoder, with the labels of the first
{LABELLED:,} training images:

{_accuracies(facts)}
"""


def _weights(name: str, facts: dict[str, Any], dtype: str = "float16") -> str:
    """The file, and its two digests."""
    return (
        f"- Weights: `{name}.safetensors`, {dtype}; digest of the tensors {facts['weights']}, SHA-256 of the file\n"
        f"  {facts['sha256']}"
    )


def _differing(recipe: dict[str, Any]) -> str:
    """From the published recipe."""
    epochs, batch, tokens = recipe["epochs"][0], recipe["batch"], recipe["tokens"]
    crop, mixed = (f"{100 * recipe[name]:.0f} %" for name in ("smallest_crop", "mixed"))
    return f"""- What differs from the published recipe, for 32 x 32 pixels and minutes on a CPU: {epochs} epochs instead of a
  hundred, batches of {batch} instead of 1,024; {tokens} of an image's 64 patches go through the encoder in a step (all of them
  afterwards, as with its parent); crops of at least {crop} of the image; brightness, contrast and saturation
  change instead of RandAugment, in whole batches at once; no random erasing, as CutMix covers parts too; {mixed} of the images
  are mixed instead of all, as a short run hardly overfits; mixup blends uniformly instead of by Beta(0.8, 0.8); gradients are
  clipped at a norm of 3. Nothing was tuned."""


def _shape(facts: dict[str, Any]) -> str:
    shape = facts["architecture"]
    return (
        f"It is {shape['embed_dim']} wide, has {shape['depth']} blocks and {shape['num_heads']} attention heads;\n"
        f"patches of {shape['patch_size']} on {shape['img_size']} x {shape['img_size']} pixels give 64 patch tokens, "
        "and there is [cls]."
    )


def _options(recipe: dict[str, Any]) -> str:
    """Of the command, in its words; the parent's digest is none of them."""
    options = [("epochs", n) for n in recipe["epochs"]] + [(k, v) for k, v in recipe.items() if k not in ("epochs", "parent")]
    return " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options)


def _time(facts: dict[str, Any]) -> str:
    return f"{facts['seconds']:,} s on {facts['hardware']}.{' ' if facts['note'] else ''}{facts['note']}"


def _accuracies(facts: dict[str, Any]) -> str:
    """A row for each protocol and encoder."""
    rows = "\n".join(
        f"| {PROTOCOL[protocol]} | {who} | " + " | ".join(f"{by_pooling[pooling]:.1f}" for pooling in POOLING) + " |"
        for who, by_protocol in facts["accuracy"].items()
        for protocol, by_pooling in by_protocol.items()
    )
    return f"| protocol | encoder | [cls] | average patch |\n|---|---|---|---|\n{rows}"
