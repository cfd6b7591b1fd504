"""Seeing the attention of every block during the same forward pass that makes the tokens."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from extract.attention.attention import Attention, TokenLayout
from extract.attention.fused import applies_to, attend_fused
from store import BeyondClsError, kernels

LOG2_E = math.log2(math.e)
CPU_NBYTES = 2 << 20  # of one logits matrix at a time: it and its exponential stay in the cache of a CPU core
GPU_NBYTES = 256 << 20
MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum")
SAME = ("dropout", "to", "type", "type_as", "float", "half", "bfloat16", "view", "reshape", "contiguous")
OnAttention = Callable[[int, Attention], None] | None
OnBranch = Callable[[Tensor, Tensor], None] | None
KEPT = ("detach", "clone")  # by a model that shows its maps; the product is with the original


def first_tensor(values: Any) -> Tensor | None:
    """What a module was given or put out: the tensor, or the first one among several."""
    if isinstance(values, Tensor):
        return values
    several = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple | list) else ()
    return next((value for value in several if isinstance(value, Tensor)), None)


def is_softmax(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call is a softmax over the rows of square matrices."""
    if func not in SOFTMAX:
        return False
    logits, *others = (*args, *(options[name] for name in ("input", "dim") if name in options))
    is_last = bool(others) and others[0] in (-1, logits.ndim - 1)
    return is_last and logits.ndim in (3, 4) and logits.shape[-1] == logits.shape[-2]


def use_of(weights: Tensor | None, func: Any, args: Sequence[Any], options: Mapping[str, Any], out: Any) -> str | None:
    """What a call does with the result of a softmax: "product", with values; "same", it goes on as it is; "other"; or None."""
    given = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
    name = getattr(func, "__name__", "")
    if weights is None or name in KEPT or all(value is not weights for value in given):
        return None
    if not isinstance(out, Tensor):  # a shape, say
        return "other" if name == "__setitem__" else None
    # Values are of as many dimensions; matrices that mix heads are not (talking heads, DeepViT).
    if name in PRODUCTS and all(value.ndim == weights.ndim for value in given):
        return "product"
    return "same" if name in SAME else "other"


@contextmanager
def watched(
    blocks: Sequence[nn.Module],
    layout: TokenLayout,
    on_attention: OnAttention,
    on_branch: OnBranch,
    branches: Sequence[nn.Module | None] | None = None,
) -> Iterator[None]:
    """While active, each block of a forward pass reports its attention.

    However a model computes attention (relative position bias, rotary embedding, normalised queries and keys), in the end it
    calls `scaled_dot_product_attention`; attention is seen in that call, so blocks are made to use it. In wrapped models
    `nn.MultiheadAttention` and a softmax over rows are seen, too.

    Args:
        blocks: of the model.
        branches: of each block of a wrapped model, the module that gives what attention adds; None where there is none. Such a
            model was recorded, so nothing else is done with a softmax over rows than attention. Of others it is `attn`.
        on_attention: called with each block's index and attention; None to skip it.
        on_branch: called with each block's input and the output of its attention, both [B, N, D]; None to skip it.
    """
    if on_attention is None and on_branch is None:
        yield
        return
    is_wrapped = branches is not None
    watch = _Watch(layout, on_attention, on_branch, is_wrapped)
    with ExitStack() as active:
        for index, block in enumerate(blocks):
            branch = getattr(block, "attn", None) if branches is None else branches[index]
            if not isinstance(branch, nn.Module) and (on_branch is not None or not is_wrapped):
                raise _hidden_error(index, type(block).__name__)
            active.enter_context(block.register_forward_pre_hook(partial(watch.enter, index), with_kwargs=True))
            if branch is not None:
                active.enter_context(branch.register_forward_hook(watch.branch))
            active.enter_context(block.register_forward_hook(watch.leave))
            for module in () if branch is None else branch.modules():
                if hasattr(module, "fused_attn"):
                    active.callback(setattr, module, "fused_attn", bool(module.fused_attn))
                    module.fused_attn = True
        if on_attention is not None:
            active.enter_context(watch)
        yield


