"""Fine-tuning the quickstart's MAE on labels, through [cls], on a handful of images."""

import json
import math
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

from extract.encoders import load_encoder
from extract.encoders.quickstart import ARCHITECTURE
from extract.encoders.weights import weights_digest
from quickstart import finetune
from quickstart.augment import mix
from quickstart.classifier import ClsClassifier
from quickstart.training import Run
from quickstart.vit import normalise, small_vit
from store import BeyondClsError

ENCODERS = Path(__file__).resolve().parents[2] / "quickstart/encoders"


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_targets_are_mixed_by_the_pixels_of_both_images() -> None:
    """Each image is of one value, so its mean says how much of it is left."""
    n = 32
    values, identity = torch.rand(n, generator=generator()), torch.eye(n)
    images, targets = mix(values[:, None, None, None].expand(n, 3, 8, 8), identity, generator())
    torch.testing.assert_close(images.mean((1, 2, 3)), targets @ values)
    torch.testing.assert_close(targets, targets * (identity + identity.roll(1, 0)))  # the image and the one before it
    n_values = [len(image.unique()) for image in images]
    boxes = sum(count == 2 for count in n_values)
    assert set(n_values) <= {1, 2}, "a box is as it was, a blend is even"
    assert n / 4 < boxes < 3 * n / 4
    still, unchanged = mix(images, identity, generator(), share=0)
    assert torch.equal(still, images)
    assert torch.equal(unchanged, identity)


