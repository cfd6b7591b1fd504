"""Loading encoders: by name, from checkpoints sound and unsound, at random."""

import io
import os
import pickle
import sys
import tarfile
import warnings
import zipfile
from argparse import Namespace
from dataclasses import replace
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform

from extract.encoders import ENCODERS, Pretrained, load_encoder
from extract.encoders.weights import read_checkpoint, weights_digest
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.tiny import TINY, need_cait, tiny_encoder
from tests.pickled import Payload

MODEL = "vit_tiny_patch16_224"


def state(**changes: Any) -> dict[str, torch.Tensor]:
    return tiny_encoder(1, **changes).model.state_dict()


@pytest.fixture
def load(tmp_path):
    """`mine` of a file with this content, and what was noted; the file is already there if there is no content."""

    def load(content=None, form=".pth", name="mine", **options):
        file = tmp_path / f"w{form}"
        if content is not None:
            (torch.save if form == ".pth" else safetensors.torch.save_file)(content, file)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", BeyondClsWarning)
            options = {"model": MODEL, "arguments": TINY, **options}
            encoder = load_encoder(name, checkpoint=file, **options)
        return encoder, [str(warning.message) for warning in caught if warning.category is BeyondClsWarning]

    return load


OF_THE_TRANSFORM = [
    ({"crop_mode": "centre"}, "unknown crop mode 'centre'; did you mean 'center'"),
    ({"std": (0.5, 0, 0.5)}, r"std is \(0\.5, 0, 0\.5\), expected numbers above 0: pixels are divided"),
    *(({"mean": mean}, "mean is .*, expected three numbers") for mean in ((0.5,), (0.5, float("nan"), 0.5), "0.5")),
    ({"mean": (123.7, 116.3, 103.5)}, "divide those of 0 to 255 by 255"),
    *(({"crop_pct": share}, f"crop_pct is {share}, expected a share above 0") for share in (87.5, 0)),
    ({"cut": "gpu"}, "cut"),
    ({"cut": "torch", "interpolation": "lanczos"}, "bicubic and bilinear"),
    ({"cut": "draft", "crop_mode": "slide"}, "windows"),
    ({"crop_pct": 0.9, "crop_mode": "slide"}, "crop_pct is 0.9, expected 1 with the crop mode slide"),
    ({"input_size": 44}, "input_size is 44, expected a multiple of the 8 pixels of a patch of tiny; give 40 or 48"),
    *(({"input_size": size}, r"input_size is .*, expected the side") for size in ("32", "32x48x3", (32, 0), True, 1.5)),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("quickstart-mea", {}, "unknown encoder 'quickstart-mea'; did you mean 'quickstart-mae'"),
        ("mine", {"model": "vit_tiny_patch61_224"}, "did you mean 'vit_tiny_patch16_224'"),
        ("mine", {"model": "resnet18", "random_seed": 0}, "mine is not a ViT: ResNet has no `blocks`"),
        ("mine", {"checkpoint": "x.pt", "random_seed": 3}, r"checkpoint \(x\.pt\) and a random seed \(3\); give one"),
        ("mine", {"model": MODEL, "random_seed": 0, "ignore": "x"}, "without a checkpoint"),
        ("mine", {"family": "join-embeding"}, "did you mean 'joint embedding'"),
        ("mine", {"model": "quickstart-mae", "random_seed": 1, "family": "labels"}, r"\(seed 1\), but its family is 'labels'"),
        ("mixer-b16", {"random_seed": 0, "input_size": 448}, "448, but mixer-b16 takes images of 224 x 224 pixels only"),
        ("mae-s16", {"checkpoint": "no/w.pth"}, r"there is no checkpoint 'no/w\.pth'"),
        *(("tiny", {"model": MODEL, "arguments": TINY, "random_seed": 0, **given}, says) for given, says in OF_THE_TRANSFORM),
    ],
)
def test_refused(name, options, message):
    with pytest.raises(BeyondClsError, match=message):
        load_encoder(name, **options)


def test_a_vit_whose_cls_joins_behind_the_blocks():
    """Position 0 in the blocks of CaiT is a patch; taking it for [cls] would be wrong without a word."""
    need_cait()
    with pytest.raises(BeyondClsError, match="tiny is not a plain ViT: block 1 has 16 tokens, the output 17"):
        tiny_encoder(model="cait_xxs24_224")(torch.randn(1, 3, 32, 32), [1])


