"""How much memory a grid will take."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from probe.head import FinalNorm
from probe.ranks import world_size
from probe.recipe import Recipe
from probe.train import Family, isolated_randomness, losses_of
from store import BeyondClsError
from store.loading.placement import free_memory

SHARE = 0.9  # of what is free
GRADIENTS = 2  # gradients are as large as what they are computed from


class TooLarge(BeyondClsError):
    """A grid does not fit into memory."""


def check_memory(
    families: Sequence[Family],
    sample: Mapping[str, Tensor],
    recipe: Recipe,
    device: torch.device,
    final_norm: FinalNorm | None = None,
) -> None:
    """Check that a grid fits into memory, from what four images take. Nothing is changed.

    Args:
        sample: a batch of four images or more.

    Raises:
        TooLarge: it does not fit; the message says how much it needs, and what would fit.
    """
    members_nbytes, saved = 0, 0
    for family in families:
        assert family.optimiser is not None
        parameter_nbytes = sum(p.nbytes for p in family.stack.parameters.values())
        members_nbytes += 2 * parameter_nbytes + sum(values.nbytes for values in family.optimiser.state.values())
        two, four = (_saved_nbytes(family, {k: v[:n] for k, v in sample.items()}, final_norm) for n in (2, 4))
        saved = max(saved, (four - two) // 2)
    tokens = sum(values[:1].nbytes for values in sample.values())
    image_nbytes = GRADIENTS * saved + tokens * (1 if final_norm is None else 2)
    world, n = world_size(), sum(len(family.stack) for family in families)
    rows_at_once = recipe.per_process(world)[1]
    needed = members_nbytes + image_nbytes * rows_at_once
    free = SHARE * free_memory(device)
    if needed <= free:
        return
    fitting = max(0, int(n * (free - tokens * rows_at_once) / (needed - tokens * rows_at_once)))
    rows = int((free - members_nbytes) / image_nbytes) * world
    divisor = max(d for d in range(1, max(1, min(recipe.batch_size, rows)) + 1) if recipe.batch_size % d == 0)
    fewer_rows = f", or all of them with rows_at_once {divisor}" if rows >= 2 else ""
    raise TooLarge(
        f"{n} heads with {recipe.at_once} images at once need about {needed / 1e9:.2g} GB on {device}, "
        f"{free / 1e9:.2g} GB are free; about {fitting} heads fit{fewer_rows}"
    )


def _saved_nbytes(family: Family, batch: Mapping[str, Tensor], final_norm: FinalNorm | None) -> int:
    """Bytes that a forward pass keeps for the gradients, including some that don't depend on the number of images."""
    storages: dict[int, int] = {}

    def keep(values: Tensor) -> Tensor:
        storage = values.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return values

    stack = family.stack
    before = {name: values.clone() for name, values in stack.statistics.items()}
    features = batch if final_norm is None or stack.template.final_norm is None else final_norm(batch)
    with isolated_randomness(0), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        logits, _ = stack(features, training=True)
        losses = losses_of(logits, batch["label"])
    for name, values in stack.statistics.items():
        values.copy_(before[name])
    del losses  # only now: storages have to live until they are counted, or addresses would be used again
    return sum(storages.values()) + logits.nbytes
