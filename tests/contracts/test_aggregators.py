"""What holds for every aggregator of the registry, with its options."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch

from probe.aggregators import AGGREGATORS, Aggregator, Pooled, Weighted, make_aggregator
from store import BeyondClsError

D, T, B = 96, 16, 3


class Variant(NamedTuple):
    """An aggregator with some of the options that it declares."""

    name: str
    options: Mapping[str, Any]

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Aggregator:
        torch.manual_seed(seed)
        aggregator = make_aggregator(self.name, D, T, **self.options).to(dtype)
        for parameter in aggregator.parameters():
            if not parameter.any():  # of a query that starts at 0 all weights are equal
                torch.nn.init.normal_(parameter, std=0.1)
        return aggregator


VARIANTS = [Variant(name, options) for name, kind in AGGREGATORS.items() for options in kind.variants]


def shown(variant: Variant) -> str:
    return f"{variant.name}-{json.dumps(variant.options)}"


every = pytest.mark.parametrize("variant", VARIANTS, ids=shown)


@pytest.fixture
def features() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shapes = {"patch": (B, T, D), "cls": (B, D), "registers": (B, 2, D), "pooled": (B, D)}
    values = {kind: torch.randn(*shape, dtype=torch.float64) for kind, shape in shapes.items()}
    for block in (3, 5):
        values |= {
            f"patch/block{block}": torch.randn_like(values["patch"]),
            f"cls/block{block}": torch.randn_like(values["cls"]),
        }
    maps = ("attention/cls", "attention/centre", "joined/attention/cls", "joined/attention/centre")
    return values | {name: torch.rand(B, 5, T, dtype=torch.float64) / T for name in maps}


def in_order(features: dict[str, torch.Tensor], order: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same image with its patches in another order."""
    moved = {}
    for kind, values in features.items():
        token_axis = -1 if "attention" in kind else 1
        moved[kind] = values.index_select(token_axis, order) if kind.startswith("patch") or "attention" in kind else values
    return moved


@every
class TestEveryAggregator:
    def test_gives_one_vector_of_its_width_per_image(self, variant, features):
        aggregator = variant.make()
        vector = aggregator(features).vector
        assert vector.shape == (B, aggregator.width)
        assert vector.isfinite().all()

    def test_reads_what_it_says_and_nothing_else(self, variant, features):
        class Watched(dict):
            def __getitem__(self, kind):
                read.add(kind)
                return super().__getitem__(kind)

        read: set[str] = set()
        aggregator = variant.make()
        aggregator(Watched({kind: features[kind] for kind in aggregator.reads}))
        assert read == set(aggregator.reads)

    def test_weights_sum_to_one(self, variant, features):
        aggregator = variant.make()
        weights = aggregator(features).weights
        assert (weights is not None) == aggregator.weighted, "it declares whether it weights tokens"
        if weights is None:
            return
        assert weights.shape == (B, T + any(kind.startswith("cls") for kind in aggregator.reads))
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, dtype=torch.float64))

    def test_takes_tokens_as_they_are_stored_where_it_says_so(self, variant, features):
        aggregator = variant.make()
        if not aggregator.takes_stored:
            return
        stored = {kind: values.half() for kind, values in features.items()}
        parameters = {n: p.detach()[None] for n, p in aggregator.named_parameters()}
        pooled = [
            aggregator.pool_many(parameters, dtype_features)
            for dtype_features in (stored, {k: v.double() for k, v in stored.items()})
        ]
        assert torch.equal(pooled[0].vector, pooled[1].vector)
        assert pooled[0].vector.dtype == torch.float64
        assert torch.equal(pooled[0].weights, pooled[1].weights)

    def test_is_deterministic_under_a_seed(self, variant, features):
        assert torch.equal(variant.make(1)(features).vector, variant.make(1)(features).vector)
        starts = [dict(variant.make(seed).named_parameters()) for seed in (1, 2)]
        same = all(torch.equal(values, starts[1][name]) for name, values in starts[0].items())
        assert torch.equal(variant.make(1)(features).vector, variant.make(2)(features).vector) == same
        assert same != variant.make().random_start, "it declares whether its parameters are drawn"

    def test_moves_its_weights_with_the_patches(self, variant, features):
        aggregator, order = variant.make(), torch.randperm(T, generator=torch.Generator().manual_seed(5))
        stayed, moved = aggregator(features), aggregator(in_order(features, order))
        if aggregator.uses_position:
            assert not torch.allclose(moved.vector, stayed.vector)
            return
        torch.testing.assert_close(moved.vector, stayed.vector)
        if stayed.weights is not None:
            first = stayed.weights.shape[1] - T  # [cls] stays where it is
            expected = torch.cat([stayed.weights[:, :first], stayed.weights[:, first:][:, order]], 1)
            torch.testing.assert_close(moved.weights, expected)

    def test_leaves_the_features_untouched(self, variant, features):
        before = {kind: values.clone() for kind, values in features.items()}
        vector = variant.make()(features).vector
        if vector.requires_grad:
            vector.sum().backward()
        assert features.keys() == before.keys()
        assert all(torch.equal(values, before[kind]) and values.grad is None for kind, values in features.items())

    def test_is_finite_on_large_tokens(self, variant, features):
        aggregator = variant.make(dtype=torch.float32)
        vector = aggregator({kind: values.float() * 300 for kind, values in features.items()}).vector
        assert vector.dtype == torch.float32
        assert vector.isfinite().all()
        if vector.requires_grad:
            vector.square().sum().backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in aggregator.parameters())

    def test_lars_takes_its_biases_and_scales_alone_for_those(self, variant, features):
        """What has fewer than two axes is not scaled; a learned token that was held so would leap at LARS's rates.

        A single number, such as an exponent, belongs to no token.
        """
        norms = tuple(n for n, layer in variant.make().named_modules() if isinstance(layer, torch.nn.LayerNorm))
        for name, parameter in variant.make().named_parameters():
            assert parameter.ndim != 1 or name.endswith(".bias") or name.rpartition(".")[0] in norms, name

    def test_options_and_parameters_come_back(self, variant, features):
        aggregator = variant.make(1)
        again = make_aggregator(variant.name, D, T, **json.loads(json.dumps(variant.options))).double()
        again.load_state_dict(aggregator.state_dict(), strict=True)
        assert torch.equal(again(features).vector, aggregator(features).vector)

    def test_refuses_options_that_it_does_not_know(self, variant, features):
        with pytest.raises(BeyondClsError, match=rf"unknown option of aggregator '{variant.name}' 'colour'"):
            make_aggregator(variant.name, D, T, colour=3)

    def test_many_members_are_each_of_them(self, variant, features):
        members = [variant.make(seed) for seed in range(3)]
        together = variant.make(9).pool_many(stacked(members), features, n_members=3)
        assert together.vector.shape == (3, B, members[0].width)
        for i, member in enumerate(members):
            vector, weights = member(features)
            torch.testing.assert_close(together.vector[i], vector, rtol=1e-10, atol=1e-10)
            if weights is not None:
                torch.testing.assert_close(together.weights[i], weights, rtol=1e-10, atol=1e-10)


