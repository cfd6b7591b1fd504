"""Closed forms of the four statistics, and what every statistic must do."""

import math

import pytest
import torch

from extract.attention import NEEDS_CLS, STATISTICS, TokenLayout
from extract.attention.entropy import row_entropy

LAYOUTS = {
    "cls": TokenLayout(has_cls=True, n_prefix=1),
    "cls and registers": TokenLayout(has_cls=True, n_prefix=5),
    "registers": TokenLayout(has_cls=False, n_prefix=4),
    "patches": TokenLayout(has_cls=False, n_prefix=0),
}
CASES = [
    pytest.param(name, layout, id=f"{name}-{what}")
    for name in STATISTICS
    for what, layout in LAYOUTS.items()
    if layout.has_cls or name not in NEEDS_CLS
]
T = 9


def random_attention(layout: TokenLayout, seed: int = 0, n_patches: int = T) -> torch.Tensor:
    """[3, 2, N, N], rows sum to 1."""
    n = layout.n_prefix + n_patches
    logits = torch.randn(3, 2, n, n, generator=torch.Generator().manual_seed(seed))
    return (3 * logits).softmax(-1)


def uniform_value(name: str, layout: TokenLayout) -> float:
    return {
        "cls_self": 1 / (layout.n_prefix + T),
        "cls_patch_entropy": math.log(T),
        "patch_self": 1 / T,
        "patch_patch_entropy": math.log(T),
    }[name]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_uniform_attention(name: str, layout: TokenLayout) -> None:
    n = layout.n_prefix + T
    value = STATISTICS[name](torch.full((2, 3, n, n), 1 / n), layout)
    torch.testing.assert_close(value, torch.full((2, 3), uniform_value(name, layout)), rtol=0, atol=2e-6)


def test_rows_on_one_patch_have_no_entropy() -> None:
    layout = LAYOUTS["cls and registers"]
    attention = torch.zeros(1, 1, layout.n_prefix + T, layout.n_prefix + T)
    attention[..., layout.n_prefix + 2] = 1  # every token looks at patch 2 alone
    values = {name: statistic(attention, layout).item() for name, statistic in STATISTICS.items()}
    assert values == {
        "cls_self": 0,
        "cls_patch_entropy": 0,
        "patch_self": pytest.approx(1 / T),  # patch 2 alone looks at itself
        "patch_patch_entropy": 0,
    }


def test_identity() -> None:
    layout = LAYOUTS["cls and registers"]
    attention = torch.eye(layout.n_prefix + T)[None, None]
    assert STATISTICS["cls_self"](attention, layout).item() == 1
    assert STATISTICS["patch_self"](attention, layout).item() == 1
    assert STATISTICS["patch_patch_entropy"](attention, layout).item() == 0
    # [cls] gives nothing to the patches: there is no distribution, and no number is made up for it.
    assert STATISTICS["cls_patch_entropy"](attention, layout).isnan().all()


def test_two_patches_in_unequal_parts() -> None:
    """By hand: [cls] gives 0.5 to itself, 0.3 and 0.2 to two patches, so 0.6 and 0.4 after renormalising."""
    attention = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.0, 0.9, 0.1]])[None, None]
    layout = LAYOUTS["cls"]
    h = {p: -p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.6, 0.25, 0.9)}
    assert STATISTICS["cls_self"](attention, layout).item() == pytest.approx(0.5)
    assert STATISTICS["cls_patch_entropy"](attention, layout).item() == pytest.approx(h[0.6], abs=1e-6)
    assert STATISTICS["patch_self"](attention, layout).item() == pytest.approx((0.25 + 0.1) / 2, abs=1e-6)
    assert STATISTICS["patch_patch_entropy"](attention, layout).item() == pytest.approx((h[0.25] + h[0.9]) / 2, abs=1e-6)


@pytest.mark.parametrize(("name", "layout"), CASES)
class TestEveryStatistic:
    def test_one_float32_number_per_image_and_head(self, name: str, layout: TokenLayout) -> None:
        value = STATISTICS[name](random_attention(layout), layout)
        assert value.shape == (3, 2)
        assert value.dtype == torch.float32
        assert value.isfinite().all()

    def test_stays_in_its_range(self, name: str, layout: TokenLayout) -> None:
        value = STATISTICS[name](random_attention(layout), layout)
        assert (value >= 0).all()
        assert (value <= (math.log(T) if "entropy" in name else 1)).all()

    def test_leaves_its_input_alone(self, name: str, layout: TokenLayout) -> None:
        attention = random_attention(layout)
        before = attention.clone()
        STATISTICS[name](attention, layout)
        assert torch.equal(attention, before)

    def test_each_image_and_head_for_itself(self, name: str, layout: TokenLayout) -> None:
        attention = random_attention(layout)
        alone = STATISTICS[name](attention[1:2, 1:2], layout)
        torch.testing.assert_close(STATISTICS[name](attention, layout)[1, 1], alone[0, 0])

    def test_order_of_patches_does_not_matter(self, name: str, layout: TokenLayout) -> None:
        attention, prefix = random_attention(layout), layout.n_prefix
        order = torch.cat([torch.arange(prefix), prefix + torch.randperm(T, generator=torch.Generator().manual_seed(1))])
        permuted = attention[:, :, order][..., order]
        assert not torch.equal(permuted, attention)
        torch.testing.assert_close(STATISTICS[name](permuted, layout), STATISTICS[name](attention, layout))


@pytest.mark.parametrize(("name", "layout"), [case for case in CASES if case.values[1].n_registers])
def test_registers_are_in_neither_set(name: str, layout: TokenLayout) -> None:
    """What registers attend to counts nowhere, and neither does what the others give to them."""
    attention, first = random_attention(layout), int(layout.has_cls)
    value = STATISTICS[name](attention, layout)
    changed, registers = attention.clone(), slice(first, layout.n_prefix)
    changed[:, :, registers] = torch.rand_like(changed[:, :, registers])
    changed[..., registers] = torch.rand_like(changed[..., registers])
    torch.testing.assert_close(STATISTICS[name](changed, layout), value)
    rest = [i for i in range(attention.shape[-1]) if not first <= i < layout.n_prefix]
    torch.testing.assert_close(STATISTICS[name](attention[:, :, rest][..., rest], TokenLayout(layout.has_cls, first)), value)


def test_entropy_ignores_the_scale_of_rows() -> None:
    rows = random_attention(LAYOUTS["patches"])
    torch.testing.assert_close(row_entropy(0.01 * rows), row_entropy(rows))


@pytest.mark.parametrize(("has_cls", "n_prefix", "n_registers"), [(True, 1, 0), (True, 5, 4), (False, 4, 4), (False, 0, 0)])
def test_layout_counts_registers(has_cls: bool, n_prefix: int, n_registers: int) -> None:
    assert TokenLayout(has_cls, n_prefix).n_registers == n_registers