def test_the_classifier_sees_cls_after_the_norm_and_starts_at_chance(one_block: None) -> None:
    model, images, labels = ClsClassifier(small_vit(0), 10), torch.rand(4, 3, 32, 32), torch.arange(4)
    cls = model.encoder.forward_features(normalise(images))[:, 0]
    torch.testing.assert_close(model.logits(images), model.classifier(cls))
    assert model.loss(images, labels, generator(), 0).item() == pytest.approx(math.log(10), rel=1e-3)
    model.classifier.weight.data.normal_()
    model.loss(images, labels, generator(), 0).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_drop_path_draws_from_the_generator_of_the_run(one_block: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows torch's own generator alone."""
    model, drawn = ClsClassifier(small_vit(0), 10), list[float]()

    def logits(images: Tensor, positions: Tensor) -> Tensor:
        drawn.append(torch.rand(1).item())
        return torch.zeros(len(images), 10)

    monkeypatch.setattr(model, "logits", logits)
    for run in (generator(), generator()):
        for _ in range(2):
            model.loss(torch.rand(4, 3, 32, 32), torch.arange(4), run, 0)
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_accuracy_of_the_classifier_is_of_images_as_they_are(one_block: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ClsClassifier(small_vit(0, drop_path=0.5), 3)

    def by_first_pixel(images: Tensor) -> Tensor:
        assert not model.training
        return torch.nn.functional.one_hot((images[:, 0, 0, 0] * 255).round().long(), 3).float()

    monkeypatch.setattr(model, "logits", by_first_pixel)
    images = torch.tensor([0, 1, 2, 2], dtype=torch.uint8)[:, None, None, None].expand(4, 3, 32, 32)
    assert model.top1(images, torch.tensor([0, 1, 1, 2]), batch=3) == 75
    assert model.training


def test_layers_learn_more_slowly_towards_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURE, "depth", 2)
    model = ClsClassifier(small_vit(0), 10)
    settings = {
        id(parameter): (group["lr_scale"], group["weight_decay"])
        for group in model.groups(weight_decay=0.05, layer_decay=0.5)
        for parameter in group["params"]
    }
    by_name = {name.removeprefix("encoder."): settings.pop(id(p)) for name, p in model.named_parameters()}
    assert not settings
    expected = {"patch_embed.proj.weight": (0.125, 0.05), "pos_embed": (0.125, 0), "cls_token": (0.125, 0)}
    expected |= {"blocks.0.attn.qkv.weight": (0.25, 0.05), "blocks.1.mlp.fc2.bias": (0.5, 0)}
    expected |= {"norm.weight": (1, 0), "classifier.weight": (1, 0.05)}
    assert expected.items() <= by_name.items()


def tune(cifar: Path, out: Path, parent: Path, *options: str) -> dict[str, Tensor]:
    """The command, in this process; options that are given again count last. Returns the tensors that it wrote."""
    few = ["--epochs", "1", "--batch", "20", "--warmup", "0.1", "--drop-path", "0.5", "--threads", "1", "--device", "cpu"]
    application = typer.Typer()
    application.command()(finetune.main)
    application([str(cifar), "--out", str(out), "--parent", str(parent), *few, *options], standalone_mode=False)
    return load_file(out / f"{parent.stem}-ft.safetensors")


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of two blocks with a card: drop path leaves out the second one at times."""
    monkeypatch.setitem(ARCHITECTURE, "depth", 2)
    file = tmp_path / "mae.safetensors"
    save_file({name: value.half() for name, value in small_vit(3).state_dict().items()}, file)
    file.with_suffix(".json").write_text(json.dumps({"accuracy": {"mae": {"linear": {"cls": 12.5, "average": 25}}}}))
    return file


def test_what_a_run_writes(cifar: Path, tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = lambda encoders, *_: {name: {"linear": {"cls": 50.0, "average": 0.0}} for name in encoders}  # noqa: E731
    monkeypatch.setattr(finetune, "accuracies", measured)  # which take longer here than the run
    state = tune(cifar, tmp_path, parent, "--note", "By day.")
    assert state.keys() == {*small_vit(0).state_dict(), "head.weight", "head.bias"}
    assert {value.dtype for value in state.values()} == {torch.float16}
    facts, before = json.loads((tmp_path / "mae-ft.json").read_text()), small_vit(0)
    before.load_state_dict(load_file(parent))
    assert facts["recipe"]["parent"] == weights_digest(before)
    assert [*facts["accuracy"]] == ["mae-ft", "mae"]
    assert facts["parameters"] == sum(p.numel() for p in before.parameters())
    assert facts["classifier"].keys() == {"test", "train"}
    text = (tmp_path / "mae-ft.md").read_text()
    command = "finetune CIFAR10.npz --epochs 1 --batch 20 --base-lr 0.001 --layer-decay 0.75"
    for words in (facts["weights"], facts["recipe"]["parent"], "By day.", "| mae | 12.5 | 25.0 |", command):
        assert words in text


def test_rates_follow_the_layers(cifar: Path, tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a decay of 0, the final norm and the classifier learn alone. Refused are a larger batch and another parent."""
    monkeypatch.setattr(finetune, "accuracies", lambda *arguments: {})
    tuned, before = tune(cifar, tmp_path / "out", parent, "--layer-decay", "0"), load_file(parent)
    assert {name for name in before if not torch.equal(tuned[name], before[name])} == {"norm.weight", "norm.bias"}
    assert tuned["head.weight"].abs().max() > 1e-3
    with pytest.raises(BeyondClsError, match="--batch is 81, expected at most 80"):
        tune(cifar, tmp_path / "out", parent, "--batch", "81")
    save_file({name: value.half() for name, value in small_vit(4).state_dict().items()}, parent)
    with pytest.raises(BeyondClsError, match=r"left by a run with parent \w+, this one has parent \w+"):
        tune(cifar, tmp_path / "out", parent, "--layer-decay", "0")
    parent.with_suffix(".json").unlink()
    with pytest.raises(BeyondClsError, match=r"mae\.json is missing"):
        tune(cifar, tmp_path / "out", parent)


def test_labels_follow_their_images_into_a_batch() -> None:
    """Each image is as bright as its label says, in whatever order they come."""

    class Records(torch.nn.Linear):
        def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator, progress: float) -> Tensor:
            assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)
            seen.extend(labels.tolist())
            return self.weight.sum()

        def after_step(self, progress: float) -> None: ...

    seen: list[int] = []
    recipe = {"epochs": [1], "batch": 4, "base_lr": 0.1, "weight_decay": 0, "warmup": 0.1, "seed": 0}
    labels = torch.arange(12)
    run = Run(Records(1, 1), recipe)  # type: ignore[arg-type]
    run.epoch(labels.byte()[:, None, None, None].expand(12, 3, 2, 2), labels)
    assert sorted(seen) == labels.tolist() != seen


def test_files_before_and_after_fine_tuning_are_not_taken_for_each_other() -> None:
    with pytest.raises(BeyondClsError, match=r"no `head\.weight`: .* before fine-tuning; load it as quickstart-mae"):
        load_encoder("quickstart-mae-ft", checkpoint=ENCODERS / "mae.safetensors")
    with pytest.raises(BeyondClsError, match=r"it has a classifier \(head\.bias, head\.weight\)"):
        load_encoder("quickstart-mae", checkpoint=ENCODERS / "mae-ft.safetensors")
    after, before = (json.loads((ENCODERS / f"{name}.json").read_text()) for name in ("mae-ft", "mae"))
    assert after["recipe"]["parent"] == before["weights"], "the parent is the MAE that is here"
