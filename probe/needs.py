"""How much memory a grid takes, before it takes it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from probe.head import FinalNorm
from probe.ranks import world_size
from probe.recipe import Recipe
from probe.train import Family, losses_of, own_randomness
from store import BeyondClsError
from store.loading.memory import free_memory

SHARE = 0.9  # of what is free
GRADIENTS = 2  # gradients are as large as what they are computed from


def check_memory(
    families: Sequence[Family],
    sample: Mapping[str, Tensor],
    recipe: Recipe,
    device: torch.device,
    final_norm: FinalNorm | None = None,
) -> None:
    """Make sure that a grid can train, by what four images take. Nothing is changed by it.

    Args:
        sample: a batch of four images or more.

    Raises:
        BeyondClsError: it cannot; says how much it needs, and what would fit.
    """
    of_members, saved = 0, 0
    for family in families:
        assert family.optimiser is not None
        own = sum(p.nbytes for p in family.stack.parameters.values())
        of_members += 2 * own + sum(values.nbytes for values in family.optimiser.state.values())
        two, four = (_saved(family, {k: v[:n] for k, v in sample.items()}, final_norm) for n in (2, 4))
        saved = max(saved, (four - two) // 2)
    tokens = sum(values[:1].nbytes for values in sample.values())
    of_an_image = GRADIENTS * saved + tokens * (1 if final_norm is None else 2)
    world, n = world_size(), sum(len(family.stack) for family in families)
    rows_at_once = recipe.of_each(world)[1]
    needed = of_members + of_an_image * rows_at_once
    free = SHARE * free_memory(device) / (world if device.type == "cpu" else 1)  # processes share a machine's memory
    if needed <= free:
        return
    fitting = max(0, int(n * (free - tokens * rows_at_once) / (needed - tokens * rows_at_once)))
    rows = int((free - of_members) / of_an_image) * world
    fewer_rows = f", or all of them with rows_at_once {_divisor(recipe.batch_size, rows)}" if rows >= 2 else ""
    raise BeyondClsError(
        f"{n} heads with {recipe.at_once} images at once need about {needed / 1e9:.2g} GB on {device}, "
        f"{free / 1e9:.2g} GB are free; about {fitting} heads fit{fewer_rows}"
    )


def _saved(family: Family, batch: Mapping[str, Tensor], final_norm: FinalNorm | None) -> int:
    """Bytes that a forward pass keeps for the gradients, and some that are the same for any number of images."""
    kept: dict[int, int] = {}

    def keep(values: Tensor) -> Tensor:
        storage = values.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return values

    stack = family.stack
    before = {name: values.clone() for name, values in stack.statistics.items()}
    features = batch if final_norm is None or stack.template.final_norm is None else final_norm(batch)
    with own_randomness(0), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        logits, _ = stack(features, training=True)
        losses = losses_of(logits, batch["label"])
    for name, values in stack.statistics.items():
        values.copy_(before[name])
    del losses  # only now: what was kept had to stay where it was
    return sum(kept.values()) + logits.nbytes


def _divisor(n: int, at_most: int) -> int:
    """The largest divisor of n that is not above a bound."""
    return max(d for d in range(1, max(1, min(n, at_most)) + 1) if n % d == 0)
