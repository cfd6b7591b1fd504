"""Cutting the data and pretraining the encoders of the quickstart, on a handful of images."""

import hashlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image
from safetensors.torch import load_file

from extract.datasets import open_images
from extract.encoders import load_encoder
from extract.encoders.quickstart import ARCHITECTURE, CIFAR10
from quickstart import corrupt, cut, pretrain, training
from quickstart.accuracy import PROTOCOLS, accuracy, pooled
from quickstart.augment import colour_jitter, random_resized_crop
from quickstart.card import card
from quickstart.mae import MAE
from quickstart.mocov3 import MoCoV3
from quickstart.vit import encode, normalise, random_tokens, small_vit
from store import BeyondClsError
from tests.folders import files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_full_crop_is_the_image_or_its_mirror(generator):
    images = torch.rand(16, 3, 8, 8)
    crops = random_resized_crop(images, generator, 8, scale=(1, 1), ratio=(1, 1))
    same = (crops - images).abs().amax((1, 2, 3)) < 1e-5
    mirrored = (crops - images.flip(-1)).abs().amax((1, 2, 3)) < 1e-5
    assert (same | mirrored).all()
    assert same.any()
    assert mirrored.any()


def test_augmentation_is_fixed_by_the_seed_and_stays_in_range():
    images = torch.rand(8, 3, 16, 16)

    def run():
        g = torch.Generator().manual_seed(5)
        return colour_jitter(random_resized_crop(images, g, 16), g)

    assert torch.equal(run(), run())
    assert run().min() >= 0
    assert run().max() <= 1


def test_dropped_tokens_are_the_encoder_on_the_rest(generator):
    vit = small_vit(0).eval()
    images = torch.rand(2, 3, 32, 32)
    everything = torch.arange(64).expand(2, -1)
    torch.testing.assert_close(encode(vit, images, everything), encode(vit, images))
    torch.testing.assert_close(encode(vit, images), vit.forward_features(images))
    kept = random_tokens(5, 64, 16, generator)
    assert all(len(set(row.tolist())) == 16 for row in kept)


def test_mae_target_is_each_patch_standardised():
    targets = MAE(small_vit(0)).targets(torch.rand(2, 3, 32, 32))
    assert targets.shape == (2, 64, 48)
    torch.testing.assert_close(targets.mean(-1), torch.zeros(2, 64), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.var(-1), torch.ones(2, 64), atol=1e-3, rtol=0)


def test_mae_patches_are_in_the_order_of_the_encoder():
    image = torch.zeros(1, 3, 32, 32)
    image[:, :, 4:8, 8:12] = torch.rand(3, 4, 4)  # patch in row 1, column 2
    assert MAE(small_vit(0)).targets(image)[0].abs().sum(-1).nonzero().tolist() == [[8 + 2]]


def test_a_perfect_decoder_has_no_mae_loss(generator):
    model = MAE(small_vit(0))
    # Patches of one value after normalisation have zero as their target.
    flat = (torch.tensor(CIFAR10["mean"]) + 0.1 * torch.tensor(CIFAR10["std"]))[None, :, None, None].expand(4, 3, 32, 32)
    for p in model.predict.parameters():
        torch.nn.init.zeros_(p)
    assert model.loss(flat, generator, 0).item() == pytest.approx(0, abs=1e-6)


def test_mocov3_starts_at_chance_and_leaves_keys_and_patch_embedding_alone(generator):
    model = MoCoV3(small_vit(0), query_tokens=8, key_tokens=8, hidden=64)
    loss = model.loss(torch.rand(32, 3, 32, 32), generator, 0)
    assert loss.item() == pytest.approx(4 * 0.2 * math.log(32), rel=0.4)
    loss.backward()
    assert all(p.grad is None for p in model.key.parameters())
    assert all(p.grad is None for p in model.encoder.patch_embed.parameters())
    assert all(p.grad is not None for n, p in model.encoder.named_parameters() if not n.startswith("patch_embed"))
    assert all(p.grad is not None for p in model.prediction.parameters())


def test_mocov3_finds_the_own_key():
    model = MoCoV3(small_vit(0), hidden=8, temperature=0.5)
    queries = torch.eye(4)
    expected = -2 * 0.5 * math.log(math.exp(2) / (math.exp(2) + 3))
    assert model.contrast(3 * queries, 5 * queries).item() == pytest.approx(expected)


