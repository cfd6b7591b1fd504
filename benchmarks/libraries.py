"""ViTs of other libraries through `beyondcls.wrap`, at their published sizes, against what each library itself puts out.

    python -m benchmarks.libraries [--quick] [--only REGEX]

Weights are random, so nothing is downloaded. For each model: the line that a user writes, and of one image the largest
differences of the tokens of all blocks, in units of their largest value, and of rows of attention. A library that is not
installed is named; what `wrap` refuses is shown with its message. `--quick` takes two blocks of one model a library.
"""

import argparse
import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import beyondcls
from extract.encoders.libraries import of_transformers

Own = Callable[[Any, Tensor], tuple[list[Tensor], list[Tensor]]]  # tokens [B, N, D] and attention [B, H, N, N] of all blocks


@dataclass
class Model:
    """`make(depth)` gives it, of its published depth if None; `line` is what a user writes, `known` what `wrap` is given."""

    library: str
    name: str
    make: Callable[[int | None], nn.Module]
    own: Own
    line: str = "wrap(model)"
    known: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Compared:
    """What `wrap` made of a model; `refused` is its message if it did not. Differences are the largest of all blocks."""

    refused: str = ""
    n_blocks: int = 0
    prefix: str = ""
    n_statistics: int = 0
    of_tokens: float = float("nan")
    of_attention: float = float("nan")


def sharpened(model: nn.Module) -> nn.Module:
    """With larger weights, as attention is near uniform where they are as drawn; much larger ones multiply rounding."""
    for module in model.modules():
        for weight in (getattr(module, name, None) for name in ("weight", "in_proj_weight")):
            if isinstance(module, nn.Linear | nn.MultiheadAttention) and isinstance(weight, nn.Parameter):
                weight.data *= min(3.0, 0.06 / max(1e-9, float(weight.std())))
    return model


