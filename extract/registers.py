"""Test-time registers: untrained tokens that take over what a ViT writes into outliers among its patches.

A few hidden units of its MLPs, register neurons, are large at outliers alone. Their largest activation over patches is moved
to added tokens, which start as zeros, and they are zero at the patches; [cls] and trained registers stay as they are.

Source: Jiang et al. 2025, arXiv 2506.08010. Each neuron is moved by itself; the authors' code gives all neurons of a
block the largest value among them, [cls] included.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from extract.attention import TokenLayout
from extract.attention.watch import first_tensor
from store import BeyondClsError

NEURONS, N_REGISTERS = "register_neurons", "test_time_registers"  # in a file, and in the description of an architecture
MOST_NBYTES = 1 << 20  # of a file
Neurons = Mapping[int, Sequence[int]]  # by block
FORM = '{"register_neurons": {"5": [17, 203]}}, numbers of hidden units by block, all counted from 0'


def read_neurons(file: str | Path) -> dict[int, tuple[int, ...]]:
    """Register neurons by block, as `beyondcls registers` writes them.

    Raises:
        BeyondClsError: it is no such file.
    """
    try:
        with Path(file).open("rb") as content:
            values = json.loads(content.read(MOST_NBYTES))
        neurons = values[NEURONS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BeyondClsError(
            f"{file} holds no register neurons ({type(error).__name__}: {error}), expected JSON like {FORM}; "
            "`beyondcls registers` writes it"
        ) from error
    return checked_form(str(file), neurons)


def checked_form(where: str, neurons: Any) -> dict[int, tuple[int, ...]]:
    """Register neurons by block, both ascending.

    Raises:
        BeyondClsError: they are of another form, none, or named twice.
    """
    by_block: dict[int, tuple[int, ...]] = {}
    for block, units in neurons.items() if isinstance(neurons, Mapping) else ():
        is_listed = isinstance(units, list | tuple) and all(type(unit) is int and unit >= 0 for unit in units)
        is_block = str(block).isdecimal() and len(str(block)) < 9 and int(block) not in by_block
        if not is_block or not is_listed or not units or len({*units}) != len(units):
            raise BeyondClsError(f"{where} has {units!r} for block {block!r}, expected {FORM}, each once")
        by_block[int(block)] = tuple(sorted(units))
    if not by_block:
        raise BeyondClsError(f"{where} names no neurons ({neurons!r}), expected {FORM}")
    return dict(sorted(by_block.items()))


def second_layer(name: str, blocks: Sequence[Any], block: int) -> nn.Linear:
    """The layer of a block's MLP that takes its hidden units: the one that gives tokens and takes something wider or narrower.

    Raises:
        BeyondClsError: there is no such block, or not one such layer in it.
    """
    if block not in range(len(blocks)):
        raise BeyondClsError(f"there is no block {block}: {name} has blocks 0 to {len(blocks) - 1}; name neurons of these")
    modules = blocks[block].modules() if isinstance(blocks[block], nn.Module) else ()
    layers = [module for module in modules if isinstance(module, nn.Linear)]
    found = [layer for layer in layers if layer.out_features == layers[0].in_features != layer.in_features]
    if len(found) != 1:
        raise BeyondClsError(
            f"block {block} of {name} ({type(blocks[block]).__name__}) has {len(found)} linear layers from hidden units to "
            "tokens, expected the one of its MLP, as in a plain ViT; leave test-time registers out"
        )
    return found[0]


class _Move:
    """Before the second layer of an MLP: the largest activations over the patches go to the added tokens."""

    def __init__(self, neurons: Sequence[int], first: int, n: int, n_tokens: int):
        self._neurons, self._first, self._n, self._n_tokens = torch.tensor(neurons), first, n, n_tokens
        self.has_run = False

    def __call__(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, self.has_run = inputs[0], True
        if hidden.ndim != 3 or hidden.shape[1] != self._n_tokens:
            raise ValueError(f"an MLP has hidden units {list(hidden.shape)}, expected [B, {self._n_tokens}, hidden units]")
        if self._neurons.device != hidden.device:
            self._neurons = self._neurons.to(hidden.device)
        behind = self._first + self._n
        at_patches = hidden[:, behind:, self._neurons]  # [B, T, K]
        largest = at_patches.gather(1, at_patches.abs().argmax(1, keepdim=True))  # [B, 1, K], with its sign
        hidden = hidden.clone()
        hidden[:, self._first : behind, self._neurons] = largest.expand(-1, self._n, -1)
        hidden[:, behind:, self._neurons] = 0
        return (hidden, *inputs[1:])


def _insert_registers(
    first: int, n: int, _module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before the first block: zeros between what comes before the patches and these."""
    tokens = first_tensor((*inputs, *options.values()))
    assert tokens is not None
    longer = torch.cat([tokens[:, :first], tokens.new_zeros(len(tokens), n, tokens.shape[2]), tokens[:, first:]], 1)
    swapped = [longer if value is tokens else value for value in (*inputs, *options.values())]
    return tuple(swapped[: len(inputs)]), dict(zip(options, swapped[len(inputs) :], strict=True))


def install(name: str, model: Any, layout: TokenLayout, neurons: Neurons, n: int) -> list[_Move]:
    """Give a model `n` more tokens behind those before its patches, to which its register neurons are moved, for good.

    Returns:
        What moves them; each has run once there was a pass.

    Raises:
        BeyondClsError: there are no such neurons, or no such number of registers.
    """
    assert layout.grid is not None
    n_patches, first = layout.grid[0] * layout.grid[1], layout.n_prefix
    if type(n) is not int or not 0 < n <= n_patches:
        raise BeyondClsError(f"{N_REGISTERS} is {n!r}, expected 1 to {n_patches}, the patches of {name}; one is usual")
    moves: list[tuple[nn.Linear, _Move]] = []
    for block, units in neurons.items():
        layer = second_layer(name, model.blocks, block)
        if max(units) >= layer.in_features:
            raise BeyondClsError(
                f"block {block} of {name} has no neuron {max(units)}: its MLP has {layer.in_features}, counted from 0; "
                "find the neurons of this encoder: beyondcls registers"
            )
        moves.append((layer, _Move(units, first, n, first + n + n_patches)))
    for layer, move in moves:
        layer.register_forward_pre_hook(move)
    parts: Iterable[Any] = (part for block in model.blocks if isinstance(block, nn.Module) for part in block.modules())
    for module in parts:
        if isinstance(getattr(module, "num_prefix_tokens", None), int):  # from which tokens on positions rotate
            module.num_prefix_tokens += n
    before = getattr(model, "norm_pre", None)  # CLIP's, which the authors put zeros through
    start = before if isinstance(before, nn.Module) and not isinstance(before, nn.Identity) else model.blocks[0]
    start.register_forward_pre_hook(partial(_insert_registers, first, n), with_kwargs=True)
    return [move for _, move in moves]