class TestTransform:
    def test_a_checkpoint_of_ones_own_sees_what_imagenets_constants_say(self, load):
        """And not what timm says of weights that share the architecture, unless a tag says whose they are: 0.5, and 0.9."""
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
        encoder, (note,) = load(state())
        assert "assumed for the checkpoint of mine, as of ImageNet: mean 0.485," in note
        assert "give --mean --std" in note
        constants = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "crop_pct": 0.875, "interpolation": "bicubic"}
        seen = create_transform((3, 32, 32), is_training=False, **constants)(image)[None]
        vit = timm.create_model(MODEL, **TINY)
        vit.load_state_dict(state(), strict=False)
        (expected,) = vit.eval().forward_intermediates(seen, 1, norm=False, output_fmt="NLC", intermediates_only=True)
        given = encoder(encoder.transform(image)[None], [1]).patch[1]
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-5)
        tagged, _ = load(model=f"{MODEL}.augreg_in21k")
        assert tagged.described_transform["mean"] == [0.5, 0.5, 0.5]

    @pytest.mark.parametrize(
        ("more", "n_notes"), [({}, 1), ({"crop_pct": 1, "crop_mode": "squash", "interpolation": "bilinear"}, 0)]
    )
    def test_what_is_given_wins_and_the_rest_is_said(self, more, n_notes, load):
        given = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.5, 1], **more}
        encoder, notes = load(state(), **given)
        assert {name: encoder.described_transform[name] for name in given} == given
        assert len(notes) == n_notes
        assert not any(f"{name} " in note.split(";")[0] for name in given for note in notes)

    def test_another_size_of_images(self, load):
        """As the architecture made for that size, with positions between those that were learnt."""
        encoder, _ = load(state(), input_size=48)
        assert encoder.architecture == tiny_encoder(img_size=48).architecture
        assert [encoder.described_transform[name] for name in ("input_size", "crop_pct")] == [[3, 48, 48], 0.875]
        assert encoder(torch.zeros(1, 3, 48, 48), [1]).patch[1].shape == (1, 36, 32)
        same = load_encoder("tiny", model=MODEL, arguments=TINY, random_seed=1, input_size=32)
        assert (same.weights, same.architecture) == (tiny_encoder(1).weights, tiny_encoder(1).architecture)

    @pytest.mark.parametrize(
        ("name", "given", "says"),
        [
            ("vit_base_patch16_224.mae", {}, "give --encoder mae-b16 or --crop-pct 0.875"),
            ("vit_base_patch16_224.mae", {"crop_pct": 0.9}, ""),
            ("vit_small_patch14_dinov2.lvd142m", {}, "input_size 518 (not 224)"),
        ],
    )
    def test_timms_names_of_weights_that_the_registry_has(self, name, given, says, monkeypatch):
        """The hub's weights are not fetched for it."""
        make, shrunk = timm.create_model, {"embed_dim": 32, "depth": 1, "num_heads": 1}
        monkeypatch.setattr(timm, "create_model", lambda *a, pretrained, **options: make(*a, **{**options, **shrunk}))
        with warnings.catch_warnings(record=True) as caught:
            load_encoder(name, **given)
        assert [says in str(warning.message) for warning in caught] == [True] * bool(says)


