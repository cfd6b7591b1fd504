"""What a forward pass of an encoder costs, counted from shapes alone."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops_of(model: nn.Module, input_size: tuple[int, int, int]) -> int | None:
    """Floating-point operations of one image, a multiplication and an addition counting as two.

    Matrix products and convolutions count, those of attention included; no norm, softmax or activation does. Nothing is
    computed: tensors are on torch's meta device, which has shapes only.

    Args:
        input_size: channels, height and width of an image.

    Returns:
        None for a model whose steps depend on values.
    """
    tensors = [*model.parameters(), *model.buffers()]
    try:
        shadow = copy.deepcopy(model, {id(t): t.detach().to("meta") for t in tensors}).eval()  # takes no memory for weights
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            shadow.forward_features(torch.zeros(1, *input_size, device="meta"))  # type: ignore[operator]
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    return counter.get_total_flops()
