"""Images in windows from `beyondcls extract --crop-mode slide` to `segment` and to label maps of pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import jaccard_score

from extract.encoders import load_encoder
from pipelines.live.online import online
from probe.result_files import read_result
from probe.segmentation.patch_head import load_patch_head
from store import open_store
from tests.extract.tiny import TINY

SIDE, STRIDE = 32, 21
WIDTHS = (32, 53, 70)  # one window, two, three
ENCODER = ("--encoder", "tiny", "--model", "vit_tiny_patch16_224", "--random-seed", 0, "--dtype", "float32")
ARGUMENTS = tuple(part for name, value in TINY.items() for part in ("--argument", f"{name}={value}"))


def draw(folder: Path, split: str, widths: tuple[int, ...]) -> None:
    """Noise whose brightness is that of one of three classes, of 8 x 8 pixels each."""
    generator = np.random.default_rng(len(split))
    for part in (split, f"{split}annot"):
        (folder / part).mkdir(parents=True)
    for i, width in enumerate(widths):
        labels = np.kron(generator.integers(0, 3, (4, -(-width // 8))), np.ones((8, 8), int))[:, :width]
        image = 100 * labels[..., None] + generator.integers(0, 50, (SIDE, width, 3))
        Image.fromarray(image.astype(np.uint8)).save(folder / split / f"{i:04}.png")
        labels[0] = 11  # void
        Image.fromarray(labels.astype(np.uint8)).save(folder / f"{split}annot" / f"{i:04}.png")


@pytest.fixture
def extract(beyondcls, tmp_path):
    def call(split: str, *given: object, fails: bool = False) -> str:
        options = ("--split", split, "--crop-mode", "slide", "--out", tmp_path / split)
        return beyondcls("extract", *ENCODER, *ARGUMENTS, "--data", tmp_path / "CamVid", *options, *given, fails=fails)

    return call


def test_from_images_to_label_maps(beyondcls, extract, tmp_path):
    for split, times in (("train", 8), ("test", 1)):
        draw(tmp_path / "CamVid", split, WIDTHS * times)
        extract(split, "--views", 3)
    store = open_store(tmp_path / "test")
    crops = [store.array(f"images/crop/view{view}").rows([2])[0].tolist() for view in range(3)]
    assert crops == [[0, 0, 32, 32], [21, 0, 53, 32], [38, 0, 70, 32]], "the last is flush"
    quick = ("--epochs", 20, "--base-lrs", "3", "--seeds", 0, "--cs", "1", "--ks", 1, "--metric", "cosine", "--save-maps", 3)
    out = tmp_path / "out"
    said = beyondcls("segment", "--features", tmp_path / "train", "--test", tmp_path / "test", "--out", out, *quick)
    assert "outside" not in said
    content = read_result(out / "metrics.json")
    assert content["protocols"]["linear"]["n_views"] == 3, "all windows are trained on"
    maps = {name: [out / "maps" / name / f"{i:04}.png" for i in range(3)] for name in ("truth", "linear", "logistic", "knn")}
    pixels = {name: [np.asarray(Image.open(file)).astype(int) for file in files] for name, files in maps.items()}
    truth = np.concatenate([one.ravel() for one in pixels["truth"]])
    for name in ("linear", "logistic", "knn"):
        predicted = np.concatenate([one.ravel() for one in pixels[name]])[truth != 255]
        miou = 100 * jaccard_score(truth[truth != 255], predicted, average="macro")
        assert content["protocols"][name]["miou_original"]["mean"] == pytest.approx(miou)
    encoder = load_encoder("tiny", model="vit_tiny_patch16_224", arguments=TINY, random_seed=0, crop_mode="slide")
    for name, mode in (("linear", "bilinear"), ("logistic", "nearest")):
        head, _ = load_patch_head(out / name / "seed0")
        pictures = [Image.open(tmp_path / f"CamVid/test/{i:04}.png") for i in range(3)]
        for picture, saved in zip(pictures, pixels[name], strict=True):
            total, count = torch.zeros(head.n_classes, SIDE, picture.width), torch.zeros(SIDE, picture.width)
            for left in sorted({min(i * STRIDE, picture.width - SIDE) for i in range(3)}):
                window = torch.from_numpy(np.array(picture)[:, left : left + SIDE]).movedim(-1, 0)[None]
                tokens = encoder(encoder.normalised(window), [encoder.block]).patch[encoder.block]
                logits = F.interpolate(head.of_tokens(tokens), size=(SIDE, SIDE), mode=mode)[0].detach()
                total += F.pad(logits, (left, picture.width - SIDE - left))
                count[:, left : left + SIDE] += 1
            assert ((total / count).argmax(0).numpy() == saved).mean() > 0.995, "but for logits that are nearly equal"
        live = online(encoder, out / name / "seed0").label_maps(pictures)
        assert min((a == b).mean() for a, b in zip(live, pixels[name], strict=True)) > 0.995


def test_an_image_that_is_too_long(extract, tmp_path):
    draw(tmp_path / "CamVid", "test", (40, 90))
    said = extract("test", "--views", 3, fails=True)
    assert "test/0001.png is 90 x 32 pixels, of which 4 windows show all, but views is 3; give --views 4, or" in said
    assert "or go on with --on-error record" in said
    record = ("--views", 3, "--on-error", "record")
    assert "1 of them invalid" in extract("test", *record)
    assert open_store(tmp_path / "test").valid.tolist() == [True, False]
    assert "can be read now" not in extract("test", *record)
    extract("test", "--views", 4, "--extend")
    store = open_store(tmp_path / "test")
    assert (store.valid.tolist(), store.spec.n_views) == ([True, True], 4)
    assert store.array("images/crop/view3").rows([0, 1]).tolist() == [[8, 0, 40, 32], [58, 0, 90, 32]]
