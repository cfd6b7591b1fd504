"""The encoder in the loop: heads train as from stored features, and on crops that no epoch before has shown."""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from extract.datasets import DataError, ImageSet, open_images
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.probing.loop import EncoderLoop
from probe import run
from probe.checkpoint import Stopped
from probe.grid import HeadPlan, HeadSpec
from probe.passes import HeadPasses, Loop
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.saved import load_probe
from probe.sources import Source
from probe.train import epoch_seed
from store import BeyondClsError, FeatureStore, StoreError
from tests.extract.pictures import picture, write_file
from tests.extract.tiny import Counting, tiny_encoder

N, N_TEST = 40, 24
CPU = torch.device("cpu")
probe = partial(run.probe, converged=False)
RECIPE = Recipe(epochs=2, batch_size=16, base_lr=1.0, warmup_epochs=1)


def counting_encoder() -> Counting:
    encoder = tiny_encoder()
    encoder.__class__ = Counting
    assert isinstance(encoder, Counting)
    return encoder


def first(split: str, n: int) -> ImageSet:
    images = open_images("quickstart/data/cifar10", split=split)
    return ImageSet(images.source, images.samples[:n], images.classes)


def plans(*names: str, recipe: Recipe = RECIPE, **grid: tuple[float, ...]) -> dict[str, HeadPlan]:
    return {name: HeadPlan(HeadSpec(name), recipe, seeds=(0, 1), **grid) for name in names}


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return first("train", N)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, images: ImageSet) -> dict[str, FeatureStore]:
    """float32 features: `train` with four views, `plain` with the evaluation crop alone, and `test`."""
    folder, encoder = tmp_path_factory.mktemp("features"), tiny_encoder()
    sets = {"train": (images, 4), "plain": (images, 1), "test": (first("test", N_TEST), 1)}
    return {
        name: extract(encoder, of, folder / name, statistics=(), views=views, dtype="float32", shard_rows=32)
        for name, (of, views) in sets.items()
    }  # type: ignore[dict-item]


@pytest.fixture
def loop(images: ImageSet, stores: dict[str, FeatureStore]) -> EncoderLoop:
    return EncoderLoop(counting_encoder(), images, stores["plain"], batch_size=7, workers=2)


def seen(loop: Loop) -> int:
    assert isinstance(loop, EncoderLoop)
    assert isinstance(loop.encoder, Counting)
    return loop.encoder.seen


def stored(store: FeatureStore, name: str, view: int = 0, rows: object = slice(None)) -> np.ndarray:
    return store.array(f"{name}/block1/view{view}").all()[rows]


