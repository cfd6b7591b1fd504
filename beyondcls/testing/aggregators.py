"""What holds for every aggregator, with the options that it declares in `variants`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beyondcls.testing.checking import expect, expect_close
from probe.aggregators import AGGREGATORS, Aggregator, make_aggregator
from store import BeyondClsError

D, T, B = 96, 16, 3


class Variant(NamedTuple):
    """An aggregator by name, with some of the options that it declares."""

    name: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}-{json.dumps(self.options)}"

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Aggregator:
        """It, with the initial parameters of a seed; those that are 0 are drawn, as a query of 0 weights all tokens alike."""
        torch.manual_seed(seed)
        aggregator = make_aggregator(self.name, D, T, **self.options).to(dtype)
        for parameter in aggregator.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
        return aggregator


def variants(name: str) -> Iterator[Variant]:
    """The aggregator of a name with each of its options."""
    for options in AGGREGATORS[name].variants:
        yield Variant(name, options)


def made_features() -> dict[str, Tensor]:
    """Kinds of features of B images, float64."""
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


def in_order(features: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The same images with their patches in another order."""
    moved = {}
    for kind, values in features.items():
        token_axis = -1 if "attention" in kind else 1
        moved[kind] = values.index_select(token_axis, order) if kind.startswith("patch") or "attention" in kind else values
    return moved


def stacked(members: list[Aggregator]) -> dict[str, Tensor]:
    """Parameters of all members, as separate leaves."""
    names = [name for name, _ in members[0].named_parameters()]
    return {n: torch.stack([m.get_parameter(n).detach() for m in members]).requires_grad_() for n in names}


def gives_one_vector_of_its_width_per_image(variant: Variant) -> None:
    aggregator = variant.make()
    vector = aggregator(made_features()).vector
    expect(vector.shape == (B, aggregator.width), f"vectors are {list(vector.shape)}, expected {[B, aggregator.width]}")
    expect(vector.isfinite().all(), "a vector is not finite")


def reads_what_it_says_and_nothing_else(variant: Variant) -> None:
    class Watched(dict[str, Tensor]):
        def __getitem__(self, kind: str) -> Tensor:
            read.add(kind)
            return super().__getitem__(kind)

    read: set[str] = set()
    aggregator, features = variant.make(), made_features()
    aggregator(Watched({kind: features[kind] for kind in aggregator.reads}))
    expect(read == set(aggregator.reads), f"reads says {sorted(aggregator.reads)}, and it reads {sorted(read)}")


def weights_sum_to_one(variant: Variant) -> None:
    aggregator = variant.make()
    weights = aggregator(made_features()).weights
    expect((weights is not None) == aggregator.weighted, f"weighted is {aggregator.weighted}, and weights are {weights}")
    if weights is None:
        return
    shape = (B, T + any(kind.startswith("cls") for kind in aggregator.reads))
    expect(weights.shape == shape, f"weights are {list(weights.shape)}, expected {list(shape)}")
    expect((weights >= 0).all(), "a weight is negative")
    expect_close(weights.sum(-1), torch.ones(B, dtype=torch.float64), "sums of weights")


def takes_tokens_as_they_are_stored_where_it_says_so(variant: Variant) -> None:
    aggregator = variant.make()
    if not aggregator.takes_stored:
        return
    stored = {kind: values.half() for kind, values in made_features().items()}
    parameters = {n: p.detach()[None] for n, p in aggregator.named_parameters()}
    half, double = (aggregator.pool_many(parameters, f) for f in (stored, {k: v.double() for k, v in stored.items()}))
    expect(torch.equal(half.vector, double.vector), "vectors of float16 tokens are not those of the same values in float64")
    expect(half.vector.dtype == torch.float64, f"vectors are {half.vector.dtype}, expected the parameters' float64")
    expect(half.weights is None or torch.equal(half.weights, double.weights), "weights of float16 tokens differ")  # type: ignore[arg-type]


def is_deterministic_under_a_seed(variant: Variant) -> None:
    features = made_features()
    expect(torch.equal(variant.make(1)(features).vector, variant.make(1)(features).vector), "two of one seed differ")
    one, two = (dict(variant.make(seed).named_parameters()) for seed in (1, 2))
    same = all(torch.equal(values, two[name]) for name, values in one.items())
    same_vectors = torch.equal(variant.make(1)(features).vector, variant.make(2)(features).vector)
    expect(same_vectors == same, "vectors of two seeds are the same although parameters differ, or the other way round")
    says = variant.make().random_start
    expect(same != says, f"random_start is {says}, and parameters of two seeds are {'the same' if same else 'not the same'}")


