"""`beyondcls predict`: what it prints, draws and refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from extract.datasets import open_images
from extract.datasets.gathering import walk
from extract.encoders import load_encoder
from extract.run import extract
from pipelines.live.online import online
from pipelines.predictions.classes import Classes, Classified
from pipelines.predictions.images import Prediction, find_images, legible, predictions
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from store import BeyondClsError
from tests.extract.datasets.deep import png16
from tests.extract.pictures import picture, samples, write_tar
from tests.pipelines.live.test_online import World

OWN = """
import beyondcls

class First(beyondcls.Aggregator):
    reads = ("patch",)
    def forward(self, features):
        return beyondcls.Pooled(features["patch"][:, 0], None)
"""
ENCODER = ("--encoder", "quickstart-random")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("world")
    write_tar(folder / "data/000.tar", samples(24))
    (folder / "data/classes.txt").write_text("cat\ndog\nowl\n")
    (folder / "own.py").write_text(OWN)
    data = open_images(str(folder / "data"))
    encoders = [load_encoder("quickstart-vit", model="quickstart-random", random_seed=seed) for seed in (0, 1)]
    sets = [extract(one, data, folder / f"{seed}", statistics=()) for seed, one in enumerate(encoders)]
    specs = {"abmilp": HeadSpec(), "cls": HeadSpec("cls"), "own": HeadSpec(f"{folder}/own.py:First")}
    specs["joined"] = HeadSpec("cls-attention", {"of": "joined"})
    recipe = Recipe(epochs=2, batch_size=12, base_lr=4.0, warmup_epochs=0)
    plans = {name: HeadPlan(spec, recipe, seeds=(0,)) for name, spec in specs.items()}
    probe(sets[0], sets[0], folder / "probes", plans, joined=(sets[1], sets[1]))
    (folder / "photos/more").mkdir(parents=True)
    for name, seed in (("b.png", 1), ("a.png", 0), ("more/c.png", 2)):
        (folder / "photos" / name).write_bytes(picture(seed, width=60))
    (folder / "photos/notes.txt").write_text("no image")
    return World(folder, *encoders)


@pytest.fixture
def predict(command, world):
    """Standard output of `beyondcls predict`, and what it says beside that, without line breaks."""

    def predict(*given, probe=None, encoder=ENCODER, fails=False) -> tuple[str, str]:
        """Of the photo a.png, if options are all that is given."""
        photo = [world.folder / "photos/a.png"] if not given or str(given[0]).startswith("--") else []
        status, out, err = command("predict", *photo, *given, "--probe", probe or world.probe("abmilp"), *encoder)
        assert status == int(fails), err
        return out, " ".join(err.split())

    return predict


def test_prints_classes_with_their_probabilities(predict, world):
    out, _ = predict(world.folder / "photos", "--top", 2)
    lines = out.splitlines()
    files = [str(world.folder / "photos" / name) for name in ("a.png", "b.png", "more/c.png")]
    assert [line for line in lines if not line.startswith(" ")] == files
    model = online(load_encoder("quickstart-random"), world.probe("abmilp"))
    probabilities = model(*model.prepare(files))[0].softmax(-1)
    for i in range(3):
        order = probabilities[i].argsort(descending=True)[:2].tolist()
        expected = [f"  {100 * probabilities[i, k]:5.1f} %  {('cat', 'dog', 'owl')[k]}" for k in order]
        assert lines[3 * i + 1 : 3 * i + 3] == expected
    out, _ = predict(world.folder / "photos/*.png", "--json", "--batch-size", 1)
    entries = [json.loads(line) for line in out.splitlines()]  # and nothing else is on standard output
    assert [entry["image"] for entry in entries] == files[:2]
    for entry, expected in zip(entries, probabilities, strict=False):
        found = {one["label"]: one["probability"] for one in entry["classes"]}
        assert list(found) == expected.argsort(descending=True).tolist()
        assert [found[k] for k in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)
    out, _ = predict(world.folder / "photos/a.png", "--top", 1, probe=world.probe("abmilp", classes=None))
    assert out.splitlines()[1].split("  ")[-1] == f"class {probabilities[0].argmax()}"


def test_several_labels_an_image(predict, world):
    many = world.probe("abmilp", multilabel=True)
    model = online(load_encoder("quickstart-random"), many)
    assert model.multilabel
    expected = model(*model.prepare(world.folder / "photos/a.png"))[0][0].sigmoid()
    threshold = float(expected.sort().values[:2].mean())
    out, _ = predict("--json", "--threshold", threshold, probe=many)
    found = {entry["label"]: entry for entry in json.loads(out)["classes"]}
    np.testing.assert_allclose([found[k]["probability"] for k in range(3)], expected, atol=1e-6)
    assert [found[k]["yes"] for k in range(3)] == (expected >= threshold).tolist()
    out, _ = predict("--threshold", threshold, probe=many)
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["yes", "yes", "no"]


def test_overlays_show_the_crop_and_where_the_head_looks(predict, world, tmp_path):
    out, _ = predict(world.folder / "photos", "--overlays", tmp_path / "look", "--json")
    names = [f"{i}-{stem}-{what}.png" for i, stem in enumerate("abc") for what in ("crop", "overlay")]
    assert sorted(p.name for p in (tmp_path / "look").iterdir()) == names
    entry = json.loads(out.splitlines()[1])
    crop, over = (Image.open(entry[what]) for what in ("crop", "overlay"))
    assert crop.size == over.size == (224, 224)
    # The crop is what the encoder sees, only finer.
    model = online(load_encoder("quickstart-random"), world.probe("abmilp"))
    (seen,) = model.prepare(world.folder / "photos/b.png")
    config = model.encoder.config
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    small = torch.from_numpy(np.array(crop.resize((32, 32), Image.Resampling.BOX))).permute(2, 0, 1) / 255
    assert (small - (seen[0] * std + mean)).abs().mean() < 0.02
    # It is brightest where the weight is highest.
    weights = model(seen)[1][0]
    change = np.asarray(over).astype(float).sum(-1).reshape(8, 28, 8, 28).mean((1, 3))
    row, column = divmod(int(weights.argmax()), 8)
    assert change[row, column] > np.median(change)
    predict("--overlays", tmp_path / "crops", probe=world.probe("cls"))
    assert [p.name for p in (tmp_path / "crops").iterdir()] == ["0-a-crop.png"], "without weights over patches"


def test_a_second_encoder(predict, world, tmp_path):
    params = tmp_path / "params.yaml"
    entries = (f"{name}: {{model: quickstart-random, random_seed: {seed}}}" for seed, name in enumerate(("one", "two")))
    params.write_text(f"encoders: {{{', '.join(entries)}}}\n")
    joined = world.probe("joined")
    named = ("--encoder", "one", "--joined-encoder", "two")
    by_hand = ("--joined-encoder", "x", "--joined-model", "quickstart-random", "--joined-random-seed", 1)
    assert predict("--params", params, probe=joined, encoder=named)[0] == predict(*by_hand, probe=joined)[0]
    assert "reads 'joined/attention/cls', of a second encoder" in predict(probe=joined, fails=True)[1]
    assert "without --joined-encoder NAME" in predict("--joined-random-seed", 1, probe=joined, fails=True)[1]


def test_an_aggregator_of_the_user(predict, world):
    own = {"probe": world.probe("own")}
    assert predict("--own", f"{world.folder}/own.py:First", **own)[0].count(" % ") == 3
    assert "if you trust that file, name it" in predict(fails=True, **own)[1]


def test_a_damaged_image_is_named_or_recorded(predict, world, tmp_path):
    photos = Path(shutil.copytree(world.folder / "photos", tmp_path / "photos"))
    (photos / "b.png").write_bytes(picture(1)[:80])
    out, err = predict(photos, fails=True)
    assert "'b.png' in" in err
    assert "c.png" not in out
    options = ("--on-error", "record", "--overlays", tmp_path / "look")
    out, err = predict(photos, *options, "--json")
    entries = {Path(entry["image"]).name: entry for entry in map(json.loads, out.splitlines())}
    assert list(entries) == ["a.png", "b.png", "c.png"]
    assert "cannot be decoded" in entries["b.png"]["error"]
    assert "1 of 3 images were not shown to the probe" in err
    whole = json.loads(predict(photos / "more", "--json")[0])
    assert whole["classes"] == entries["c.png"]["classes"]  # those behind it are not mixed up
    assert "none of the 1 images could be shown" in predict(photos / "b.png", "--on-error", "record", fails=True)[1]


def test_logits_that_are_no_numbers(world):
    model = online(load_encoder("quickstart-random"), world.probe("abmilp"))
    torch.nn.init.constant_(model.head.classifier.bias, torch.nan)
    (result,) = predictions(Classes(model), [world.folder / "photos/a.png"])
    assert "a.png: the head gives NaN" in result.problem


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("PHOTO --crop-mode squash --mean 0,0,0", "(not 0.0,0.0,0.0), crop_mode center (not squash)"),
        ("PHOTO --encoder resized --params some.yaml", "sees input_size 32 (not 40)"),
        ("PHOTO --mean a,b,c", "--mean is 'a,b,c', expected numbers with commas"),
        ("gone.png", "no image 'gone.png', nor any that it matches as a pattern"),
        ("empty", "empty' has no images; expected .jpg"),
        ("emp*", "no images in what"),
        ("PHOTO --on-error skip", "--on-error is 'skip', expected raise or record"),
        ("PHOTO --params some.yaml", "unknown encoder 'quickstart-random'"),
    ],
)
def test_what_cannot_be(given, message, predict, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("")
    (tmp_path / "some.yaml").write_text("encoders: {resized: {model: quickstart-random, input_size: 40}}")
    words = given.replace("PHOTO", str(world.folder / "photos/a.png")).split()
    out, err = predict(*words, encoder=() if "--encoder" in words else ENCODER, fails=True)
    assert (out, message in err) == ("", True), err


def test_images_are_found_in_order_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x/b.png", "x/d.png", "x/a.jpg", "x/y/c.webp", "x/no.txt", "z.png", "odd[1].png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    monkeypatch.setattr("extract.datasets.gathering.walk", lambda folder: sorted(walk(folder), key=str, reverse=True))
    inside = ["x/a.jpg", "x/b.png", "x/d.png", "x/y/c.webp"]
    assert [str(f) for f in find_images(["z.png", "x", "x/*.png"])] == ["z.png", *inside]
    assert [str(f) for f in find_images(["odd[1].png"])] == ["odd[1].png"]  # a file that is there is no pattern
    assert [str(f) for f in find_images(["**/*.webp"])] == ["x/y/c.webp"]
    (tmp_path / "x/e.svg").write_bytes(b"")
    with pytest.raises(BeyondClsError, match="--allow-left-out"):
        find_images(["x"])
    notes: list[str] = []
    find_images(["x"], True, notes.append)
    assert "e.svg" in notes[0]


def test_pixels_are_scaled_and_turned_as_the_probe_records(predict, world, tmp_path):
    """Without an option: a picture of 16 bits is seen as that of 8 bits that it was made from."""
    grey = np.asarray(Image.open(world.folder / "photos/a.png").convert("L"))
    (tmp_path / "deep.png").write_bytes(png16(grey.astype(int) * 257))
    Image.fromarray(grey).save(tmp_path / "grey.png")
    recorded = json.loads(world.probe("abmilp").with_suffix(".json").read_text())["transform"]
    plain, _ = predict(tmp_path / "grey.png")
    assert "--scale" in predict(tmp_path / "deep.png", fails=True)[1]
    scaled = world.probe("abmilp", transform={**recorded, "scale": [0.0, 65535.0]})
    assert predict(tmp_path / "deep.png", probe=scaled)[0].splitlines()[1:] == plain.splitlines()[1:]
    assert "scale none" in predict(tmp_path / "deep.png", "--scale", "0,9", fails=True)[1]


def test_equal_probabilities_are_told_by_label_and_terminals_obey_no_name():
    assert Classified((0.25, 0.5, 0.25), "abc", top=3).ranked() == [(0.5, 1), (0.25, 0), (0.25, 2)]
    assert legible("a\x1b[31mb\n") == "a?[31mb\n"
    assert "\x1b" not in Prediction(Path("\x1b"), Classified((1.0,), ("\x1b",))).to_text()