def test_the_nth_epoch_shows_the_nth_crop(loop, stores):
    source, arrays = Source(stores["plain"]), {"patch": "patch/block1/view0", "cls": "cls/block1/view0"}
    arrays |= {"average": "average/block0/view0", "attention/cls": "attention/cls/block1/view0"}
    epochs = [11, 12, 13]
    batches = loop.batches(arrays, source, 16, CPU, epochs, (0, 1))
    assert batches.n_rows == N
    orders = []
    for view, seed in enumerate(epochs, 1):
        shown = list(batches.epoch(seed))
        assert [len(batch["row"]) for batch in shown] == [16, 16, 8]
        joined = {name: torch.cat([batch[name] for batch in shown]).numpy() for name in shown[0]}
        orders.append(joined["row"].tolist())
        assert np.array_equal(joined["label"], stores["train"].labels[joined["row"]])
        for name in ("patch", "cls", "attention/cls"):
            np.testing.assert_allclose(joined[name], stored(stores["train"], name, view, joined["row"]), atol=1e-5)
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(N)) for order in orders)
    (judged,) = loop.batches(arrays, source.part(np.arange(5)), 16, CPU, [], (0, 1)).epoch()
    assert judged["row"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(judged["patch"], stored(stores["plain"], "patch")[:5], atol=1e-5)


def test_fresh_crops_have_the_branches_dropped_of_stored_ones(tmp_path, loop, stores, images):
    kept = {"statistics": (), "dtype": "float32", "shard_rows": 32}
    dropped = extract(tiny_encoder(), images, tmp_path / "dropped", views=3, drop_path=0.5, **kept)
    dropping, arrays = replace(loop, drop_path=0.5), {"patch": "patch/block1/view0"}
    batches = dropping.batches(arrays, Source(stores["plain"]), 16, CPU, [11, 12], (0, 1))
    for view, seed in ((1, 11), (2, 12)):
        for batch in batches.epoch(seed):
            patch, rows = batch["patch"].numpy(), batch["row"].numpy()
            np.testing.assert_allclose(patch, stored(dropped, "patch", view, rows), atol=1e-5)
            assert np.abs(patch - stored(stores["train"], "patch", view, rows)).max() > 0.01
    (judged,) = dropping.batches(arrays, Source(stores["plain"]).part(np.arange(5)), 16, CPU, [], (0, 1)).epoch()
    np.testing.assert_allclose(judged["patch"], stored(stores["plain"], "patch")[:5], atol=1e-5)
    with pytest.raises(BeyondClsError, match=r"drop_path is 0\.5, but views is 1"):
        replace(loop, drop_path=0.5, fresh=False)


def assert_alike(*folders: Path, seed: int = 0, **close: float) -> None:
    """Check that the heads of two folders have the same parameters."""
    ours, theirs = (load_probe(folder / f"trained/seed{seed}").state_dict() for folder in folders)
    for parameter, values in theirs.items():
        torch.testing.assert_close(ours[parameter], values, **{"rtol": 1e-4, "atol": 1e-5, **close})


def test_on_evaluation_crops_heads_become_those_of_cached_tokens(tmp_path, loop, stores, monkeypatch):
    monkeypatch.setattr("probe.select.ENOUGH", 1)  # all seeds share the hold-out, as with the encoder in the loop
    of_heads = plans("average", "abmilp", recipe=replace(RECIPE, order="own"), base_lrs=(0.3, 1.0))
    cached = probe(stores["plain"], stores["test"], tmp_path / "cached", of_heads)
    looped = probe(stores["plain"], stores["test"], tmp_path / "looped", of_heads, loop=replace(loop, fresh=False))
    for name, measures in looped.items():
        assert measures["selected"]["candidates"] == cached[name]["selected"]["candidates"]
        assert measures["augmentation"] == cached[name]["augmentation"]
        for seed in (0, 1):
            assert_alike(tmp_path / "looped" / name, tmp_path / "cached" / name, seed=seed)
        curves = [list(csv.DictReader((tmp_path / f / name / "curves.csv").open())) for f in ("looped", "cached")]
        assert [row["top1"] for row in curves[0]] == [row["top1"] for row in curves[1]]


def test_one_forward_pass_serves_all_heads_seeds_and_settings(tmp_path, loop, stores):
    of_heads = plans("cls", "abmilp", base_lrs=(0.1, 1.0))
    written = probe(stores["plain"], stores["test"], tmp_path / "out", of_heads, loop=loop)
    held_out = written["cls"]["selected"]["n_images"]
    # Twice a few images beforehand; the held-out ones once, by evaluation crops.
    assert seen(loop) == RECIPE.epochs * (N + (N - held_out)) + held_out + 2 * 4
    for measures in written.values():
        assert measures["encoder_passes"] == {"made": 2 * RECIPE.epochs, "one_by_one": RECIPE.epochs * 2 * (1 + 2)}
        assert measures["augmentation"] == {"n_crops": "fresh", "evaluation_view": False}
        assert not any("augmentation" in note for note in measures["notes"])


def test_fresh_crops_train_as_the_same_crops_stored(tmp_path, loop, stores):
    """In steps of all images, whose order does not count, one epoch shows the crop that is stored as view 1."""
    of_heads = plans("cls", "average", "abmilp", recipe=Recipe(epochs=1, batch_size=N, base_lr=30.0, warmup_epochs=0))
    stored = probe(stores["train"], stores["test"], tmp_path / "stored", of_heads, views=2)
    fresh = probe(stores["plain"], stores["test"], tmp_path / "fresh", of_heads, loop=loop)
    for name, measures in fresh.items():
        assert measures["top1"]["values"] == stored[name]["top1"]["values"]
    np.testing.assert_allclose(fresh["abmilp"]["entropy"]["values"], stored["abmilp"]["entropy"]["values"], rtol=1e-5)


def test_a_run_that_stops_goes_on_with_the_crops_that_would_have_come(tmp_path, loop, stores):
    whole = probe(stores["plain"], stores["test"], tmp_path / "whole", plans("abmilp"), loop=loop)
    begun = replace(loop, encoder=counting_encoder())
    with pytest.raises(Stopped):
        probe(stores["plain"], stores["test"], tmp_path / "out", plans("abmilp"), loop=begun, stops=lambda: True)
    assert seen(begun) == N + 4
    going_on = replace(loop, encoder=counting_encoder())
    finished = probe(stores["plain"], stores["test"], tmp_path / "out", plans("abmilp"), loop=going_on)
    assert seen(going_on) == (RECIPE.epochs - 1) * N + 4
    assert finished == whole
    assert_alike(tmp_path / "out/abmilp", tmp_path / "whole/abmilp", rtol=0, atol=0)
    # A state on fresh crops is not gone on with on others.
    with pytest.raises(Stopped):
        probe(stores["plain"], stores["test"], tmp_path / "other", plans("abmilp"), loop=loop, stops=lambda: True)
    other = replace(loop, encoder=counting_encoder(), fresh=False)
    probe(stores["plain"], stores["test"], tmp_path / "other", plans("abmilp"), loop=other)
    assert seen(other) == RECIPE.epochs * N + 4


def test_other_images_another_encoder_and_what_concerns_stored_features_are_refused(tmp_path, loop, stores, images):
    other: Encoder = tiny_encoder()
    other.run_with(amp="bf16")
    fewer = ImageSet(images.source, images.samples[: N - 1], images.classes)
    changes = {
        "weights": {"encoder": tiny_encoder(seed=1)},
        "data, n_images": {"images": fewer},
        "compute_dtype": {"encoder": other},
    }
    for differ, change in changes.items():
        with pytest.raises(StoreError, match=f"{differ} differ"):
            replace(loop, **change)
    pair = (stores["plain"], stores["test"])
    for given in ({"views": 3}, {"mix_evaluation_view": True}, {"joined": pair}):
        with pytest.raises(BeyondClsError, match=f"{next(iter(given))} is .*, but the encoder is in the loop"):
            probe(*pair, tmp_path / "out", plans("cls"), loop=loop, **given)


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    for number in range(4):
        write_file(tmp_path / f"images/{number % 2}/{number}.png", picture(number) if number < 3 else b"no image")
    images = open_images(str(tmp_path / "images"))
    store = extract(tiny_encoder(), images, tmp_path / "f", statistics=(), maps=False, on_error="record")
    assert store is not None
    loop, arrays = EncoderLoop(tiny_encoder(), images, store), {"cls": "cls/block1/view0"}
    every = Source(store).part(np.arange(4))
    with pytest.raises(DataError, match=r"3\.png"):
        list(loop.batches(arrays, every, 4, CPU, [1], (0, 1)).epoch(1))


class TestCommand:
    SHORT = ("--epochs", "2", "--warmup-epochs", "0", "--batch-size", "16", "--seeds", "0", "--device", "cpu", "--no-converged")

    @pytest.fixture(scope="class")
    def sets(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with images, 30 and 12, features of the quickstart's MAE, and params.yaml."""
        made, encoder = tmp_path_factory.mktemp("sets"), load_encoder("quickstart-mae")
        for split, n in (("train", 30), ("test", 12)):
            for number, sample in enumerate(first(split, n).samples):
                write_file(made / "data/pets" / split / f"{number % 2}/{number}.png", sample.read())
            images = open_images(str(made / "data/pets" / split))
            extract(encoder, images, made / split, statistics=(), maps=False, vectors="only")
        encoders = "{quickstart-mae: {batch_size: 8}}"
        text = f"data: {made}/data\ndatasets: {{pets: {{}}}}\nencoders: {encoders}\nheads: {{average: {{}}}}\n"
        (made / "params.yaml").write_text(text)
        return made

    def test_images_by_their_folder_or_of_the_parameter_file(self, beyondcls, sets, tmp_path):
        places = ("--features", sets / "train", "--test", sets / "test", "--head", "average", *self.SHORT)
        named = ("--params", sets / "params.yaml", "--dataset", "pets", "--encoder", "quickstart-mae")
        written, out = [], ("--out", tmp_path / "out")
        for given in (("--data", sets / "data/pets/train", "--workers", "1"), named):
            beyondcls("probe", "--in-the-loop", "fresh", *given, *places, *out)
            written.append(read_result(tmp_path / "out/metrics.json"))
        assert written[0]["encoder_passes"] == {"made": 2, "one_by_one": 2}
        assert written[0]["top1"] == written[1]["top1"]

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("--in-the-loop frehs --data data", "'fresh'?"),
            ("--data data", "--data data concerns images"),
            ("--in-the-loop fresh", "give --data, or --dataset NAME"),
            ("--in-the-loop fresh --data SETS/data/pets/test", "data, n_images differ"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, given, expected, beyondcls, sets, tmp_path):
        places = ("--features", sets / "train", "--test", sets / "test", "--out", tmp_path / "out", *self.SHORT)
        assert expected in beyondcls("probe", *given.replace("SETS", str(sets)).split(), *places, fails=True)
        assert not (tmp_path / "out").exists()


def test_two_processes_take_the_steps_of_one(loop, stores):
    sources = Source(stores["plain"]), Source(stores["test"])

    def steps(rank: int, world_size: int) -> list[list[int]]:
        shared = {"loop": loop, "rank": rank, "world_size": world_size}
        passes = HeadPasses({"abmilp": HeadSpec("abmilp")}, *sources, (0,), CPU, **shared)
        batches = passes._batches(["abmilp"], sources[0], RECIPE, order=0)
        return [batch["row"].tolist() for batch in batches.epoch(epoch_seed(0, 0))]

    both = [sorted(one + other) for one, other in zip(steps(0, 2), steps(1, 2), strict=True)]
    assert both == [sorted(rows) for rows in steps(0, 1)]
