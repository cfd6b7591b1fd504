"""A frozen ViT, ready to say what it sees in a batch of images."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

from extract.attention import NEEDS_CLS, STATISTICS, TokenLayout, attention_of
from extract.encoders.weights import weights_digest
from store import BeyondClsError


@dataclass
class Encoded:
    """Features of a batch of B images: tokens by block, attention by name."""

    patch: dict[int, Float[Tensor, "B T D"]] = field(default_factory=dict)
    cls: dict[int, Float[Tensor, "B D"]] = field(default_factory=dict)
    registers: dict[int, Float[Tensor, "B R D"]] = field(default_factory=dict)
    statistics: dict[str, Float[Tensor, "B L H"]] = field(default_factory=dict)
    maps: dict[str, Float[Tensor, "B H T"]] = field(default_factory=dict)


class Encoder:
    """A frozen timm ViT with what the store must know about it.

    Args:
        name: as users know it.
        model: with `blocks`, `norm`, `num_prefix_tokens` and `forward_features`, as timm's ViTs have.
        architecture: timm name and arguments; part of the key.
    """

    def __init__(self, name: str, model: nn.Module, architecture: Mapping[str, Any]):
        for attribute in ("blocks", "num_prefix_tokens", "forward_features"):
            if not hasattr(model, attribute):
                raise BeyondClsError(
                    f"{name} is no ViT: {type(model).__name__} has no `{attribute}`; "
                    "choose a vit_*, deit_*, beit* or eva* model"
                )
        self.name, self.model = name, model.eval().requires_grad_(False)
        self.architecture = json.dumps(architecture, sort_keys=True)
        has_cls = getattr(model, "cls_token", None) is not None
        self.layout = TokenLayout(has_cls=has_cls, n_prefix=int(model.num_prefix_tokens))  # type: ignore[arg-type]
        self.weights = weights_digest(model)
        size = getattr(getattr(model, "patch_embed", None), "img_size", None)  # of the arguments, not of the hub's weights
        self.config = resolve_model_data_config(model, {"input_size": (3, *size)} if size else None)
        self.transform = create_transform(**self.config, is_training=False)

    @property
    def n_blocks(self) -> int:
        return len(self.model.blocks)  # type: ignore[arg-type]

    @property
    def described_transform(self) -> dict[str, Any]:
        """The evaluation transform as plain values, for the key."""
        names = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
        return json.loads(json.dumps({name: self.config[name] for name in names}))

    @property
    def statistics(self) -> tuple[str, ...]:
        """Attention statistics that this encoder can have: those of [cls] only if it has [cls]."""
        return tuple(name for name in STATISTICS if self.layout.has_cls or name not in NEEDS_CLS)

    def norm(self) -> tuple[dict[str, Tensor], float | None]:
        """Weight and bias of the final norm, and its eps; empty and None where the encoder has none before pooling."""
        norm = getattr(self.model, "norm", None)
        if not isinstance(norm, nn.LayerNorm):
            return {}, None
        return {n: p.detach().cpu().float() for n, p in norm.named_parameters()}, norm.eps

    @torch.inference_mode()
    def __call__(
        self,
        images: Float[Tensor, "B 3 S S"],
        blocks: Sequence[int],
        statistics: Sequence[str] = (),
        maps: bool = False,
    ) -> Encoded:
        """One forward pass.

        Args:
            images: transformed, on the model's device.
            blocks: whose output tokens to keep, counted from 0; tokens are taken before any final norm.
            statistics: names of attention statistics, computed in every block.
            maps: keep the last block's [cls] row and centre-patch row over the patches, as they are (not renormalised).

        Raises: BeyondClsError: [cls] does not pass through the blocks, or a block's attention cannot be seen.
        """
        out, prefix = Encoded(), self.layout.n_prefix
        collected: dict[str, list[Tensor]] = {name: [] for name in statistics}

        def tokens(index: int, x: Tensor) -> None:
            x = x.to(torch.float32, copy=True)  # the next block works in place in some models
            out.patch[index] = x[:, prefix:]
            if self.layout.has_cls:
                out.cls[index] = x[:, 0]
            if self.layout.n_registers:
                out.registers[index] = x[:, int(self.layout.has_cls) : prefix]

        def attention(index: int, a: Tensor) -> None:
            a = a.float()
            for name in statistics:
                collected[name].append(STATISTICS[name](a, self.layout))
            if maps and index == self.n_blocks - 1:
                if self.layout.has_cls:
                    out.maps["cls"] = a[:, :, 0, prefix:]
                out.maps["centre"] = a[:, :, prefix + centre(a.shape[-1] - prefix), prefix:]

        modules: Any = self.model.blocks
        hooks = [modules[b].register_forward_hook(lambda _m, _i, x, b=b: tokens(b, x)) for b in blocks]
        try:
            if statistics or maps:
                with attention_of(modules, attention):
                    final = self.model.forward_features(images)  # type: ignore[operator]
            else:
                final = self.model.forward_features(images)  # type: ignore[operator]
        finally:
            for hook in hooks:
                hook.remove()
        for block, patches in out.patch.items():
            if prefix + patches.shape[1] != final.shape[1]:  # CaiT and XCiT add [cls] behind these blocks
                raise BeyondClsError(
                    f"{self.name} is no plain ViT: block {block} has {prefix + patches.shape[1]} tokens, "
                    f"the output {final.shape[1]}; choose a vit_*, deit_*, beit* or eva* model"
                )
        out.statistics = {name: torch.stack(per_block, 1) for name, per_block in collected.items()}  # [B, L, H]
        return out


def centre(n_patches: int) -> int:
    """Index of the central patch of a square grid, row by row; of a grid of even side, the one right below the middle."""
    side = int(n_patches**0.5)
    return (side // 2) * side + side // 2 if side * side == n_patches else n_patches // 2