def stacked(members: list[Aggregator]) -> dict[str, torch.Tensor]:
    """Parameters of all members, as separate leaves."""
    names = [name for name, _ in members[0].named_parameters()]
    return {n: torch.stack([m.get_parameter(n).detach() for m in members]).requires_grad_() for n in names}


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.make().trainable], ids=shown)
def test_gradients_of_many_members_are_those_of_each(variant, features):
    members = [variant.make(seed) for seed in range(3)]
    parameters = stacked(members)
    towards = torch.randn(3, B, members[0].width, dtype=torch.float64)
    (variant.make(9).pool_many(parameters, features).vector * towards).sum().backward()
    for i, member in enumerate(members):
        (member(features).vector * towards[i]).sum().backward()
        for name, p in member.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], p.grad, rtol=1e-10, atol=1e-10)


class Mine(Weighted):
    """What a user writes: forward alone."""

    reads = ("patch",)
    random_start = True

    def __init__(self, dim, p=0.0):
        super().__init__(dim)
        self.score, self.drop = torch.nn.Linear(dim, 1), torch.nn.Dropout(p)

    def forward(self, features) -> Pooled:
        patch = features["patch"]
        return self.weigh(patch, self.drop(self.score(patch)).squeeze(-1).softmax(-1))


class TestAnAggregatorOfTheUser:
    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch):
        monkeypatch.setitem(AGGREGATORS, "mine", Mine)

    @pytest.mark.parametrize("options", [{}, {"top_k": 3}])
    def test_needs_nothing_but_forward(self, options, features):
        variant = Variant("mine", options)
        test_gradients_of_many_members_are_those_of_each(variant, features)
        TestEveryAggregator().test_many_members_are_each_of_them(variant, features)
        TestEveryAggregator().test_weights_sum_to_one(variant, features)
        abmilp = make_aggregator("abmilp", D, **options).double()
        mine = variant.make()
        abmilp.load_state_dict({f"score.0.{n}": p for n, p in mine.score.named_parameters()})
        torch.testing.assert_close(mine(features), abmilp(features))

    def test_members_draw_their_own_random_numbers(self, features):
        members = [make_aggregator("mine", D, p=0.5).double()] * 2
        vector = members[0].pool_many(stacked(members), features).vector
        assert not torch.allclose(vector[0], vector[1])

    def test_the_number_of_patches_is_known_or_asked_for(self, monkeypatch):
        class Learned(Mine):
            def __init__(self, dim, n_patches):
                super().__init__(dim)
                self.position = torch.nn.Parameter(torch.zeros(n_patches))

        monkeypatch.setitem(AGGREGATORS, "learned", Learned)
        assert make_aggregator("learned", D, T).position.shape == (T,)
        with pytest.raises(
            BeyondClsError, match="n_patches is unknown, expected the number of patches: aggregator 'learned' needs"
        ):
            make_aggregator("learned", D)
