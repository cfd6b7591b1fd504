"""The command line on small real data: what it writes, and what it says beside that."""

import json
import os
import re
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from setuptools.config.setupcfg import read_configuration

from extract.datasets import open_images
from extract.encoders import ENCODERS
from pipelines import cli
from pipelines.store.table import size
from store import FeatureStore
from store.errors import BeyondClsWarning
from store.format.unfinished import RECORDS
from tests.extract.pictures import samples, write_pictures, write_tar
from tests.extract.tiny import TINY, tiny_encoder

ROOT = Path(__file__).resolve().parents[2]
TEST_TAR = ROOT / "quickstart/data/cifar10/test"


def run(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `beyondcls ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["beyondcls", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.run()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def images(tmp_path) -> Path:
    """Five images in one class folder."""
    return write_pictures(tmp_path / "images", *(f"a/{i}.png" for i in range(5)), form="png")


def test_the_extra_that_is_named_has_the_package():
    extras = read_configuration(ROOT / "setup.cfg")["options"]["extras_require"]
    listed = {extra: {Requirement(line).name for line in lines} for extra, lines in extras.items()}
    named = {"PIL": "pillow", "open_clip": "open_clip_torch", "cv2": "opencv-python-headless", "sklearn": "scikit-learn"}
    named["faster_coco_eval"] = "faster-coco-eval"
    for package, extra in cli.EXTRAS.items():
        assert named.get(package, package) in listed[extra], (package, extra)


def test_encoders_are_listed_with_size_tokens_licence_and_source(command):
    heading, row = (re.split("  +", line) for line in command("encoders", "capi-l14-p205")[1].splitlines())
    listed = dict(zip(heading, row, strict=True))
    assert [listed[name] for name in ("parameters", "tokens", "licence")] == ["302.7 M", "16 registers + 256", "Apache-2.0"]
    assert listed["weights"] == "https://dl.fbaipublicfiles.com/capi/capi_vitl14_p205.pth"
    last = command("encoders", "simmim-b16")[1].splitlines()[-1]
    assert "simmim-b16: read at block 8 of 0 to 11: the paper's 8-th block, counted from 0" in last
    last = command("encoders", "ft-b16")[1].splitlines()[-1]
    assert last.startswith("note: mae-ft-b16, simmim-ft-b16: fine-tuned through the average of its patch tokens")


def test_our_warnings_are_notes(monkeypatch, capsys):
    def app(**_):
        warnings.warn("what was assumed", BeyondClsWarning, stacklevel=1)
        warnings.warn("another", UserWarning, stacklevel=1)

    others = []
    monkeypatch.setattr(cli, "app", app)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: others.append(str(message))
        with pytest.raises(SystemExit):
            cli.run()
        warnings.warn("after it", BeyondClsWarning, stacklevel=1)
    assert capsys.readouterr() == ("", "note: what was assumed\n")
    assert others == ["another", "after it"]


def test_extraction_from_a_file_says_what_it_assumes_and_what_cls_holds(beyondcls, images, tmp_path):
    small, entry = {"depth": 1, "embed_dim": 24, "num_heads": 2}, ENCODERS["simmim-ft-b16"]
    torch.save({"model": entry.make(entry.model, **entry.arguments, **small).state_dict()}, tmp_path / "w.pth")
    params = tmp_path / "p.yaml"
    params.write_text(f"encoders: {{ft: {{model: simmim-ft-b16, checkpoint: {tmp_path}/w.pth, arguments: {small}}}}}\n")
    printed = beyondcls("extract", "--encoder", "ft", "--data", images, "--out", tmp_path / "f", "--params", params)
    assert f"note: ft: no name in {tmp_path}/w.pth shows how it was trained" in printed
    assert "note: ft: fine-tuned through the average of its patch tokens, not through [cls]" in printed
    assert FeatureStore.open(tmp_path / "f").attributes["cls_caution"] in printed


def test_what_is_chosen_of_a_checkpoint(beyondcls, images, tmp_path):
    """On the command line and in a parameter file; `plan` counts with the size of images that the file shows."""
    encoders = [tiny_encoder(seed) for seed in (0, 1)]
    extra = {"neck": torch.zeros(1), "norm_pre.weight": torch.zeros(1)}
    student, teacher = ({f"net.{name}": x for name, x in (e.model.state_dict() | extra).items()} for e in encoders)
    torch.save({"student": student, "teacher": teacher}, tmp_path / "w.pth")
    any_size = {name: value for name, value in TINY.items() if name != "img_size"}
    params, entry = tmp_path / "p.yaml", f"model: vit_tiny_patch16_224, checkpoint: {tmp_path}/w.pth, arguments: {any_size}"
    params.write_text(f"encoders: {{mine: {{{entry}, ignore: [neck, 'norm_pre.*']}}, bare: {{{entry}}}}}\n")
    common = ("--data", images, "--params", params)
    printed = beyondcls("extract", "--encoder", "mine", "--out", tmp_path / "f", *common)
    assert "--checkpoint-key student --checkpoint-prefix net." in printed, "is noted"
    chosen = ("--checkpoint-key", "student", "--checkpoint-prefix", "net", "--ignore", "neck,norm_pre.*")
    beyondcls("extract", "--encoder", "bare", "--out", tmp_path / "g", *common, *chosen)
    sets = [FeatureStore.open(tmp_path / name) for name in "gf"]
    assert [one.spec.weights for one in sets] == [encoder.weights for encoder in encoders]
    assert sets[0].spec.transform["input_size"] == [3, 32, 32]
    written = sum(f.stat().st_size for f in (tmp_path / "f/patch").rglob("c/*/*/*"))
    place = ("--out", tmp_path / "h", *common)
    assert f"patch {size(written)}," in beyondcls("plan", "--encoder", "mine", *place)
    assert "unexpected (2): neck, norm_pre.weight" in beyondcls("plan", "--encoder", "bare", *place, fails=True)


def test_register_neurons_are_found_and_used(beyondcls, images, tmp_path):
    params, neurons = tmp_path / "p.yaml", tmp_path / "n.json"
    params.write_text(f"encoders: {{quickstart-random: {{register_neurons: {neurons}}}}}\n")
    common = ("--encoder", "quickstart-random", "--data", images, "--params", params)
    found = ("registers", *common, "--out", neurons, "--highest-block", 1, "--norm", 0.1, "--n-neurons", 4, "--n-images", 2)
    assert "n.json: 4 neurons of quickstart-random in blocks" in beyondcls(*found), "what params.yaml names need not be there"
    beyondcls("extract", *common, "--out", tmp_path / "f")
    beyondcls("extract", *common, "--out", tmp_path / "g", "--test-time-registers", 0)
    sets = [FeatureStore.open(tmp_path / name) for name in "fg"]
    by_block = json.loads(neurons.read_bytes())["register_neurons"]
    assert [json.loads(one.spec.architecture).get("register_neurons") for one in sets] == [by_block, None]
    assert ["registers" in one.kinds for one in sets] == [True, False]
    assert sets[0].array("registers/block5/view0").shape[:2] == (5, 1)


def test_tasks_share_an_extraction(beyondcls, images, tmp_path, monkeypatch):
    arguments = ("extract", "--encoder", "quickstart-random", "--data", images, "--out", tmp_path / "f", "--views", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "f: 5 images" in beyondcls(*arguments, "--amp", "none", "--channels-last")
    assert "task_id is 2, expected 0 to 1 (n_tasks is 2)" in beyondcls(*arguments, "--task-id", "2", fails=True)


def test_a_signal_stops_an_extraction_after_a_whole_shard(command, tmp_path, monkeypatch):
    def signalled(source, **options):
        os.kill(os.getpid(), signal.SIGUSR1)
        return open_images(source, **options)

    data = write_tar(tmp_path / "0.tar", samples(40))
    monkeypatch.setattr("extract.datasets.open_images", signalled)
    arguments = ("--encoder", "quickstart-random", "--data", data, "--out", tmp_path / "f", "--shard-rows", 32)
    status, _, err = command("extract", *arguments)
    assert status == 75
    assert "f: stopped after a whole shard (SIGUSR1); the same command goes on" in " ".join(err.split())
    assert len(list((tmp_path / ".staging").glob(f"f-*/{RECORDS}/*"))) == 1
