"""ConvNeXt in plain torch, from the tensors of authors' files by their names."""

import torch
from torch import Tensor

from tests.extract.encoders.published import Stages
from tests.extract.encoders.reference import Reference, State, gelu, linear, normed, patches_of


def depthwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each channel of [B, h, w, D] with its own 7 x 7 weights, zeros around it: a sum of 49 shifted products."""
    h, w = x.shape[1:3]
    padded = torch.nn.functional.pad(x, (0, 0, 3, 3, 3, 3))
    shifted = (padded[:, i : i + h, j : j + w] * weight[:, 0, i, j] for i in range(7) for j in range(7))
    return sum(shifted, torch.zeros_like(x)) + bias


def stages(file: Stages, state: State, images: Tensor) -> Reference:
    """Feature maps [B, h, w, D] of four stages, as tokens."""

    def norm(layer: str, x: Tensor) -> Tensor:
        return normed(state.get, layer, x, file.eps)

    out, x = Reference(), images.permute(0, 2, 3, 1)
    for stage, depth in enumerate(file.depths):
        down = file.down.format(stage) if stage else file.first
        layers = [f"{down}0", f"{down}1"]
        conv = layers[bool(stage)]  # behind the norm, but in front of it in the first stage
        x = norm(layers[0], x) if stage else x
        weight = state[f"{conv}.weight"]
        side = x.shape[1] // weight.shape[-1]
        x = patches_of(x.permute(0, 3, 1, 2), weight, state[f"{conv}.bias"]).unflatten(1, (side, side))
        x = x if stage else norm(layers[1], x)
        for index in range(depth):
            block = file.block.format(stage, index)
            mixed = depthwise(x, state[f"{block}{file.mix}.weight"], state[f"{block}{file.mix}.bias"])
            hidden = gelu(linear(state.get, f"{block}{file.wide}", norm(f"{block}norm", mixed)))
            x = x + state[f"{block}gamma"] * linear(state.get, f"{block}{file.narrow}", hidden)
        out.tokens.append(x.flatten(1, 2))
    return out