def test_safetensors_in_float16(load):
    half = {k: v.half() for k, v in state().items()}
    (encoder, _), (again, _) = load(half, ".safetensors"), load(half, ".safetensors")
    loaded = encoder.model.state_dict()
    assert loaded.keys() == half.keys()
    assert all(v.dtype == torch.float32 and torch.equal(v, half[k].float()) for k, v in loaded.items())
    assert again.weights == encoder.weights
    assert not any(p.requires_grad for p in encoder.model.parameters())
    assert not encoder.model.training


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"depth": 1}, r"18 of the model's 30 tensors\. missing \(12\): blocks\.1\.attn\.proj\.bias, .*, …$"),
        ({"depth": 3}, r"30 of the model's 30 tensors\. unexpected \(12\): blocks\.2\.attn\.proj\.bias, .*, …\. It"),
        ({"img_size": 64}, r"29 of .* 30 .* shape \(1\): pos_embed \[1, 65, 32\] for \[1, 17, 32\].* img_size: 64 }$"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_of_another_architecture(of, message, load):
    with pytest.raises(BeyondClsError, match=r"w\.safetensors \(for vit_tiny_.*another architecture.*" + message):
        load(state(**of), ".safetensors")


class OfAnyKind:
    """Pickled as a number of numpy whose type is `object`, so that unpickling would run its code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.float64(1).__reduce__()[0], (np.dtype("O"), b"8 bytes.")


def torch_bytes(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def script_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("constants.pkl", "data.pkl", "version"):
            archive.writestr(f"w/{name}", b"3\n")
    return buffer.getvalue()


SOUND, TENSORS = torch_bytes(state()), safetensors.torch.save(state())
CUT = "is not a readable checkpoint: "


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        *((".safetensors", damaged, CUT) for damaged in (b"", TENSORS[:-100])),
        *((".pth", damaged, CUT) for damaged in (b"", SOUND[:-100])),
        (".pth", torch_bytes({**state(), "norm.bias": torch.full((32,), torch.inf)}), "NaN or Inf in norm.bias"),
        *((".pth", torch_bytes(empty), "no dictionary of tensors") for empty in ({"model": {}}, {"weight": 3})),
        (".pth", torch_bytes([1, 2]), "holds a list, expected a dictionary of tensors"),
        (".pth", torch_bytes({"lr": Fraction(1, 3)}), "more than tensors, a fractions.Fraction, and is not loaded"),
        (".pth", torch_bytes({"lr": OfAnyKind()}), "more than tensors, a numpy.dtype 'O8', and is not loaded"),
        (".pth", script_archive(), "a TorchScript archive, which holds code"),
        (".pth", tarfile.TarInfo("pickle").tobuf(), r"the \.tar format of old torch"),
        (".pth", b"<html>404</html>", "torch.save did not write it"),
    ],
    ids=lambda part: part[:30] if isinstance(part, str) else "",
)
def test_that_are_none(form, content, message, load, tmp_path):
    (tmp_path / f"w{form}").write_bytes(content)
    with pytest.raises(BeyondClsError, match=rf"w\{form}.*{message}"):
        load(form=form)


@pytest.mark.parametrize("save", [torch_bytes, lambda content: pickle.dumps(content, protocol=2)])
def test_code_in_a_checkpoint_is_not_run(save, tmp_path):
    (tmp_path / "w.pth").write_bytes(save({"model": state(), "payload": Payload(tmp_path / "ran")}))
    kind = f"{os.mkdir.__module__}.mkdir" if save is torch_bytes else "torch.storage._load_from_bytes"  # a plain one has both
    with pytest.raises(BeyondClsError, match=rf"w\.pth holds more than tensors, a {kind}, and is not loaded"):
        read_checkpoint(tmp_path / "w.pth")
    assert not (tmp_path / "ran").exists()
    torch.load(io.BytesIO(torch_bytes(Payload(tmp_path / "ran"))), weights_only=False)
    assert (tmp_path / "ran").exists(), "the payload works"


class TestWhatTrainingsLeave:
    @pytest.fixture
    def read(self, tmp_path):
        """What is read of a file whose pickle names a module otherwise than this machine does."""

        def read(content, here, there):
            pickled = torch_bytes(content, _use_new_zipfile_serialization=False)
            assert f"c{here}\n".encode() in pickled
            (tmp_path / "w.pth").write_bytes(pickled.replace(f"c{here}\n".encode(), f"c{there}\n".encode()))
            return read_checkpoint(tmp_path / "w.pth")

        return read

    @pytest.mark.parametrize("module", ["pathlib", "pathlib._local"], ids=["most Pythons", "3.13"])
    def test_folders(self, module, read, load):
        """submitit's scripts put paths into `args`; they come back as text."""
        left = Namespace(output_dir=PosixPath("/runs/%j"), here=PosixPath("."), init=PurePosixPath("a/b"))
        content = read({"model": state(), "args": left}, PosixPath.__module__, module)
        assert vars(content["args"]) == {"output_dir": "/runs/%j", "here": ".", "init": "a/b"}
        assert load()[0].weights == tiny_encoder(1).weights

    @pytest.mark.parametrize("module", ["numpy._core.multiarray", "numpy.core.multiarray"])
    def test_numbers(self, module, read):
        """Schedules are arrays, so learning rates are numbers of numpy, which older files name by another module."""
        written = {"optimizer": {"lr": np.float64(1e-4), "decay": np.float32(0.4)}, "teacher": {"x": torch.ones(3)}}
        content = read(written, "numpy._core.multiarray", module)
        assert content["optimizer"] == written["optimizer"]
        assert torch.equal(content["teacher"]["x"], torch.ones(3))

    def test_settings_of_yacs(self, tmp_path, monkeypatch):
        """SimMIM's training script saves its settings as they are; they are read without yacs and without running code."""

        class CfgNode(dict[str, Any]):
            def __init__(self, **values):
                super().__init__(values)
                self.__dict__["__immutable__"] = True

        yacs = ModuleType("yacs.config")
        CfgNode.__module__, CfgNode.__qualname__, yacs.CfgNode = "yacs.config", "CfgNode", CfgNode
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "yacs", ModuleType("yacs"))
            patch.setitem(sys.modules, "yacs.config", yacs)
            settings = CfgNode(MODEL=CfgNode(TYPE="vit", DROP=0.1, SIZES=[1, 2]), BASE=("",))
            torch.save({"model": {"x": torch.ones(3)}, "config": settings}, tmp_path / "w.pth")
        content = read_checkpoint(tmp_path / "w.pth")
        assert content["config"] == {"MODEL": {"TYPE": "vit", "DROP": 0.1, "SIZES": [1, 2]}, "BASE": ("",)}


