"""What holds for every aggregator of the registry."""

import pytest
import torch

from probe.aggregators import AGGREGATORS, make_aggregator

DIM, TOKENS = 12, 10


@pytest.fixture
def features() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {"patch": torch.randn(4, TOKENS, DIM), "cls": torch.randn(4, DIM)}


@pytest.mark.parametrize("name", AGGREGATORS)
class TestEveryAggregator:
    def test_gives_one_vector_per_image(self, name, features):
        pooled = make_aggregator(name, DIM)(features)
        assert pooled.vector.shape == (4, DIM)
        assert pooled.vector.isfinite().all()

    def test_reads_only_what_it_says(self, name, features):
        aggregator = make_aggregator(name, DIM)
        assert aggregator.reads
        aggregator({kind: features[kind] for kind in aggregator.reads})

    def test_weights_sum_to_one(self, name, features):
        weights = make_aggregator(name, DIM)(features).weights
        if "patch" in AGGREGATORS[name].reads:
            assert weights is not None
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(4))
        else:
            assert weights is None

    def test_is_deterministic_under_a_seed(self, name, features):
        def run() -> torch.Tensor:
            torch.manual_seed(0)
            return make_aggregator(name, DIM)(features).vector

        assert torch.equal(run(), run())

    def test_moves_its_weights_with_the_patches(self, name, features):
        aggregator = make_aggregator(name, DIM)
        order = torch.randperm(TOKENS)
        moved = aggregator({**features, "patch": features["patch"][:, order]})
        stayed = aggregator(features)
        torch.testing.assert_close(moved.vector, stayed.vector)
        if stayed.weights is not None:
            torch.testing.assert_close(moved.weights, stayed.weights[:, order])

    def test_leaves_the_features_untouched(self, name, features):
        before = {kind: values.clone() for kind, values in features.items()}
        make_aggregator(name, DIM)(features)
        assert all(torch.equal(values, before[kind]) for kind, values in features.items())

    def test_gradients_are_finite(self, name, features):
        aggregator = make_aggregator(name, DIM)
        scaled = {kind: values * 100 for kind, values in features.items()}
        vector = aggregator(scaled).vector
        if vector.requires_grad:
            vector.square().sum().backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in aggregator.parameters())