def test_mocov3_contrasts_each_query_with_keys_of_the_other_crop(generator, monkeypatch):
    model = MoCoV3(small_vit(0), query_tokens=None, key_tokens=None, hidden=8)
    crops, pairs, real = [], [], model.project

    def project(branch, images, kept, generator):
        if branch is model.key:
            crops.append(images)
        return real(branch, images, kept, generator)

    monkeypatch.setattr(model, "project", project)
    monkeypatch.setattr(model, "prediction", torch.nn.Identity())
    monkeypatch.setattr(model, "contrast", lambda q, k: pairs.append((q, k)) or q.sum())
    model.loss(torch.rand(8, 3, 32, 32), generator, 0)
    for (queries, keys), query_crop, key_crop in zip(pairs, crops, crops[::-1], strict=True):
        torch.testing.assert_close(queries, real(model.query, query_crop, None, generator), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(keys, real(model.key, key_crop, None, generator), atol=1e-4, rtol=1e-3)


def test_mocov3_keys_come_from_the_moving_average():
    model = MoCoV3(small_vit(0), momentum=0.9, hidden=8)
    with torch.no_grad():
        model.encoder.cls_token.add_(1)
    before = model.key["vit"].cls_token.clone()
    model.after_step(0)
    torch.testing.assert_close(model.key["vit"].cls_token, before + 0.1)
    model.after_step(1)  # at the end of the run it stands still
    torch.testing.assert_close(model.key["vit"].cls_token, before + 0.1)


def train(objective: str, cifar: Path, out: Path, *options: str, epochs: tuple[int, ...] = (2,)) -> None:
    """The command, in this process; options that are given again count last."""
    cycles = [word for n in epochs for word in ("--epochs", str(n))]
    few = ["--batch", "40", "--warmup", "0.1", "--query-tokens", "8", "--key-tokens", "8", "--follow", "2"]
    arguments = [objective, str(cifar), "--out", str(out), *cycles, *few, "--threads", "1", "--device", "cpu", *options]
    application = typer.Typer()
    application.command()(pretrain.main)
    typer.main.get_command(application).main(arguments, standalone_mode=False)


@pytest.mark.parametrize("objective", ["mae", "mocov3"])
def test_a_run_that_is_trained_further_and_stopped_ends_with_the_weights_of_one_that_is_not(
    objective, cifar, tmp_path, monkeypatch, one_block
):
    monkeypatch.setattr(pretrain, "accuracies", lambda *arguments: {})  # which take longer here than the run
    train(objective, cifar, tmp_path / "whole", epochs=(1, 2))
    train(objective, cifar, tmp_path / "stopped", epochs=(1,))
    real, calls = pretrain.OBJECTIVES[objective].loss, []

    def stops(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise ConnectionAbortedError
        return real(self, *arguments)

    monkeypatch.setattr(pretrain.OBJECTIVES[objective], "loss", stops)
    with pytest.raises(ConnectionAbortedError):
        train(objective, cifar, tmp_path / "stopped", epochs=(1, 2))
    train(objective, cifar, tmp_path / "stopped", epochs=(1, 2))
    whole, stopped = (load_file(tmp_path / name / f"{objective}.safetensors") for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    facts = json.loads((tmp_path / f"stopped/{objective}.json").read_text())
    assert [c["epoch"] for c in facts["curve"]] == [1, 2, 3]
    assert ("momentum" in facts["recipe"]) == (objective == "mocov3")
    text = (tmp_path / f"stopped/{objective}.md").read_text()
    assert "half a cosine of 1 epochs, then another of 2" in text
    assert f"pretrain {objective} CIFAR10.npz --epochs 1 --epochs 2 --batch 40 --base-lr 0.001" in text


@pytest.fixture(scope="module")
def written(cifar, tmp_path_factory) -> Path:
    """What a run writes, accuracies too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURE, "depth", 1)
        train("mae", cifar, out := tmp_path_factory.mktemp("written"), "--note", "By night.")
    return out


def test_what_a_run_writes(written):
    assert {value.dtype for value in load_file(written / "mae.safetensors").values()} == {torch.float16}
    facts = json.loads((written / "mae.json").read_text())
    assert [("knn" in c, c["epoch"]) for c in facts["curve"]] == [(False, 1), (True, 2)]
    assert set(facts["accuracy"]) == {"mae", "random twin"}
    assert all(found[protocol].keys() == {"cls", "average"} for found in facts["accuracy"].values() for protocol in PROTOCOLS)
    text = (written / "mae.md").read_text()
    for words in (facts["weights"], "By night.", f"| {facts['accuracy']['random twin']['linear']['cls']:.1f} |"):
        assert words in text


def test_a_checkpoint_of_another_recipe_is_refused(written, cifar, one_block):
    with pytest.raises(BeyondClsError, match=r"base_lr 0\.001, this one has base_lr 0\.1"):
        train("mae", cifar, written, "--base-lr", "0.1")
    with pytest.raises(BeyondClsError, match=r"epochs \[2\], this one has epochs \[1\]"):
        train("mae", cifar, written, epochs=(1,))


def test_cycle_progress_by_hand():
    assert training.cycle_progress(1, [4]) == 0.25
    assert [training.cycle_progress(epoch, [4, 2]) for epoch in (0, 3, 4, 5)] == [0, 0.75, 0, 0.5]
    assert training.cycle_progress(6.5, [4, 2, 1]) == 0.5


def test_cut_is_balanced_and_reproducible(cifar, tmp_path):
    for out in ("a", "b"):
        cut.main(cifar, out=tmp_path / out, train=4, test=2, per_tar=25, seed=0)
    made = files(tmp_path / "a")
    assert list(made) == ["test/000.tar", "test/classes.txt", "train/000.tar", "train/001.tar", "train/classes.txt"]
    assert made == files(tmp_path / "b")
    images = open_images(str(tmp_path / "a/train"))
    assert np.bincount([s.label for s in images.samples]).tolist() == [4] * 10
    with np.load(cifar) as data:
        number = int(images.samples[0].id.rsplit("-", 1)[1])
        assert np.array_equal(np.asarray(images.image(0)), data["x"][number])


def test_corruptions_by_hand(cifar, tmp_path):
    cut.main(cifar, out=tmp_path, train=1, test=2, per_tar=25, seed=0)
    corrupt.main(tmp_path / "test", out=tmp_path, severity=[2, 5])
    clean = open_images(str(tmp_path / "test"))
    sets = {f"{name}-{s}": open_images(str(tmp_path / f"{name}-{s}")) for name in corrupt.CORRUPTIONS for s in (2, 5)}
    for one in sets.values():
        assert [(s.id, s.label) for s in one.samples] == [(s.id, s.label) for s in clean.samples]
        assert one.classes == clean.classes
    image = np.asarray(clean.image(3)).astype(float)
    mean = image.mean((0, 1))
    assert np.array_equal(np.asarray(sets["contrast-2"].image(3)), np.floor(mean + (image - mean) / 2))
    halves = np.asarray(sets["pixelate-5"].image(3))  # 20 of 32 pixels: the last is repeated, as is every third
    assert len(np.unique(halves.reshape(32, -1), axis=0)) <= 20 < len(np.unique(image.reshape(32, -1), axis=0))
    plain = np.array([np.asarray(clean.image(i)) for i in range(20)]).astype(float)
    inside = (plain > 100) & (plain < 150)
    for severity, std in ((2, 0.06), (5, 0.10)):
        noise = [np.asarray(sets[f"noise-{severity}"].image(i)) for i in range(20)] - plain
        assert np.std(noise[inside]) == pytest.approx(255 * std, rel=0.05)
    buffer = io.BytesIO()
    clean.image(3).save(buffer, "JPEG", quality=65)
    assert np.array_equal(np.asarray(sets["jpeg-2"].image(3)), np.asarray(Image.open(buffer)))


@pytest.mark.parametrize("objective", ["mae", "mae-ft", "mocov3", "random"])
def test_the_digest_of_a_card_is_that_of_its_weights(objective):
    facts = json.loads((ROOT / f"quickstart/encoders/{objective}.json").read_text())
    checkpoint = ROOT / f"quickstart/encoders/{objective}.safetensors"
    assert load_encoder(f"quickstart-{objective}", checkpoint=checkpoint).weights == facts["weights"]
    assert hashlib.sha256(checkpoint.read_bytes()).hexdigest() == facts["sha256"]
    text = (ROOT / f"quickstart/encoders/{objective}.md").read_text()
    assert text == card(objective, facts)
    about = yaml.safe_load(text.split("---\n")[1])  # what hubs index
    assert (about["license"], about.get("datasets", [])) == ("mit", [] if objective == "random" else ["cifar10"])


def test_what_cannot_be_trained_is_said(cifar, tmp_path, one_block):
    with pytest.raises(BeyondClsError, match="unknown objective 'dino'"):
        train("dino", cifar, tmp_path)
    with pytest.raises(BeyondClsError, match="--batch is 81, expected at most 80"):
        train("mae", cifar, tmp_path, "--batch", "81")
    with pytest.raises(BeyondClsError, match="in epoch 1, expected a finite number; lower --base-lr"):
        train("mae", cifar, tmp_path, "--base-lr", "1e30", "--batch", "20")


def test_accuracy_is_of_the_classes_that_the_vectors_tell(cifar):
    labels = np.arange(100) % 10
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels)).float()
    vectors = {"cls": torch.zeros(100, 10) + 1e-3 * torch.arange(100)[:, None], "average": one_hot}
    for protocol in PROTOCOLS:
        found = accuracy(vectors, labels, vectors, labels, protocol)
        assert found["average"] == 100
        assert found["cls"] < 30


def test_pooled_is_cls_and_the_average_patch_of_the_whole_image():
    vit = small_vit(0)
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    found = pooled(vit, images, batch=2)
    assert vit.training
    tokens = vit.eval().forward_features(normalise(images.float() / 255))
    torch.testing.assert_close(found["cls"], tokens[:, 0])
    torch.testing.assert_close(found["average"], tokens[:, 1:].mean(1))