class TestWhatIsAssumed:
    """A file whose names are those of any ViT is taken at the user's word, with a word on that."""

    @pytest.mark.parametrize(("beside", "n_notes"), [({}, 1), ({"decoder_embed.weight": torch.zeros(1)}, 0)])
    def test_of_a_local_file(self, beside, n_notes, load):
        _, notes = load({"model": {**state(), **beside}}, model="mae-s16")
        assert ["shows how it was trained, so its name is taken at its word" in note for note in notes] == [True] * n_notes

    def test_nothing_of_others(self, tmp_path):
        """Of a name of timm nothing is claimed; the published file is known; random weights were not trained."""
        safetensors.torch.save_file(state(), tmp_path / "w.safetensors")
        published = replace(ENCODERS["mae-s16"], weights=str(tmp_path / "w.safetensors"))
        assert published.load(arguments=TINY)[2].notes == published.load(random_seed=0, arguments=TINY)[2].notes == ()
        assert Pretrained(MODEL, "see timm", "MIT").load(tmp_path / "w.safetensors", arguments=TINY)[2].notes == ()
        assert published.load(tmp_path / "w.safetensors", arguments=TINY)[2].notes


class TestDigest:
    def test_one_that_is_not_meant(self, load):
        weights, drawn = tiny_encoder(0).weights, {"model": MODEL, "arguments": TINY}
        assert load_encoder("tiny", **drawn, random_seed=0, weights=weights).weights == weights
        for name, options in (("tiny", {**drawn, "random_seed": 1}), ("quickstart-random", {})):
            message = rf"the weights of {name} have digest \w+, expected {weights} \(a seed gives other last bits on the CPU of"
            with pytest.raises(BeyondClsError, match=message):
                load_encoder(name, **options, weights=weights)
        with pytest.raises(BeyondClsError, match=rf"expected {'0' * 32}; if the new weights are meant"):
            load(state(), weights="0" * 32)

    def test_every_value_counts_and_the_memory_layout_does_not(self):
        model = tiny_encoder().model
        digests = {before := weights_digest(model)}
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data = parameter.data.t().contiguous().t()
        assert weights_digest(model) == before
        for parameter in model.parameters():
            parameter.view(-1)[-1:].add_(1e-3) if parameter.is_contiguous() else parameter[-1, -1].add_(1e-3)
            digests.add(weights_digest(model))
        assert len(digests) == 1 + len(list(model.parameters()))


def test_a_seed_decides_and_the_global_random_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (tiny_encoder(seed).weights for seed in (3, 3, 4))
    assert one == same != other
    twin, same, other = (load_encoder("quickstart-random", random_seed=seed).weights for seed in (None, 0, 1))
    assert twin == same != other, "the untrained twin has a fixed seed"
    assert torch.equal(torch.get_rng_state(), before)


def test_a_hub_that_cannot_be_reached(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("cannot find the host\nlong explanation")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(BeyondClsError, match=rf"^.*'{MODEL}\.mae' from the hub \(cannot find the host\).*--checkpoint FILE$"):
        load_encoder(f"{MODEL}.mae")


def test_published_files_are_fetched_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    file = tmp_path / "checkpoint.pth"
    torch.save({"model": state()}, file)
    monkeypatch.setitem(ENCODERS, "mine", Pretrained(MODEL, file.as_uri(), "MIT", TINY))
    for _ in range(2):
        assert load_encoder("mine").weights == tiny_encoder(1).weights
        file.unlink(missing_ok=True)
    for weights, message in (
        (f"{file.as_uri()}x", "checkpoint.pthx cannot be fetched"),
        ("see https://x.org", "from https://x.org"),
    ):
        monkeypatch.setitem(ENCODERS, "mine", Pretrained(MODEL, weights, "MIT", TINY))
        with pytest.raises(BeyondClsError, match=f"{message} .*give --checkpoint FILE"):
            load_encoder("mine")
