"""Cutting the data and pretraining the encoders of the quickstart, on a handful of images."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from extract.encoders.quickstart import CIFAR10
from pipelines.quickstart import cut, pretrain
from pipelines.quickstart.augment import colour_jitter, random_resized_crop
from pipelines.quickstart.dino import DINO, sinkhorn
from pipelines.quickstart.mae import MAE
from pipelines.quickstart.vit import encode, random_tokens, small_vit


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """An .npz of CIFAR-10's form: noise with a class in its brightness."""
    random = np.random.default_rng(0)
    y, yt = np.arange(160) % 10, np.arange(40) % 10

    def images(labels):
        noise = random.integers(0, 60, (len(labels), 32, 32, 3))
        return (noise + 18 * labels[:, None, None, None]).astype(np.uint8)

    path = tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    np.savez(path, x=images(y), y=y, xt=images(yt), yt=yt)
    return path


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


def test_sinkhorn_balances():
    q = sinkhorn(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), iterations=50)
    torch.testing.assert_close(q.sum(1), torch.ones(64))
    torch.testing.assert_close(q.sum(0), torch.full((8,), 8.0), atol=1e-2, rtol=0)
    torch.testing.assert_close(sinkhorn(torch.zeros(4, 2)), torch.full((4, 2), 0.5))


def test_dino_starts_near_chance_and_moves_only_the_student(generator):
    model = DINO(small_vit(0), n_prototypes=16, student_tokens=8, teacher_tokens=8)
    loss = model.loss(torch.rand(8, 3, 32, 32), generator, 0)
    assert loss.item() == pytest.approx(math.log(16), rel=0.3)
    loss.backward()
    assert all(p.grad is None for p in model.teacher.parameters())
    assert model.student["vit"].cls_token.grad is not None


def test_dino_teacher_is_the_moving_average():
    model = DINO(small_vit(0), n_prototypes=16, teacher_momentum=0.9)
    with torch.no_grad():
        model.student["vit"].cls_token.add_(1)
    before = model.teacher["vit"].cls_token.clone()
    model.after_step(0)
    torch.testing.assert_close(model.teacher["vit"].cls_token, before + 0.1)
    model.after_step(1)  # at the end of the run it stands still
    torch.testing.assert_close(model.teacher["vit"].cls_token, before + 0.1)


@pytest.mark.parametrize("objective", ["mae", "dino"])
def test_a_stopped_run_goes_on_to_the_same_weights(objective, cifar, tmp_path, monkeypatch):
    options = {"epochs": 2, "batch": 40, "threads": 1, "device": "cpu", "student_tokens": 8, "teacher_tokens": 8}

    def train(out):
        pretrain.main(
            objective, cifar, out=out, base_lr=1e-3, weight_decay=0.05, warmup=0.1, seed=0, note="", checkpoint=None, **options
        )

    train(tmp_path / "whole")
    real, calls = pretrain.OBJECTIVES[objective].loss, []

    def stops(self, *arguments):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(pretrain.OBJECTIVES[objective], "loss", stops)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped")
    train(tmp_path / "stopped")
    whole, stopped = (load_file(tmp_path / n / f"{objective}.safetensors") for n in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[k], stopped[k]) for k in whole)
    assert {v.dtype for v in whole.values()} == {torch.float16}
    facts = json.loads((tmp_path / "whole" / f"{objective}.json").read_text())
    assert [c["epoch"] for c in facts["curve"]] == [1, 2]
    assert set(facts["knn"]) == {objective, "random twin"}
    assert "k-NN accuracy" in (tmp_path / "whole" / f"{objective}.md").read_text()


def test_cut_is_balanced_and_reproducible(cifar, tmp_path):
    for out in ("a", "b"):
        cut.main(cifar, out=tmp_path / out, train=4, test=2, per_tar=25, seed=0)
    files = sorted(p.relative_to(tmp_path / "a").as_posix() for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert files == ["test/000.tar", "test/classes.txt", "train/000.tar", "train/001.tar", "train/classes.txt"]
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    from extract.datasets import open_images

    images = open_images(str(tmp_path / "a/train"))
    assert np.bincount([s.label for s in images.samples]).tolist() == [4] * 10
    with np.load(cifar) as data:
        number = int(images.samples[0].id.rsplit("-", 1)[1])
        assert np.array_equal(np.asarray(images.image(0)), data["x"][number])


def test_learning_rate_by_hand():
    assert pretrain.learning_rate(0.025, 1.0, epochs=1, warmup=0.05) == pytest.approx(0.5)
    assert pretrain.learning_rate(0.05, 1.0, epochs=1, warmup=0.05) == pytest.approx(1)
    assert pretrain.learning_rate(1, 1.0, epochs=1, warmup=0.05) == pytest.approx(0)
