"""What holds for every attention statistic, by name, with each layout of tokens that it can have."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beyondcls.testing.checking import expect, expect_close
from extract.attention import PER_BLOCK, STATISTICS, Attention, TokenLayout, facts_of

LAYOUTS = {
    "cls": TokenLayout(has_cls=True, n_prefix=1),
    "cls and registers": TokenLayout(has_cls=True, n_prefix=5),
    "registers": TokenLayout(has_cls=False, n_prefix=4),
    "patches": TokenLayout(has_cls=False, n_prefix=0),
}
T = 9


class Case(NamedTuple):
    """A statistic by name, and a key of LAYOUTS."""

    name: str
    tokens: str

    def __str__(self) -> str:
        return f"{self.name}-{self.tokens}"

    @property
    def layout(self) -> TokenLayout:
        return LAYOUTS[self.tokens]

    def of(self, attention: Tensor, layout: TokenLayout | None = None) -> Tensor:
        """Its values [B, H] of attention [B, H, N, N] whose rows sum to 1."""
        return STATISTICS[self.name](Attention.from_logits(attention.log2(), layout or self.layout, bounded=True))


def cases(name: str) -> Iterator[Case]:
    """A statistic with each layout that it can have."""
    for tokens, layout in LAYOUTS.items():
        if layout.has_cls or not facts_of(name).of_cls:
            yield Case(name, tokens)


def is_of_attention(statistic: str | Callable[..., Tensor]) -> bool:
    """Whether a statistic is a function of an `Attention`; others are of what enters a block and what its attention adds."""
    if isinstance(statistic, str):
        return statistic not in PER_BLOCK
    return len(inspect.signature(statistic).parameters) == 1


def random_attention(layout: TokenLayout, seed: int = 0) -> Tensor:
    """[3, 2, N, N], rows sum to 1."""
    n = layout.n_prefix + T
    return (3 * torch.randn(3, 2, n, n, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def has_a_title_and_a_unit(case: Case) -> None:
    facts = facts_of(case.name)
    expect(facts.title and facts.unit, f"its title is {facts.title!r} and its unit {facts.unit!r}, expected words")


def has_its_value_of_uniform_attention(case: Case) -> None:
    n, uniform = case.layout.n_prefix + T, facts_of(case.name).uniform
    if uniform is None:
        raise AssertionError("it declares no value of uniform attention; give @declares(…, uniform=lambda n, t: …)")
    value = case.of(torch.full((2, 3, n, n), 1 / n))
    expect_close(value, torch.full((2, 3), float(uniform(n, T))), "uniform attention", rtol=0, atol=2e-6)


def stays_in_its_range(case: Case) -> None:
    value, highest = case.of(random_attention(case.layout)), facts_of(case.name).highest(case.layout.n_prefix + T, T)
    expect((value >= 0).all() and (value <= highest + 1e-6).all(), f"{value.min()} to {value.max()}, expected 0 to {highest}")


def is_one_float32_number_per_image_and_head_each_for_itself(case: Case) -> None:
    attention = random_attention(case.layout)
    value = case.of(attention)
    shown = f"it gives {list(value.shape)} {value.dtype} of 3 images and 2 heads, expected [3, 2] torch.float32"
    expect((value.shape, value.dtype) == ((3, 2), torch.float32), shown)
    expect(value.isfinite().all(), "a value is not finite")
    expect_close(value[1, 1], case.of(attention[1:2, 1:2])[0, 0], "an image and head alone")


def depends_on_the_order_of_patches_if_it_says_so(case: Case) -> None:
    attention, prefix = random_attention(case.layout), case.layout.n_prefix
    order = torch.cat([torch.arange(prefix), prefix + torch.randperm(T, generator=torch.Generator().manual_seed(1))])
    permuted, stayed = case.of(attention[:, :, order][..., order]), case.of(attention)
    if facts_of(case.name).spatial:
        expect(not torch.allclose(permuted, stayed), "spatial is True, and the order of patches does not matter")
    else:
        expect_close(permuted, stayed, "spatial is False, and the order of patches matters")


def counts_registers_among_all_tokens_only_if_it_says_so(case: Case) -> None:
    """What they attend to counts nowhere."""
    attention, layout, first = random_attention(case.layout), case.layout, int(case.layout.has_cls)
    if not layout.n_registers:
        return
    changed, registers = attention.clone(), slice(first, layout.n_prefix)
    changed[:, :, registers] = torch.rand(changed[:, :, registers].shape, generator=torch.Generator().manual_seed(2))
    expect_close(case.of(changed), case.of(attention), "what registers attend to counts")
    rest = [i for i in range(attention.shape[-1]) if not first <= i < layout.n_prefix]
    alone = case.of(attention[:, :, rest][..., rest], TokenLayout(layout.has_cls, first))
    if facts_of(case.name).of_all_tokens:
        expect((case.of(attention) < alone).all(), "of_all_tokens is True, and attention to registers does not lower it")
    else:
        expect_close(case.of(attention), alone, "of_all_tokens is False, and attention to registers counts")


def is_one_number_per_image_of_the_tokens_that_it_declares(case: Case) -> None:
    residual, branch = torch.randn(2, 3, case.layout.n_prefix + T, 4, generator=torch.Generator().manual_seed(0))
    value, prefix = PER_BLOCK[case.name](residual, branch, case.layout), case.layout.n_prefix
    expect(value.shape == (3,), f"it gives {list(value.shape)} of 3 images, expected [3]")
    expect(value.isfinite().all() and (value >= 0).all(), f"values are {value.tolist()}, expected numbers from 0")
    highest = facts_of(case.name).highest(prefix + T, T)
    expect(math.isinf(highest) or (value <= highest + 1e-6).all(), f"values up to {value.max()}, expected {highest} at most")
    if not facts_of(case.name).spatial:
        order = torch.cat([torch.arange(prefix), prefix + torch.arange(T).flip(0)])
        moved = PER_BLOCK[case.name](residual[:, order], branch[:, order], case.layout)
        expect_close(moved, value, "spatial is False, and the order of patches matters")
    if facts_of(case.name).of_norms:
        alone = PER_BLOCK[case.name](residual.norm(dim=-1, keepdim=True), branch.norm(dim=-1, keepdim=True), case.layout)
        expect_close(alone, value, "of_norms is True, and more than norms counts")


ATTENTION_CHECKS = (
    has_a_title_and_a_unit,
    has_its_value_of_uniform_attention,
    is_one_float32_number_per_image_and_head_each_for_itself,
    stays_in_its_range,
    depends_on_the_order_of_patches_if_it_says_so,
    counts_registers_among_all_tokens_only_if_it_says_so,
)
BLOCK_CHECKS = (has_a_title_and_a_unit, is_one_number_per_image_of_the_tokens_that_it_declares)
