"""Batches, heads and families for tests of training, without a feature set."""

import torch

from probe.grid import HeadSpec, Member
from probe.recipe import Recipe
from probe.stack import Stack
from probe.train import Family, train

D, T, K = 8, 5, 3


class Images:
    """Tokens in memory, in a new order each epoch: rank r of several has every n-th image of each batch."""

    def __init__(self, n=50, batch_size=16, *, seed=0, rank=0, world_size=1, several=False, dtype=torch.float64, tokens=None):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % K
        self.tokens = {
            "patch": torch.randn(n, T, D, generator=generator, dtype=torch.float64),
            "cls": torch.randn(n, D, generator=generator, dtype=torch.float64),
        }
        self.tokens["patch"][torch.arange(n), torch.randint(T, (n,), generator=generator), self.labels] += 4
        self.tokens = {kind: values.to(dtype) for kind, values in self.tokens.items()} | (tokens or {})
        if several:
            self.labels = (torch.rand(n, K, generator=generator) < 0.4).to(torch.uint8)
        self.batch_size, self.share = batch_size, (rank, world_size)
        self.n_rows = n // world_size

    def epoch(self, seed=0, start=0):
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed % 2**62))
        rank, world_size = self.share
        for rows in order.split(self.batch_size)[start:]:
            row = rows[rank::world_size]
            yield {**{kind: values[row] for kind, values in self.tokens.items()}, "label": self.labels[row], "row": row}


def member(seed=0, base_lr=0.1, weight_decay=0.0, head="abmilp"):
    return Member(head, base_lr, weight_decay, seed)


def family(members, spec=None, dtype=torch.float64):
    """One family of heads, built as `Passes` builds them."""
    spec = spec or HeadSpec("abmilp")
    return Family.of(Stack([spec.build(D, T, K, seed=m.seed).to(dtype) for m in members]), members)


def trained(families, recipe=None, images=None, test=None, **options):
    """The families, trained."""
    recipe = recipe or Recipe(epochs=3, batch_size=16, warmup_epochs=1)
    train(families, images or Images(batch_size=recipe.at_once), test, recipe, **options)
    return families


def equal(ours, theirs, tolerance=None):
    """Whether two stacks, or two heads, have the same parameters and running statistics."""
    ours, theirs = (x.state() if isinstance(x, Stack) else x.state_dict() for x in (ours, theirs))
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        if tolerance is None:
            assert torch.equal(values, theirs[name]), name
        else:
            torch.testing.assert_close(values, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