def compare(model: Model, depth: int | None) -> Compared:
    """Wrap it, and compare features of one image of noise with what the library puts out itself."""
    torch.manual_seed(0)
    made = sharpened(model.make(depth))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", beyondcls.BeyondClsWarning)
        try:
            encoder = beyondcls.wrap(made, **model.known)
        except beyondcls.BeyondClsError as error:
            return Compared(str(error))
    layout, every = encoder.layout, range(encoder.n_blocks)
    prefix = ", ".join([*["[cls]"] * layout.has_cls, *[f"registers: {layout.n_registers}"] * (layout.n_registers > 0)])
    found = Compared("", encoder.n_blocks, prefix or "none", len(encoder.statistics))
    image = torch.randn(1, *encoder.config["input_size"], generator=torch.Generator().manual_seed(0))
    out = encoder(image, every, encoder.statistics, every if encoder.statistics else ())
    with torch.inference_mode():
        tokens, attention = model.own(made, image)
    assert layout.grid is not None
    n, (rows, columns) = layout.n_prefix, layout.grid
    found.of_tokens = max(float((out.patch[b] - tokens[b][:, n:]).abs().max() / tokens[b].abs().max()) for b in every)
    row_of = {"cls": 0, "centre": n + rows // 2 * columns + columns // 2}
    found.of_attention = max(
        (
            float((out.maps[f"{row}/block{b}"] - attention[b][:, :, index, n:]).abs().max())
            for row, index in row_of.items()
            for b in every
            if f"{row}/block{b}" in out.maps
        ),
        default=float("nan"),
    )
    return found


def of_hooks(blocks: str, attention: Callable[[Any], Any], weights: Callable[..., Tensor]) -> Own:
    """Tokens that the blocks put out, and `weights(module, inputs, options, output)` of the `attention` of each."""

    def run(model: Any, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        tokens: list[Tensor] = []
        maps: list[Tensor] = []
        hooks = []
        for block in model.get_submodule(blocks):
            hooks.append(block.register_forward_hook(lambda _m, _i, out: tokens.append(out.clone())))
            keep = lambda m, i, k, out: maps.append(weights(m, i, k, out))  # noqa: E731
            hooks.append(attention(block).register_forward_hook(keep, with_kwargs=True))
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
        model(images)
        for hook in hooks:
            hook.remove()
        return tokens, maps

    return run


def of_multi_head(module: Any, inputs: tuple[Tensor, ...], options: Mapping[str, Any], _out: Any) -> Tensor:
    """Weights of `nn.MultiheadAttention`, by a second call that asks for them."""
    x = inputs[0] if inputs else options["query"]
    return module.forward(x, x, x, need_weights=True, average_attn_weights=False)[1]


def of_itself(_module: Any, _inputs: Any, _options: Any, out: Tensor) -> Tensor:
    return out


TIMM = of_hooks("blocks", lambda block: block.attn.attn_drop, of_itself)


def timm(name: str, is_staged: bool = False) -> Model:
    def make(depth: int | None) -> nn.Module:
        options = {} if depth is None or is_staged else {"depth": depth}
        return importlib.import_module("timm").create_model(name, **options)

    return Model("timm", name, make, TIMM)


def of_transformers_own(kind: str, name: str, **configuration: Any) -> Model:
    """With the class's default configuration, that of its published base size in most, but for `configuration`."""
    made: dict[str, Any] = {}

    def make(depth: int | None) -> nn.Module:
        of_kind = getattr(importlib.import_module("transformers"), kind)
        layers = {} if depth is None else {"num_hidden_layers": depth}
        own = of_transformers(of_kind(of_kind.config_class(**configuration, **layers, attn_implementation="eager")))
        made.update(own.known)
        return own.model

    def own(model: Any, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        forward = model.forward
        model.forward = lambda **inputs: forward(**inputs, output_attentions=True, output_hidden_states=True)
        try:
            out = made["forward"](model, images)
        finally:
            model.forward = forward
        return list(out.hidden_states[1:]), list(out.attentions)

    return Model("transformers", name, make, own, "--encoder transformers:NAME", made)


def torchvision(name: str) -> Model:
    def make(depth: int | None) -> nn.Module:
        models = importlib.import_module("torchvision.models")
        model = models.get_model(name, weights=None)
        if hasattr(model, "encoder"):
            model.encoder.layers = model.encoder.layers[:depth]
        return model

    own = of_hooks("encoder.layers", lambda block: block.self_attention, of_multi_head)
    return Model("torchvision", name, make, own, f"--encoder torchvision:{name}")


def open_clip(name: str) -> Model:
    def make(depth: int | None) -> nn.Module:
        model = importlib.import_module("open_clip").create_model(name, pretrained=None).visual
        if hasattr(model, "transformer"):
            model.transformer.resblocks = model.transformer.resblocks[:depth]
        return model

    own = of_hooks("transformer.resblocks", lambda block: block.attn, of_multi_head)
    return Model("open_clip", name, make, own, f"--encoder open_clip:{name}/WEIGHTS")


def vit_pytorch(module: str, kind: str, name: str, **options: Any) -> Model:
    """Of the size of its README's example, whose blocks are lists of parts."""
    size = {"image_size": 256, "patch_size": 32, "num_classes": 1000, "dim": 1024, "heads": 16, "mlp_dim": 2048}

    def make(depth: int | None) -> nn.Module:
        return getattr(importlib.import_module(f"vit_pytorch.{module}"), kind)(**size, depth=depth or 6, **options)

    def own(model: Any, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        tokens: list[Tensor] = []
        maps: list[Tensor] = []
        hooks = []
        for attention, mlp in model.transformer.layers:  # what the MLP adds to what it is given is what leaves the block
            hooks.append(mlp.register_forward_hook(lambda _m, i, out: tokens.append(i[0] + out)))
            if hasattr(attention, "attend"):
                hooks.append(attention.attend.register_forward_hook(lambda _m, _i, out: maps.append(out)))
        model(images)
        for hook in hooks:
            hook.remove()
        return tokens, maps

    return Model(
        "vit-pytorch", name, make, own, "wrap(model, input_size=256, patch_size=32)", {"input_size": 256, "patch_size": 32}
    )


def monai() -> Model:
    def make(depth: int | None) -> nn.Module:
        kind = importlib.import_module("monai.networks.nets").ViT
        options = {"num_layers": depth or 12, "classification": True, "spatial_dims": 2, "save_attn": True}
        return kind(in_channels=3, img_size=(224, 224), patch_size=16, **options)

    def weights(module: Any, _inputs: Any, _options: Any, _out: Any) -> Tensor:
        return module.att_mat

    return Model("MONAI", "ViT", make, of_hooks("blocks", lambda block: block.attn, weights))


def lightly() -> Model:
    def make(depth: int | None) -> nn.Module:
        module = importlib.import_module("lightly.models.modules").MaskedVisionTransformerTIMM
        return module(timm("vit_base_patch16_224").make(depth))

    own = of_hooks("vit.blocks", lambda block: block.attn.attn_drop, of_itself)
    return Model("lightly", "MaskedVisionTransformerTIMM", make, own)


class OfTorch(nn.Module):
    """A ViT-B/16 of torch's own layers."""

    def __init__(self, depth: int):
        super().__init__()
        self.image_size, self.patches = 224, nn.Conv2d(3, 768, 16, 16)
        self.cls_token, self.positions = nn.Parameter(torch.zeros(1, 1, 768)), nn.Parameter(torch.randn(1, 197, 768) / 50)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True, activation="gelu")
        self.encoder, self.norm = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.LayerNorm(768)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        return self.norm(self.encoder(torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.positions))


def models() -> list[Model]:
    layers = of_hooks("encoder.layers", lambda block: block.self_attn, of_multi_head)
    of_torch = Model("torch", "nn.TransformerEncoder", lambda depth: OfTorch(depth or 12), layers)
    return [
        of_transformers_own("ViTModel", "ViT"),
        of_transformers_own("DeiTModel", "DeiT"),
        of_transformers_own("ViTMAEModel", "ViTMAE"),
        of_transformers_own("ViTMSNModel", "ViT-MSN"),
        of_transformers_own("BeitModel", "BEiT", use_relative_position_bias=True, use_mask_token=True),
        of_transformers_own("Data2VecVisionModel", "Data2Vec", use_relative_position_bias=True),
        of_transformers_own("Dinov2Model", "DINOv2", image_size=518, patch_size=14),
        of_transformers_own("Dinov2WithRegistersModel", "DINOv2 with registers", image_size=518, patch_size=14),
        of_transformers_own("DINOv3ViTModel", "DINOv3", num_register_tokens=4),
        of_transformers_own("CLIPVisionModel", "CLIP"),
        of_transformers_own("SiglipVisionModel", "SigLIP"),
        of_transformers_own("Siglip2VisionModel", "SigLIP 2"),
        of_transformers_own("IJepaModel", "I-JEPA"),
        of_transformers_own("Aimv2VisionModel", "AIMv2"),
        of_transformers_own("SwinModel", "Swin"),
        timm("vit_base_patch16_224"),
        timm("deit3_base_patch16_224"),
        timm("beit_base_patch16_224"),
        timm("vit_base_patch14_reg4_dinov2"),
        timm("vit_base_patch16_dinov3"),
        timm("eva02_base_patch14_224"),
        timm("vit_base_patch16_siglip_224"),
        timm("swin_base_patch4_window7_224", is_staged=True),
        timm("cait_s24_224"),
        torchvision("vit_b_16"),
        torchvision("vit_l_32"),
        torchvision("swin_b"),
        open_clip("ViT-B-16"),
        open_clip("ViT-L-14"),
        open_clip("coca_ViT-B-32"),
        open_clip("RN50"),
        vit_pytorch("vit", "ViT", "ViT"),
        vit_pytorch("simple_vit", "SimpleViT", "SimpleViT"),
        vit_pytorch("simple_vit_with_qk_norm", "SimpleViT", "SimpleViT, normalised queries"),
        vit_pytorch("deepvit", "DeepViT", "DeepViT"),
        vit_pytorch("simple_vit_with_register_tokens", "SimpleViT", "SimpleViT, registers last", num_register_tokens=4),
        monai(),
        lightly(),
        of_torch,
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two blocks of the first model of each library")
    parser.add_argument("--only", default="", metavar="REGEX", help="models whose LIBRARY NAME matches")
    args = parser.parse_args(argv)
    differences: dict[str, list[float]] = {"tokens": [], "attention": []}
    print("| library | model | what you write | blocks | before the patches | statistics | tokens | attention |")
    print("|---|---|---|---|---|---|---|---|")
    chosen = [model for model in models() if re.search(args.only, f"{model.library} {model.name}")]
    if args.quick:
        chosen = list({model.library: model for model in reversed(chosen)}.values())
    for model in chosen:
        start = f"| {model.library} | {model.name} |"
        try:
            found = compare(model, 2 if args.quick else None)
        except ImportError as error:
            print(f"{start} not installed: {error} | | | | | |", flush=True)
            continue
        if found.refused:
            print(f"{start} refused: {found.refused} | | | | | |", flush=True)
            continue
        print(
            f"{start} `{model.line}` | {found.n_blocks} | {found.prefix} | {found.n_statistics} | {found.of_tokens:.0e} | "
            f"{found.of_attention:.0e} |".replace("nan", "–"),
            flush=True,
        )
        differences["tokens"].append(found.of_tokens)
        differences["attention"].append(found.of_attention)
    print(
        json.dumps(
            {f"largest difference of {what}": max(x for x in many if x == x) for what, many in differences.items() if many}
        )
    )


if __name__ == "__main__":
    main()