class _Watch(TorchFunctionMode):
    """Replaces `scaled_dot_product_attention`, and what wrapped models call in its place."""

    def __init__(self, layout: TokenLayout, on_attention: OnAttention, on_branch: OnBranch, is_wrapped: bool):
        super().__init__()
        self._layout, self._on_attention, self._on_branch, self._is_wrapped = layout, on_attention, on_branch, is_wrapped
        self._softmax: tuple[Tensor, Attention] | None = None  # what it gave, until that is multiplied with values
        self._memory: dict[str, Tensor] = {}
        self._block: int | None = None
        self._n_images = self._n_attended = self._n_branches = 0
        self._residual: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._block is None:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            out, attention = attend(self._layout, *args, **kwargs, memory=self._memory)
        elif self._is_wrapped and func is F.multi_head_attention_forward:
            return multi_head(self, *args, **kwargs)
        else:
            out = func(*args, **kwargs)
            if self._is_wrapped and is_softmax(func, args, kwargs):
                logits = (args[0] if args else kwargs["input"]).float() * LOG2_E
                square = logits.reshape(self._n_images, -1, *logits.shape[-2:])
                self._softmax = out, Attention.from_logits(square, self._layout, bounded=True)
                return out
            use = None if self._softmax is None else use_of(self._softmax[0], func, args, kwargs, out)
            if self._softmax is None or use is None:
                return out
            attention = self._softmax[1]
            self._softmax = (out, attention) if use == "same" else None
            if use == "same":
                return out
        self._n_attended += 1
        if self._on_attention is not None:
            self._on_attention(self._block, attention)
        return out

    def enter(self, block: int, _module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        residual = first_tensor((*inputs, *options.values()))
        assert residual is not None
        self._block, self._n_attended, self._n_branches, self._n_images = block, 0, 0, len(residual)
        self._residual = residual if self._on_branch is not None else None

    def branch(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """Report what attention adds, and keep nothing: the next layers need the memory."""
        out = first_tensor(output)
        assert out is not None
        self._n_branches += 1
        if self._on_branch is not None and self._residual is not None:
            self._on_branch(self._residual, out)
            self._residual = None

    def leave(self, *_: Any) -> None:
        """The end of a block, which must have attended exactly once (differential attention does so twice)."""
        assert self._block is not None
        if self._on_attention is not None and self._n_attended != 1:
            raise _hidden_error(self._block, f"it attends {self._n_attended} times")
        if self._on_branch is not None and self._n_branches != 1:
            raise _hidden_error(self._block, f"its attention puts something out {self._n_branches} times")
        self._block = None


@torch.compiler.disable  # the code around it can be compiled; inductor makes nothing faster of this, which has its own memory
def attend(
    layout: TokenLayout,
    query: Float[Tensor, "B H N d"],
    key: Float[Tensor, "B H N d"],
    value: Float[Tensor, "B H N e"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    memory: dict[str, Tensor],
) -> tuple[Float[Tensor, "B H N e"], Attention]:
    """As `scaled_dot_product_attention`, and the attention itself; by a kernel where there is one, else some images at a time.

    Logits are always float32.

    Args:
        memory: reused by the next call, empty for the first: touching fresh memory would cost as much as the products.
    """
    assert not is_causal, "no encoder of images masks what comes later"
    assert not enable_gqa, "no encoder of images has fewer keys than queries"
    scale = LOG2_E * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    n_images, heads, n, _ = query.shape
    bias = _bias(attn_mask)
    if kernels.apply_to(query) and applies_to(query, key, value):
        if torch.is_autocast_enabled(value.device.type):  # as `scaled_dot_product_attention` would compute
            value = value.to(torch.get_autocast_dtype(value.device.type))
        return attend_fused(layout, query, key, value, bias, scale)
    on_cpu = query.device.type == "cpu"
    step = min(n_images, max(1, (CPU_NBYTES if on_cpu else GPU_NBYTES) // (4 * heads * n * n)))
    # In the order in which the next layer reads it: heads are joined right after.
    out = value.new_empty(n_images, n, heads, value.shape[-1]).transpose(1, 2)
    parts = []
    for first in range(0, n_images, step):
        batch = slice(first, min(first + step, n_images))
        b = batch.stop - first
        q, k, v = (x[batch].float().reshape(b * heads, n, -1) for x in (query, key, value))
        logits = _memory(memory, "logits", (b * heads, n, n), q)
        torch.baddbmm(logits, q, k.transpose(1, 2), beta=0, alpha=scale, out=logits)
        logits = logits.view(b, heads, n, n)
        if bias is not None:
            logits += bias[batch] if len(bias) == n_images else bias
        e = _memory(memory, "e", (b * heads, n, n), q)
        parts.append(Attention.from_logits(logits, layout, bias is not None, e.view(b, heads, n, n)))
        if on_cpu:
            mixed = torch.bmm(e, v, out=_memory(memory, "mixed", tuple(v.shape), v)).view(b, heads, n, -1)
            torch.div(mixed, parts[-1].z[..., None], out=out[batch])
    if not on_cpu:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale / LOG2_E)
    return out, Attention.concatenate(parts)


def _memory(memory: dict[str, Tensor], name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory of this shape with arbitrary content."""
    n = math.prod(shape)
    if name not in memory or memory[name].numel() < n or memory[name].device != like.device:
        memory[name] = like.new_empty(n)
    return memory[name][:n].view(shape)


def _bias(mask: Tensor | None) -> Tensor | None:
    """What is added to logits [B or 1, H or 1, N, N]."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
    return LOG2_E * mask.float().reshape((1,) * (4 - mask.ndim) + mask.shape)


def multi_head(mode: TorchFunctionMode, *args: Any, **options: Any) -> tuple[Tensor, None]:
    """What `nn.MultiheadAttention` computes, [N, B, D], with its attention where `mode` sees it.

    torch's own function would hide it, as it calls nothing that a mode is shown.
    """
    given = MULTI_HEAD.bind(*args, **options).arguments
    query, weight = given["query"], given["in_proj_weight"]
    is_plain = query is given["key"] is given["value"] and weight is not None
    if not is_plain or given["add_zero_attn"] or any(given.get(name) is not None for name in ("bias_k", "key_padding_mask")):
        raise BeyondClsError(
            "nn.MultiheadAttention attends to something else than its queries, expected attention of tokens to themselves; "
            "extract with --statistics none --no-maps"
        )
    parts = F.linear(query, weight, given["in_proj_bias"]).unflatten(-1, (3, given["num_heads"], -1))  # [N, B, 3, H, d]
    q, k, v = parts.permute(2, 1, 3, 0, 4)
    with mode:
        mixed = F.scaled_dot_product_attention(q, k, v, given.get("attn_mask"))
    mixed = mixed.permute(2, 0, 1, 3).reshape(query.shape)
    return F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"]), None


def _hidden_error(index: int, why: str) -> BeyondClsError:
    return BeyondClsError(
        f"cannot see the attention of block {index} ({why}); extract this encoder with --statistics none --no-maps"
    )
