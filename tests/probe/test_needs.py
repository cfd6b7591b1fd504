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
SPECS = {
    "abmilp": HeadSpec("abmilp"),
    "deep": HeadSpec("abmilp", {"depth": 3}),
    "v-jepa": HeadSpec("v-jepa", {"heads": 2}),
    "batch-normalised tokens": HeadSpec("ap", {"heads": 2, "form": "aim"}),
    "cls": HeadSpec("cls"),
    "mine": HeadSpec("mine", {"p": 0.5}),
}


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setitem(AGGREGATORS, "mine", Mine)


def families_of(*specs, n=8):
    families = [family([member(seed) for seed in range(n)], spec) for spec in specs]
    for one in families:
        one.begin(RECIPE)
    return families


def few(images):
    return {kind: values[:4] for kind, values in next(images.epoch()).items()}


def needed(families, monkeypatch, recipe=RECIPE, norm=None, sample=None):
    """Gigabytes that the check says are needed."""
    monkeypatch.setattr(needs, "free_memory", lambda device: 0)
    with pytest.raises(BeyondClsError) as error:
        check_memory(families, few(Images()) if sample is None else sample, recipe, CPU, norm)
    return float(re.search(r"need about (\S+) GB", str(error.value))[1]) * 1e9


def kept(one, batch):
    """Bytes of all tensors that a training step keeps, the batch, parameters, gradients and optimiser state included."""
    storages = {}

    def keep(values):
        storages[values.untyped_storage().data_ptr()] = values.untyped_storage().nbytes()
        return values

    for values in [*batch.values(), *one.stack.parameters.values(), *one.optimiser.state.values()]:
        keep(values)
    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        logits, _ = one.stack(batch, training=True)
        losses = losses_of(logits, batch["label"])
    keep(logits)
    losses.sum().backward()
    return sum(storages.values()) + sum(p.grad.nbytes for p in one.stack.parameters.values())


@pytest.mark.parametrize("name", SPECS)
def test_the_estimate_is_near_what_is_kept(name, monkeypatch, mine):
    [one] = families_of(SPECS[name])
    batch = next(Images(RECIPE.at_once, RECIPE.at_once).epoch())
    measured = kept(one, batch)
    for p in one.stack.parameters.values():
        p.grad = None
    # Between what is kept alone, and as much again for the gradients that are computed from it.
    assert 0.95 * measured <= needed([one], monkeypatch) <= 2.05 * measured


@pytest.mark.parametrize("rows", [2, 512])
def test_closed_form_of_a_linear_classifier(rows, monkeypatch):
    [one] = families_of(HeadSpec("cls", {}, "none"), n=50)
    of_members = 50 * 8 * (D * K + K) * 4 + 50 * 8  # parameters, gradients, two averages; the number of steps
    of_an_image = 2 * 50 * (2 * K + 1) * 8 + 8 * (D + T * D) + 16  # logits, their log-softmax; the tokens, label and row
    recipe = Recipe(2, 512, rows, "adamw", warmup_epochs=0)
    assert needed([one], monkeypatch, recipe) == pytest.approx(of_members + rows * of_an_image, rel=0.15)


def test_families_share_the_memory_of_what_is_computed_but_not_of_parameters(monkeypatch):
    recipe = Recipe(2, 2048, warmup_epochs=0)
    one, two = (families_of(*[HeadSpec("abmilp", {"depth": 2})] * n, n=50) for n in (1, 2))
    parameters = sum(p.nbytes for p in one[0].stack.parameters.values())
    more = needed(two, monkeypatch, recipe) - needed(one, monkeypatch, recipe)
    assert more == pytest.approx(4 * parameters, abs=0.06 * needed(one, monkeypatch, recipe))


def test_tokens_that_are_normalised_take_memory_twice(monkeypatch):
    norm = FinalNorm(torch.ones(D).double(), torch.zeros(D).double(), 1e-5)
    [one] = families_of(HeadSpec("cls"), n=1)
    sample = {**few(Images()), "patch": torch.zeros(4, 300, D)}
    tokens = RECIPE.at_once * 300 * D * 4
    more = needed([one], monkeypatch, norm=norm, sample=sample) - needed([one], monkeypatch, sample=sample)
    assert more == pytest.approx(tokens, rel=0.1)


def test_what_fits_is_said_and_does_fit(monkeypatch):
    families = families_of(HeadSpec("abmilp"), HeadSpec("cls"), n=30)
    total = needed(families, monkeypatch)
    free = int(total / 0.9 / 3)
    monkeypatch.setattr(needs, "free_memory", lambda device: free)
    with pytest.raises(BeyondClsError) as error:
        check_memory(families, few(Images()), RECIPE, CPU)
    matched = re.fullmatch(
        r"60 heads with 512 images at once need about (\S+) GB on cpu, (\S+) GB are free; "
        r"about (\d+) heads fit, or all of them with rows_at_once (\d+)",
        str(error.value),
    )
    assert float(matched[2]) == pytest.approx(0.9 * free / 1e9, rel=0.1)
    heads, rows = int(matched[3]), int(matched[4])
    assert 15 <= heads <= 20
    assert rows == 128
    check_memory(families, few(Images()), Recipe(2, 4096, rows, "adamw", warmup_epochs=0), CPU)
    check_memory(families_of(HeadSpec("abmilp"), HeadSpec("cls"), n=heads // 2), few(Images()), RECIPE, CPU)
    with pytest.raises(BeyondClsError):
        check_memory(families, few(Images()), Recipe(2, 4096, 256, "adamw", warmup_epochs=0), CPU)


def test_parameters_alone_may_be_too_much(monkeypatch):
    monkeypatch.setattr(needs, "free_memory", lambda device: 1000)
    with pytest.raises(BeyondClsError, match=r"about 0 heads fit$"):
        check_memory(families_of(HeadSpec("abmilp")), few(Images()), RECIPE, CPU)


def test_several_processes_share_images(monkeypatch):
    families = families_of(HeadSpec("abmilp"), n=30)
    alone = needed(families, monkeypatch)
    monkeypatch.setattr(needs, "world_size", lambda: 4)
    parts = sum(p.nbytes for p in families[0].stack.parameters.values()) * 4
    assert needed(families, monkeypatch) - parts == pytest.approx((alone - parts) / 4, rel=0.1)


def test_nothing_is_changed(mine):
    families = families_of(*SPECS.values())
    before = [{n: v.clone() for n, v in one.stack.state().items()} for one in families]
    generator = torch.get_rng_state()
    check_memory(families, few(Images()), RECIPE, CPU)
    for one, state in zip(families, before, strict=True):
        assert all(torch.equal(values, state[n]) for n, values in one.stack.state().items())
        assert all(p.grad is None for p in one.stack.parameters.values())
        assert all(not values.any() for values in one.optimiser.state.values())
    assert torch.equal(generator, torch.get_rng_state())
