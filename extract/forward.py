"""Passes through a frozen encoder that differ from timm's: stochastic depth, where what blocks add to the tokens is left out at
random for training views; linear layers by the faster of two libraries; and what a pass costs, counted from shapes alone.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import xxhash
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from extract.transform import SEED
from store import BeyondClsError, onednn

BRANCHES = ("drop_path1", "drop_path2")  # behind attention and behind the MLP, and their LayerScale, in blocks of timm


def checked_rate(rate: float, n_views: int) -> float:
    """The rate, if it is valid for `n_views` of each image: it acts on random crops alone."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise BeyondClsError(f"drop_path is {rate!r}, expected a rate from 0 (nothing is dropped) up to but not 1, e.g. 0.1")
    if rate and n_views == 1:
        raise BeyondClsError(
            f"drop_path is {rate}, but views is 1: it acts on random crops alone, as the evaluation crop is what heads are "
            "measured on; give views of 2 or more, or leave drop_path out"
        )
    return float(rate)


def check_branches(name: str, blocks: Sequence[nn.Module]) -> None:
    """Refuse an encoder whose blocks don't say where a branch ends."""
    for block in blocks:
        if not all(isinstance(getattr(block, branch, None), nn.Module) for branch in BRANCHES):
            raise BeyondClsError(
                f"{name} was given drop_path, but its blocks ({type(block).__name__}) do not have the two branches of a plain "
                f"ViT of timm ({', '.join(BRANCHES)}); leave drop_path out"
            )


def draw_factors(image_ids: Sequence[str], view: int, rate: float, n_blocks: int) -> Float[Tensor, "B L 2"]:
    """What the attention and the MLP of each block are multiplied by: 0 where dropped, else 1 / (1 - p), in float32.

    p rises linearly from 0 in the first block to `rate` in the last. A draw depends on the image's id and the view alone: any
    machine, batch and resumed run has the same; and what a lower rate drops, a higher one drops as well.

    Source: Huang et al. 2016, arXiv 1603.09382; scaled as in timm's `DropPath`.
    """
    drawn = torch.empty(len(image_ids), n_blocks, 2, dtype=torch.float64)
    for row, image_id in zip(drawn, image_ids, strict=True):
        seed = xxhash.xxh3_128_intdigest(f"{SEED}\0{view}\0{image_id}\0drop_path".encode())
        generator = random.Random(seed)
        row[:] = torch.tensor([[generator.random(), generator.random()] for _ in range(n_blocks)], dtype=torch.float64)
    p = torch.linspace(0, rate, n_blocks, dtype=torch.float64)[:, None]
    return ((drawn >= p) / (1 - p)).float()


@contextmanager
def dropping(blocks: Sequence[nn.Module], factors: Float[Tensor, "B L 2"]) -> Iterator[None]:
    """While active, branches of blocks are multiplied by `factors`, image by image, before they are added to the tokens."""

    def multiplied(of_branch: Tensor, _module: Any, _inputs: Any, out: Tensor) -> Tensor:
        return out * of_branch.to(out.dtype).view(-1, *[1] * (out.ndim - 1))

    with ExitStack() as active:
        for index, block in enumerate(blocks):
            for branch, of_branch in zip(BRANCHES, factors[:, index].unbind(1), strict=True):
                active.enter_context(getattr(block, branch).register_forward_hook(partial(multiplied, of_branch)))
        yield


class FastLinear(TorchFunctionMode):
    """While active, linear layers in float32 on a CPU are computed by oneDNN; everything else as before.

    This holds for every module, however it calls them.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and onednn.applies(*args, **kwargs):
            return onednn.linear(*args, **kwargs)
        return func(*args, **kwargs)


class RoundedLinear(nn.Linear):
    """A linear layer that keeps its weights as autocast multiplies them, which would round them again in each pass.

    Without autocast it is computed as before.
    """

    _rounded: tuple[Any, Sequence[Tensor | None]] | None = None  # what it was made of, and weight and bias

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        dtype = torch.get_autocast_dtype(x.device.type)
        made_of = dtype, self.weight.device, self.weight._version
        if self._rounded is None or self._rounded[0] != made_of:
            self._rounded = made_of, [None if w is None else w.detach().to(dtype) for w in (self.weight, self.bias)]
        return F.linear(x, *self._rounded[1])  # type: ignore[arg-type]


def flops_of(model: nn.Module, input_size: tuple[int, int, int]) -> int | None:
    """Floating-point operations of the forward pass of one image, a multiplication and an addition counting as two.

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
        with torch.no_grad(), FlopCounterMode(display=False) as operations:
            shadow.forward_features(torch.zeros(1, *input_size, device="meta"))  # type: ignore[operator]
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    return operations.get_total_flops()
