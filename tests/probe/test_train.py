import numpy as np
import pytest
import torch

from probe.optim import learning_rate, make_optimiser
from probe.train import Recipe, train
from store import BeyondClsError, Loader
from tests.features import write_features

RECIPE = Recipe(epochs=12, batch_size=32, base_lr=1.0, warmup_epochs=2)


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    stores = write_features(folder / "train", 192), write_features(folder / "test", 96, seed=1)

    def make(reads, placement="memory"):
        arrays = [{kind: store.tokens(kind) for kind in reads} for store in stores]
        return (
            Loader(arrays[0], stores[0].labels, batch_size=32, placement=placement),
            Loader(arrays[1], stores[1].labels, batch_size=32, shuffle=False),
        )

    return make


def run(loaders, aggregator="abmilp", seed=0, recipe=RECIPE, **options):
    reads = ("cls",) if aggregator == "cls" else ("patch",)
    return train(aggregator, options, 8, 3, *loaders(reads), recipe, seed)


def test_a_seed_fixes_every_number(loaders):
    one, other, different = run(loaders), run(loaders), run(loaders, seed=1)
    assert one.curve == other.curve
    assert all(torch.equal(a, b) for a, b in zip(one.head.state_dict().values(), other.head.state_dict().values(), strict=True))
    assert one.curve != different.curve


def test_training_leaves_the_global_generator_alone(loaders):
    before = torch.get_rng_state()
    run(loaders)
    assert torch.equal(before, torch.get_rng_state())


def test_abmilp_finds_the_patch_that_carries_the_class(loaders):
    chosen, averaged = (
        run(loaders, recipe=Recipe(40, 32, base_lr=1.0)),
        run(loaders, "average", recipe=Recipe(40, 32, base_lr=1.0)),
    )
    assert chosen.result["top1"] > averaged.result["top1"] > 40
    assert chosen.result["entropy"] < averaged.result["entropy"] - 0.2
    assert averaged.result["entropy"] == pytest.approx(np.log(9))
    assert chosen.weights.shape == (96, 9)


def test_loss_falls_and_curve_has_every_epoch(loaders):
    curve = run(loaders, "cls").curve
    assert [c["epoch"] for c in curve] == list(range(1, 13))
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_streaming_and_memory_read_the_same_images(loaders):
    streamed = train("average", {}, 8, 3, *loaders(("patch",), "stream"), RECIPE, 0)
    assert streamed.result["top1"] == pytest.approx(run(loaders, "average").result["top1"], abs=8)


def test_divergence_is_an_error(loaders):
    with pytest.raises(BeyondClsError, match=r"loss is (nan|inf) in epoch \d+ of seed 0; lower base_lr \(now 1e\+38\)"):
        run(loaders, "cls", recipe=Recipe(5, 32, base_lr=1e38, warmup_epochs=0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected 1"),
        ({"batch_size": 0}, "batch_size is 0, expected 1"),
        ({"epochs": 5, "warmup_epochs": 5}, "warmup_epochs is 5, expected 0 to 4"),
    ],
)
def test_recipes_that_cannot_be(values, message):
    with pytest.raises(BeyondClsError, match=message):
        Recipe(**values)


def test_optimisers_by_name():
    parameter = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(BeyondClsError, match="unknown optimiser 'sdg'; did you mean 'sgd'"):
        make_optimiser("sdg", parameter, 0.1, 0, 0.9)
    with pytest.raises(BeyondClsError, match="learning rate is -1, expected a positive"):
        make_optimiser("sgd", parameter, -1, 0, 0.9)


def test_learning_rate_by_hand():
    assert learning_rate(0, 0.4, 100, 10) == 0
    assert learning_rate(5, 0.4, 100, 10) == pytest.approx(0.2)
    assert learning_rate(10, 0.4, 100, 10) == pytest.approx(0.4)
    assert learning_rate(55, 0.4, 100, 10) == pytest.approx(0.2)
    assert learning_rate(100, 0.4, 100, 10) == pytest.approx(0)
    assert Recipe(base_lr=0.1, batch_size=1024).lr == pytest.approx(0.4)
