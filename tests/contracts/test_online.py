"""Every aggregator, trained on stored features, gives on the live encoder what it gives on the store."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.datasets import open_images
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.live.online import Online, online
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from probe.saved import load_probe, load_with, save_probe
from probe.sources import Source
from store import FeatureStore
from store.codecs import CODECS
from tests.contracts.test_aggregators import VARIANTS, D
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import sharpen

N, BLOCKS = 20, (3, 5)
DTYPES = ("float32", "int8")
ARGUMENTS = {"img_size": 32, "patch_size": 8, "embed_dim": D, "depth": 6, "num_heads": 4, "global_pool": "map"}
# float32 arithmetic in another order, as a share of the largest value: unwatched, the encoder attends in one call.
ARITHMETIC = 2e-6
SPECS = {str(v): HeadSpec(v.name, v.options) for v in VARIANTS}
for at, variant in enumerate(VARIANTS):  # the other options of a head, in turn
    # A final LayerNorm of scale 1 makes all tokens equally long: which of them are longest is rounding.
    if at % 3 == 1 and not (variant.name == "norm" and "top_k" in variant.options):
        spec = HeadSpec(variant.name, variant.options, "none" if at % 2 else "batch", final_norm=True)
        SPECS[f"{variant}-{spec.normalisation}-final-norm"] = spec


@dataclass
class World:
    """Two encoders, their features of the same images as they are and rounded, and a probe of each kind on the former."""

    folder: Path
    encoder: Encoder
    joined: Encoder
    stores: dict[str, tuple[FeatureStore, FeatureStore]]
    images: tuple[Tensor, ...]
    metrics: dict[str, dict]

    def path(self, name: str) -> Path:
        return self.folder / "probes" / name.replace("/", "-") / "trained/seed0"

    def online(self, name: str) -> Online:
        return online(self.encoder, self.path(name), joined=self.joined if "joined" in name else None)

    def stored(self, kinds: tuple[str, ...], dtype: str) -> dict[str, Tensor]:
        """Kinds of features, as probing reads them."""
        (batch,) = Source(*self.stores[dtype]).loader(kinds, batch_size=N, shuffle=False).epoch()
        return {kind: batch[kind] for kind in kinds}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("world")
    data = open_images(str(write_tar(folder / "data/000.tar", samples(N))))
    # The second one has other pixels and another mean: as many patches, but of other images.
    encoder = load_encoder("tiny", model="vit_tiny_patch16_224", arguments=ARGUMENTS, random_seed=0)
    other = {**ARGUMENTS, "img_size": 48, "patch_size": 12}
    joined = load_encoder("other", model="vit_tiny_patch16_224", arguments=other, random_seed=1)
    for one in (encoder, joined):
        sharpen(one.model, 8)
    encoder = Encoder("tiny", encoder.model, {"model": "tiny"})
    joined = Encoder("other", joined.model, {"model": "other"}, {"mean": (0.1, 0.2, 0.3)})
    stores = {}
    for dtype in DTYPES:
        pair = [
            extract(one, data, folder / f"{dtype}-{one.name}", blocks=blocks, statistics=(), dtype=dtype)
            for one, blocks in ((encoder, BLOCKS), (joined, (5,)))
        ]
        assert pair[0] is not None
        assert pair[1] is not None
        stores[dtype] = (pair[0], pair[1])
    recipe = Recipe(epochs=1, batch_size=10, base_lr=4.0, warmup_epochs=0)
    train, second = stores["float32"]
    plans = {name.replace("/", "-"): HeadPlan(spec, recipe, seeds=(0,)) for name, spec in SPECS.items()}
    metrics = probe(train, train, folder / "probes", plans, joined=(second, second))
    pictures = [data.image(row) for row in range(N)]
    images = tuple(torch.stack([e.transform(p) for p in pictures]) for e in (encoder, joined))
    return World(folder, encoder, joined, stores, images, metrics)


def codec_of(kind: str, dtype: str):
    """Maps have half precision at least, vectors of the encoder's pooling all of it."""
    if kind == "pooled":
        return CODECS["float32"]
    return CODECS["float16" if "attention" in kind and dtype != "float32" else dtype]


@pytest.mark.parametrize("name", SPECS)
def test_logits_are_those_of_the_store(name, world):
    """Where features are stored as they are; where they are rounded, each is within the bound that its codec declares.

    So kinds, blocks, views and order are those of the store.
    """
    model, images = world.online(name), world.images[: 2 if "joined" in name else 1]
    live, (logits, maps) = model.features(*images), model(*images)
    assert live.keys() == set(model.head.aggregator.reads)
    for dtype in DTYPES:
        stored = world.stored(model.head.aggregator.reads, dtype)
        for kind, values in live.items():
            bound = codec_of(kind, dtype).bound(values) + ARITHMETIC * values.abs().max().double()
            beyond = ((values.double() - stored[kind].double()).abs() - bound).max()
            assert beyond <= 0, f"{dtype}: {kind} is {beyond:.3g} beyond the declared bound"
    with torch.no_grad():
        expected, weights = model.head(world.stored(model.head.aggregator.reads, "float32"))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert (maps is None) == (weights is None)
    if maps is not None:
        torch.testing.assert_close(maps, weights[:, -16:].unflatten(1, (4, 4)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_a_saved_probe_gives_what_was_measured(name, world):
    model, metrics, folder = world.online(name), world.metrics[name.replace("/", "-")], world.path(name).parent
    with torch.no_grad():
        logits, weights = model.head(world.stored(model.head.aggregator.reads, "float32"))
    correct = logits.argmax(1).numpy() == world.stores["float32"][0].labels
    assert metrics["top1"]["mean"] == pytest.approx(100 * correct.mean())
    with np.load(folder / "correct.npz") as file:
        assert file["correct"].tolist() == [correct.tolist()]
    assert (folder / "weights.npy").exists() == (weights is not None) == ("entropy" in metrics)
    if weights is not None:
        np.testing.assert_allclose(np.load(folder / "weights.npy"), weights[:, -16:], atol=1e-6)
        assert metrics["entropy"]["mean"] == pytest.approx(torch.special.entr(weights).sum(1).mean().item(), abs=1e-3)


@pytest.mark.parametrize("name", SPECS)
def test_a_saved_head_gives_the_same_logits_bit_for_bit(name, world, tmp_path):
    """Saved, loaded, saved again; and from the state dict of the module; and through `torch.export`."""
    model, images = world.online(name), [images[:4] for images in world.images[: 2 if "joined" in name else 1]]
    logits, maps = model(*images)
    head, about = load_with(world.path(name))
    save_probe(tmp_path / "again", head, SPECS[name], about["n_patches"], {"block": about["block"]})
    again = load_probe(tmp_path / "again")
    features = model.features(*images)
    with torch.no_grad():
        assert torch.equal(again(features)[0], logits)
        if not SPECS[name].options:  # a second each
            exported = torch.export.export(again, (features,), strict=False).module()  # the default since torch 2.7
            torch.testing.assert_close(exported(features)[0], logits, rtol=1e-6, atol=1e-6)
    other = world.online(name)
    with torch.no_grad():
        for parameter in other.head.parameters():
            parameter.zero_()
    assert not torch.equal(other(*images)[0], logits)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(*images)[0], logits)
    assert maps is None or torch.equal(other(*images)[1], maps)
