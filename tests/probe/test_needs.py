"""The estimate of memory against what autograd really keeps."""

import re

import pytest
import torch

from probe import needs
from probe.aggregators import AGGREGATORS
from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.needs import check_memory
from probe.recipe import Recipe
from probe.train import losses_of
from store import BeyondClsError
from tests.probe.test_train import Mine
from tests.probe.training import D, Images, K, T, family, member

CPU = torch.device("cpu")
RECIPE = Recipe(2, 4096, 512, "adamw", warmup_epochs=0)
FEW = {kind: values[:4] for kind, values in next(Images().epoch()).items()}
SPECS = {
    "abmilp": HeadSpec("abmilp"),
    "deep": HeadSpec("abmilp", {"depth": 3}),
    "v-jepa": HeadSpec("v-jepa", {"heads": 2}),
    "batch-normalised tokens": HeadSpec("ap", {"heads": 2, "form": "aim"}),
    "cls": HeadSpec("cls"),
    "mine": HeadSpec("mine", {"p": 0.5}),
}


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    monkeypatch.setitem(AGGREGATORS, "mine", Mine)


def families_of(*specs, n=8):
    families = [family([member(seed) for seed in range(n)], spec) for spec in specs]
    for one in families:
        one.begin(RECIPE)
    return families


@pytest.fixture
def needed(monkeypatch):
    """Bytes that the check says are needed, and its message, where some are free."""

    def check(families, recipe=RECIPE, norm=None, sample=FEW, free=0):
        monkeypatch.setattr(needs, "free_memory", lambda device: free)
        with pytest.raises(BeyondClsError) as error:
            check_memory(families, sample, recipe, CPU, norm)
        message = str(error.value)
        return float(re.search(r"need about (\S+) GB", message)[1]) * 1e9, message

    return check


@pytest.mark.parametrize("name", SPECS)
def test_the_estimate_is_near_what_is_kept(name, needed):
    """Between what is kept alone, and as much again for the gradients that are computed from it."""
    [one], storages = families_of(SPECS[name]), {}

    def keep(values):
        storages[values.untyped_storage().data_ptr()] = values.untyped_storage().nbytes()
        return values

    batch = next(Images(RECIPE.at_once, RECIPE.at_once).epoch())
    for values in [*batch.values(), *one.stack.parameters.values(), *one.optimiser.state.values()]:
        keep(values)
    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        logits, _ = one.stack(batch, training=True)
        losses_of(keep(logits), batch["label"]).sum().backward()
    measured = sum(storages.values()) + sum(p.grad.nbytes for p in one.stack.parameters.values())
    for p in one.stack.parameters.values():
        p.grad = None
    generator, before = torch.get_rng_state(), {n: values.clone() for n, values in one.stack.state().items()}
    assert 0.95 * measured <= needed([one])[0] <= 2.05 * measured
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(values, before[n]) for n, values in one.stack.state().items())
    assert all(p.grad is None for p in one.stack.parameters.values())


def test_closed_form_of_a_linear_classifier(needed):
    of_members = 50 * 8 * (D * K + K) * 4 + 50 * 8  # parameters, gradients, two averages; the number of steps
    of_an_image = 2 * 50 * (2 * K + 1) * 8 + 8 * (D + T * D) + 16  # logits, their log-softmax; the tokens, label and row
    families = families_of(HeadSpec("cls", {}, "none"), n=50)
    for rows in (2, 512):
        nbytes, _ = needed(families, Recipe(2, 512, rows, "adamw", warmup_epochs=0))
        assert nbytes == pytest.approx(of_members + rows * of_an_image, rel=0.15)


def test_families_share_the_memory_of_what_is_computed_but_not_of_parameters(needed):
    one, two = (families_of(*[HeadSpec("abmilp", {"depth": 2})] * n, n=50) for n in (1, 2))
    parameters = sum(p.nbytes for p in one[0].stack.parameters.values())
    nbytes, more = (needed(families, Recipe(2, 2048, warmup_epochs=0))[0] for families in (one, two))
    assert more - nbytes == pytest.approx(4 * parameters, abs=0.06 * nbytes)


def test_tokens_that_are_normalised_take_memory_twice(needed):
    norm = FinalNorm(torch.ones(D).double(), torch.zeros(D).double(), 1e-5)
    [one] = families_of(HeadSpec("cls"), n=1)
    sample = {**FEW, "patch": torch.zeros(4, 300, D)}
    nbytes, more = (needed([one], norm=normalised, sample=sample)[0] for normalised in (None, norm))
    assert more - nbytes == pytest.approx(RECIPE.at_once * 300 * D * 4, rel=0.1)


def test_what_fits_is_said_and_does_fit(needed):
    families = families_of(HeadSpec("abmilp"), HeadSpec("cls"), n=30)
    free = int(needed(families)[0] / 0.9 / 3)
    _, message = needed(families, free=free)
    known = r"60 heads with 512 images .* on cpu, (\S+) GB are free; about (\d+) heads fit, .* rows_at_once (\d+)"
    stated, heads, rows = map(float, re.fullmatch(known, message).groups())
    assert stated == pytest.approx(0.9 * free / 1e9, rel=0.1)
    assert 15 <= heads <= 20
    assert rows == 128
    check_memory(families, FEW, Recipe(2, 4096, 128, "adamw", warmup_epochs=0), CPU)
    check_memory(families_of(HeadSpec("abmilp"), HeadSpec("cls"), n=int(heads) // 2), FEW, RECIPE, CPU)
    needed(families, Recipe(2, 4096, 256, "adamw", warmup_epochs=0), free=free)
    assert needed(families, free=1000)[1].endswith("about 0 heads fit"), "parameters alone are too much"


def test_several_processes_share_images(monkeypatch, needed):
    families = families_of(HeadSpec("abmilp"), n=30)
    alone = needed(families)[0]
    monkeypatch.setattr(needs, "world_size", lambda: 4)
    parts = sum(p.nbytes for p in families[0].stack.parameters.values()) * 4
    assert needed(families)[0] - parts == pytest.approx((alone - parts) / 4, rel=0.1)
