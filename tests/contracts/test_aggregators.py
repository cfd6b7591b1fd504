"""What holds for every aggregator of the registry, with its options (beyondcls.testing)."""

import pytest
import torch

from beyondcls.testing.aggregators import CHECKS, D, T, Variant, made_features, stacked, variants
from beyondcls.testing.checking import run
from probe.aggregators import AGGREGATORS, Pooled, Weighted, make_aggregator
from store import BeyondClsError

VARIANTS = [variant for name in AGGREGATORS for variant in variants(name)]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_aggregator(variant):
    run(CHECKS, variant)


class Mine(Weighted):
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
    def test_needs_nothing_but_forward(self, options):
        variant = Variant("mine", options)
        run(CHECKS, variant)
        features = made_features()
        abmilp = make_aggregator("abmilp", D, **options).double()
        mine = variant.make()
        abmilp.load_state_dict({f"score.0.{n}": p for n, p in mine.score.named_parameters()})
        torch.testing.assert_close(mine(features), abmilp(features))

    def test_members_draw_their_own_random_numbers(self):
        members = [make_aggregator("mine", D, p=0.5).double()] * 2
        vector = members[0].pool_many(stacked(members), made_features()).vector
        assert not torch.allclose(vector[0], vector[1])

    def test_the_number_of_patches_is_known_or_asked_for(self, monkeypatch):
        class Learned(Mine):
            def __init__(self, dim, n_patches):
                super().__init__(dim)
                self.position = torch.nn.Parameter(torch.zeros(n_patches))

        monkeypatch.setitem(AGGREGATORS, "learned", Learned)
        assert make_aggregator("learned", D, T).position.shape == (T,)
        with pytest.raises(BeyondClsError, match=r"n_patches is unknown, .* aggregator 'learned'"):
            make_aggregator("learned", D)
