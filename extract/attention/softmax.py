"""Softmax attention that shows its weights to statistics, instead of the fused kind, which hides them."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention, TokenLayout
from extract.attention.fused import applies_to, attend_fused
from store import kernels

LOG2_E = math.log2(math.e)
CPU_NBYTES = 2 << 20  # of one logits matrix at a time: it and its exponential stay in the cache of a CPU core
GPU_NBYTES = 256 << 20


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