def moves_its_weights_with_the_patches(variant: Variant) -> None:
    aggregator, features = variant.make(), made_features()
    order = torch.randperm(T, generator=torch.Generator().manual_seed(5))
    stayed, moved = aggregator(features), aggregator(in_order(features, order))
    if aggregator.uses_position:
        expect(
            not torch.allclose(moved.vector, stayed.vector), "uses_position is True, and the order of patches does not matter"
        )
        return
    expect_close(moved.vector, stayed.vector, "uses_position is False, and the order of patches matters")
    if stayed.weights is not None:
        first = stayed.weights.shape[1] - T  # [cls] stays where it is
        expected = torch.cat([stayed.weights[:, :first], stayed.weights[:, first:][:, order]], 1)
        expect_close(moved.weights, expected, "weights don't move with the patches")


def leaves_the_features_untouched(variant: Variant) -> None:
    features, before = made_features(), made_features()
    vector = variant.make()(features).vector
    if vector.requires_grad:
        vector.sum().backward()
    expect(features.keys() == before.keys(), "kinds of features were added or removed")
    for kind, values in features.items():
        expect(torch.equal(values, before[kind]) and values.grad is None, f"{kind} was changed, or got a gradient")


def is_finite_on_large_tokens(variant: Variant) -> None:
    aggregator = variant.make(dtype=torch.float32)
    vector = aggregator({kind: values.float() * 300 for kind, values in made_features().items()}).vector
    expect(vector.dtype == torch.float32, f"vectors of float32 tokens are {vector.dtype}")
    expect(vector.isfinite().all(), "a vector is not finite")
    if vector.requires_grad:
        vector.square().sum().backward()
        for name, p in aggregator.named_parameters():
            expect(p.grad is not None and p.grad.isfinite().all(), f"the gradient of {name} is missing or not finite")


def lars_takes_its_biases_and_scales_alone_for_those(variant: Variant) -> None:
    """What has fewer than two axes is not scaled; a learned token that was held so would leap at LARS's rates.

    A single number, such as an exponent, belongs to no token.
    """
    norms = tuple(n for n, layer in variant.make().named_modules() if isinstance(layer, torch.nn.LayerNorm))
    for name, parameter in variant.make().named_parameters():
        is_scale = name.endswith(".bias") or name.rpartition(".")[0] in norms
        expect(parameter.ndim != 1 or is_scale, f"{name} has one axis, so LARS takes it for a bias; hold it as [1, 1, D]")


def options_and_parameters_come_back(variant: Variant) -> None:
    aggregator, features = variant.make(1), made_features()
    again = make_aggregator(variant.name, D, T, **json.loads(json.dumps(dict(variant.options)))).double()
    again.load_state_dict(aggregator.state_dict(), strict=True)
    expect(torch.equal(again(features).vector, aggregator(features).vector), "one with the same state gives other vectors")


def refuses_options_that_it_does_not_know(variant: Variant) -> None:
    try:
        make_aggregator(variant.name, D, T, colour=3)
    except BeyondClsError as error:
        expect(f"unknown option of aggregator {variant.name!r} 'colour'" in str(error), f"option 'colour': {error}")
    else:
        raise AssertionError("it takes an option 'colour'; list its options in the signature, without **options")


def many_members_are_each_of_them(variant: Variant) -> None:
    """Gradients included."""
    members, features = [variant.make(seed) for seed in range(3)], made_features()
    parameters, trainable = stacked(members), members[0].trainable
    together = variant.make(9).pool_many(parameters, features, **({} if trainable else {"n_members": 3}))
    expect(together.vector.shape == (3, B, members[0].width), f"pool_many of 3 members gives {list(together.vector.shape)}")
    towards = torch.randn(3, B, members[0].width, dtype=torch.float64)
    if trainable:
        (together.vector * towards).sum().backward()
    for i, member in enumerate(members):
        vector, weights = member(features)
        expect_close(together.vector[i], vector, f"vectors of member {i}", rtol=1e-10, atol=1e-10)
        if weights is not None:
            expect(together.weights is not None, "pool_many gives no weights")
            expect_close(together.weights[i], weights, f"weights of member {i}", rtol=1e-10, atol=1e-10)  # type: ignore[index]
        if trainable:
            (vector * towards[i]).sum().backward()
        for name, p in member.named_parameters() if trainable else ():
            stacked_grad = parameters[name].grad
            expect(stacked_grad is not None and p.grad is not None, f"{name} has no gradient")
            expect_close(stacked_grad[i], p.grad, f"gradient of {name} of member {i}", rtol=1e-10, atol=1e-10)  # type: ignore[index, arg-type]


CHECKS = (
    gives_one_vector_of_its_width_per_image,
    leaves_the_features_untouched,
    reads_what_it_says_and_nothing_else,
    weights_sum_to_one,
    takes_tokens_as_they_are_stored_where_it_says_so,
    is_deterministic_under_a_seed,
    moves_its_weights_with_the_patches,
    is_finite_on_large_tokens,
    lars_takes_its_biases_and_scales_alone_for_those,
    options_and_parameters_come_back,
    refuses_options_that_it_does_not_know,
    many_members_are_each_of_them,
)
