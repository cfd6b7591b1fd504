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
from pathlib import Path, PosixPath, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform

from extract.encoders import ENCODERS, Encoder, Pretrained, load_encoder
from extract.encoders.weights import read_checkpoint, weights_digest
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.tiny import TINY, need_cait, tiny_encoder
from tests.pickled import Payload

MODEL = "vit_tiny_patch16_224"


def from_checkpoint(path: Path, weights: str | None = None, **changes: Any) -> Encoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondClsWarning)
        return load_encoder("mine", checkpoint=path, model=MODEL, arguments={**TINY, **changes}, weights=weights)


def state(**changes: Any) -> dict[str, torch.Tensor]:
    return tiny_encoder(1, **changes).model.state_dict()


class OfAnyKind:
    """Pickled as a number of numpy whose type is `object`, so that unpickling would run its code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.float64(1).__reduce__()[0], (np.dtype("O"), b"8 bytes.")


def torch_bytes(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


OF_THE_TRANSFORM = [
    ({"crop_mode": "centre"}, "unknown crop mode 'centre'; did you mean 'center'"),
    ({"interpolation": "bicubik"}, "unknown interpolation 'bicubik'; did you mean 'bicubic'"),
    ({"std": (0.5, 0, 0.5)}, r"std is \(0\.5, 0, 0\.5\), expected numbers above 0: pixels are divided"),
    ({"mean": (0.5,)}, r"mean is \(0\.5,\), expected three numbers, of red, green and blue"),
    *(({"mean": mean}, "expected three numbers") for mean in (0.5, (0.5, float("nan"), 0.5), "0.5")),
    ({"mean": (123.7, 116.3, 103.5)}, "divide those of 0 to 255 by 255"),
    ({"crop_pct": 87.5}, r"crop_pct is 87\.5, expected a share above 0 and up to 1"),
    ({"crop_pct": 0}, "crop_pct is 0, expected"),
    ({"input_size": 44}, "input_size is 44, expected a multiple of the 8 pixels of a patch of tiny; give 40 or 48"),
    ({"input_size": "36x48"}, "36x48, expected a multiple of the 8 pixels of a patch of tiny; give 32x48 or 40x48"),
    *(
        ({"input_size": size}, r"input_size is .*, expected the side .*, or its height and width, e\.g\. 336x448")
        for size in ("32", "32x", "axb", "32x48x3", (32,), (32, 0), True, 1.5)
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("quickstart-mea", {}, "unknown encoder 'quickstart-mea'; did you mean 'quickstart-mae'"),
        ("vit_bse_patch16_224", {}, "unknown encoder 'vit_bse_patch16_224'; did you mean 'vit_base_patch16_224'"),
        ("mine", {"model": "vit_tiny_patch61_224"}, "did you mean 'vit_tiny_patch16_224'"),
        ("mine", {"model": "resnet18", "random_seed": 0}, "mine is not a ViT: ResNet has no `blocks`"),
        ("mine", {"checkpoint": "x.pt", "random_seed": 3}, r"checkpoint \(x\.pt\) and a random seed \(3\); give one"),
        *(
            ("mine", {"model": MODEL, "random_seed": 0, option: "x"}, "without a checkpoint")
            for option in ("checkpoint_key", "checkpoint_prefix", "ignore")
        ),
        ("mine", {"family": "join-embeding"}, "did you mean 'joint embedding'"),
        ("mine", {"model": "quickstart-mae", "random_seed": 1, "family": "labels"}, r"\(seed 1\), but its family is 'labels'"),
        ("mixer-b16", {"random_seed": 0, "input_size": 448}, "448, but mixer-b16 takes images of 224 x 224 pixels only"),
        *(("tiny", {"model": MODEL, "arguments": TINY, "random_seed": 0, **given}, says) for given, says in OF_THE_TRANSFORM),
    ],
)
def test_refused(name, options, message):
    with pytest.raises(BeyondClsError, match=message):
        load_encoder(name, **options)


class TestNames:
    @pytest.mark.parametrize("model", ["cait_xxs24_224", "xcit_nano_12_p8_224"])  # XCiT's patches have one side
    def test_a_vit_whose_cls_joins_behind_the_blocks(self, model):
        """Position 0 in the blocks of CaiT is a patch; taking it for [cls] would be wrong without a word."""
        need_cait()
        encoder = tiny_encoder(model=model)
        with pytest.raises(BeyondClsError, match="tiny is not a plain ViT: block 1 has 16 tokens, the output 17"):
            encoder(torch.randn(1, 3, 32, 32), [1])

    def test_registered_weights_that_are_not_there(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BeyondClsError, match=r"there is no checkpoint '.*mae\.safetensors'"):
            load_encoder("quickstart-mae")


class TestTransform:
    @pytest.fixture
    def file(self, tmp_path):
        save_file(state(), tmp_path / "w.safetensors")
        return tmp_path / "w.safetensors"

    def test_a_checkpoint_of_ones_own_sees_what_imagenets_constants_say(self, file):
        """And not what timm says of weights that share the architecture: 0.5, and 0.9 of the side."""
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
        with pytest.warns(BeyondClsWarning, match=r"assumed .* of mine, as of ImageNet: mean 0\.485,.* give --mean --std"):
            encoder = load_encoder("mine", checkpoint=file, model=MODEL, arguments=TINY)
        constants = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "crop_pct": 0.875, "interpolation": "bicubic"}
        seen = create_transform((3, 32, 32), is_training=False, **constants)(image)[None]
        vit = timm.create_model(MODEL, **TINY)
        vit.load_state_dict(state(), strict=False)
        (expected,) = vit.eval().forward_intermediates(seen, 1, norm=False, output_fmt="NLC", intermediates_only=True)
        given = encoder(encoder.transform(image)[None], [1]).patch[1]
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        ("given", "silent"),
        [
            ({}, False),
            ({"mean": (0.5, 0.5, 0.5), "std": [0.25, 0.5, 1]}, False),
            ({"mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1, "crop_mode": "squash", "interpolation": "bilinear"}, True),
        ],
    )
    def test_what_is_given_wins_and_the_rest_is_said(self, given, silent, file):
        with warnings.catch_warnings(record=True) as caught:
            encoder = load_encoder("mine", checkpoint=file, model=MODEL, arguments=TINY, **given)
        seen = encoder.described_transform
        assert {name: seen[name] for name in given} == {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
        (warning_text,) = [str(warning.message) for warning in caught] or [""]
        assert (warning_text == "") == silent
        assert not any(f"{name} " in warning_text.split(";")[0] for name in given)

    def test_another_size_of_images(self, file):
        """As the architecture made for that size, with positions between those that were learnt."""
        with pytest.warns(BeyondClsWarning):
            encoder = load_encoder("mine", checkpoint=file, model=MODEL, arguments=TINY, input_size=48)
        assert encoder.architecture == tiny_encoder(img_size=48).architecture
        assert encoder.described_transform["input_size"] == [3, 48, 48]
        assert encoder.described_transform["crop_pct"] == 0.875
        assert encoder(torch.zeros(1, 3, 48, 48), [1]).patch[1].shape == (1, 36, 32)
        same = load_encoder("tiny", model=MODEL, arguments=TINY, random_seed=1, input_size=32)
        assert (same.weights, same.architecture) == (tiny_encoder(1).weights, tiny_encoder(1).architecture)

    @pytest.mark.parametrize(
        ("name", "given", "says"),
        [
            ("vit_base_patch16_224.mae", {}, "has the weights of mae-b16, but timm's transform: crop_pct 0.9 (not 0.875); "),
            ("vit_base_patch16_224.mae", {}, "give --encoder mae-b16 or --crop-pct 0.875"),
            ("vit_base_patch16_224.mae", {"crop_pct": 0.9}, ""),
            ("vit_small_patch14_dinov2.lvd142m", {}, "input_size 518 (not 224)"),
            ("vit_base_patch16_224.augreg_in21k", {}, ""),
        ],
    )
    def test_timms_names_of_weights_that_the_registry_has(self, name, given, says, monkeypatch):
        """The hub's weights are not fetched for it."""
        make = timm.create_model
        shrunk = {"embed_dim": 32, "depth": 1, "num_heads": 1}
        monkeypatch.setattr(timm, "create_model", lambda *a, pretrained, **options: make(*a, **{**options, **shrunk}))
        with warnings.catch_warnings(record=True) as caught:
            load_encoder(name, **given)
        assert [says in str(warning.message) for warning in caught] == [True] * bool(says)

    def test_a_tag_of_timm_says_whose_transform_it_is(self, file):
        """A file with the weights of the hub, for a machine that cannot reach it."""
        tagged = load_encoder("mine", checkpoint=file, model=f"{MODEL}.augreg_in21k", arguments=TINY)
        assert tagged.described_transform["mean"] == [0.5, 0.5, 0.5]


class TestCheckpoints:
    def test_safetensors_in_float16(self, tmp_path):
        half = {k: v.half() for k, v in state().items()}
        save_file(half, tmp_path / "w.safetensors")
        encoder = from_checkpoint(tmp_path / "w.safetensors")
        loaded = encoder.model.state_dict()
        assert loaded.keys() == half.keys()
        assert all(v.dtype == torch.float32 and torch.equal(v, half[k].float()) for k, v in loaded.items())
        again = from_checkpoint(tmp_path / "w.safetensors")
        assert again.weights == encoder.weights
        assert not any(p.requires_grad for p in encoder.model.parameters())
        assert not encoder.model.training

    @pytest.mark.parametrize(
        ("of", "into", "message"),
        [
            ({"depth": 1}, {}, r"18 of the model's 30 tensors\. missing \(12\): blocks\.1\.attn\.proj\.bias, .*, …$"),
            ({"depth": 3}, {}, r"30 of the model's 30 tensors\. unexpected \(12\): blocks\.2\.attn\.proj\.bias, .*, …\. It"),
            ({"img_size": 64}, {}, r"29 of .* 30 .* shape \(1\): pos_embed \[1, 65, 32\] for \[1, 17, 32\].* img_size: 64 }$"),
            ({}, {"reg_tokens": 4}, r"missing \(1\): reg_token; other shape \(1\): pos_embed"),
            ({"qk_norm": True, "depth": 1}, {"depth": 1}, r"unexpected \(4\): blocks\.0\.attn\.k_norm\.bias, "),
        ],
        ids=["missing", "unexpected", "shape", "missing and shape", "norms"],
    )
    def test_of_another_architecture(self, of, into, message, tmp_path):
        save_file(state(**of), tmp_path / "w.safetensors")
        with pytest.raises(BeyondClsError, match=r"w\.safetensors \(for vit_tiny_.*another architecture.*" + message):
            from_checkpoint(tmp_path / "w.safetensors", **into)

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (None, "there is no checkpoint '.*w.pth'"),
            ({**state(), "norm.bias": torch.full((32,), torch.nan)}, "NaN or Inf in norm.bias; the file is damaged"),
            ({**state(), "norm.bias": torch.full((32,), torch.inf)}, "NaN or Inf in norm.bias"),
            *((empty, "no dictionary of tensors") for empty in ({}, {"model": {}}, {"weight": 3})),
            ([1, 2], "holds a list, expected a dictionary of tensors"),
        ],
        ids=repr,
    )
    def test_that_are_none(self, content, named, tmp_path):
        if content is not None:
            torch.save(content, tmp_path / "w.pth")
        with pytest.raises(BeyondClsError, match=named):
            from_checkpoint(tmp_path / "w.pth")

    @pytest.mark.parametrize(
        ("name", "damage"),
        [
            *(("w.safetensors", damage) for damage in (lambda data: data[:-100], lambda data: b"\xff" * 16 + data[16:])),
            *((name, lambda data: b"") for name in ("w.safetensors", "w.pth")),
            *(("w.pth", damage) for damage in (lambda data: data[:1000], lambda data: data[:-100])),
        ],
    )
    def test_damaged(self, name, damage, tmp_path):
        (save_file if name.endswith("safetensors") else torch.save)(state(), tmp_path / name)
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        with pytest.raises(BeyondClsError, match=f"{name} is not a readable checkpoint: "):
            from_checkpoint(tmp_path / name)


@pytest.mark.parametrize("save", [torch.save, lambda content, file: file.write_bytes(pickle.dumps(content, protocol=2))])
def test_code_in_a_checkpoint_is_not_run(save, tmp_path):
    save({"model": state(), "payload": Payload(tmp_path / "ran")}, tmp_path / "w.pth")
    kind = f"{os.mkdir.__module__}.mkdir" if save is torch.save else "torch.storage._load_from_bytes"  # plain pickles have both
    with pytest.raises(BeyondClsError, match=rf"w\.pth holds more than tensors, a {kind}, and is not loaded"):
        read_checkpoint(tmp_path / "w.pth")
    assert not (tmp_path / "ran").exists()
    torch.save(Payload(tmp_path / "ran"), tmp_path / "w.pth")
    torch.load(tmp_path / "w.pth", weights_only=False)
    assert (tmp_path / "ran").exists(), "the payload works"


def archived(open_archive: Any, add: Any, *names: str) -> bytes:
    buffer = io.BytesIO()
    with open_archive(buffer) as archive:
        for name in names:
            add(archive, name)
    return buffer.getvalue()


ZIP = archived(
    lambda f: zipfile.ZipFile(f, "w"), lambda a, n: a.writestr(f"w/{n}", b"3\n"), "constants.pkl", "data.pkl", "version"
)
TAR = archived(
    lambda f: tarfile.TarFile(fileobj=f, mode="w"), lambda a, n: a.addfile(tarfile.TarInfo(n)), "pickle", "tensors", "storages"
)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (torch_bytes({"lr": Fraction(1, 3)}), "more than tensors, a fractions.Fraction, and is not loaded"),
        (torch_bytes({"lr": OfAnyKind()}), "more than tensors, a numpy.dtype 'O8', and is not loaded"),
        (ZIP, "a TorchScript archive, which holds code"),
        (TAR, r"the \.tar format of old torch"),
        (b"<html>404</html>", "torch.save did not write it"),
        (pickle.dumps(state, protocol=5), "torch.save did not write it"),
    ],
    ids=["fraction", "number that is any object", "TorchScript", "tar", "page", "pickle"],
)
def test_what_is_not_read(content, named, tmp_path):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(BeyondClsError, match=named):
        read_checkpoint(tmp_path / "w.pth")


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"], ids=["most Pythons", "3.13"])
def test_folders_that_a_launcher_left(module, tmp_path):
    """submitit's scripts put paths into `args`; they come back as text."""
    left = Namespace(output_dir=PosixPath("/runs/%j"), here=PosixPath("."), init=PurePosixPath("a/b"))
    torch.save({"model": state(), "args": left}, tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "w.pth").read_bytes()
    here = f"c{PosixPath.__module__}\n".encode()
    assert content.count(here) == 2
    (tmp_path / "w.pth").write_bytes(content.replace(here, f"c{module}\n".encode()))
    assert vars(read_checkpoint(tmp_path / "w.pth")["args"]) == {"output_dir": "/runs/%j", "here": ".", "init": "a/b"}
    assert from_checkpoint(tmp_path / "w.pth").weights == tiny_encoder(1).weights


class TestWhatIsAssumed:
    """A file whose names are those of any ViT is taken at the user's word, with a word on that."""

    @pytest.mark.parametrize(("beside", "is_told"), [({}, False), ({"decoder_embed.weight": torch.zeros(1)}, True)])
    def test_of_a_local_file(self, beside, is_told, tmp_path):
        file = tmp_path / "w.pth"
        torch.save({"model": {**state(), **beside}}, file)
        with warnings.catch_warnings(record=True) as caught:
            load_encoder("mine", checkpoint=file, model="mae-s16", arguments=TINY)
        word = f"mine: no name in {file} shows how it was trained, so its name is taken at its word"
        assert [str(warning.message) for warning in caught] == ([] if is_told else [word])

    def test_nothing_of_others(self, tmp_path):
        """Of a name of timm nothing is claimed; the published file is known; random weights were not trained."""
        save_file(state(), tmp_path / "w.safetensors")
        published = replace(ENCODERS["mae-s16"], weights=str(tmp_path / "w.safetensors"))
        assert published.load(arguments=TINY)[2].notes == published.load(random_seed=0, arguments=TINY)[2].notes == ()
        assert Pretrained(MODEL, "see timm", "MIT").load(tmp_path / "w.safetensors", arguments=TINY)[2].notes == ()
        assert published.load(tmp_path / "w.safetensors", arguments=TINY)[2].notes


class TestDigest:
    def test_one_that_is_not_meant(self, tmp_path):
        weights = tiny_encoder(0).weights
        again = load_encoder("tiny", model=MODEL, arguments=TINY, random_seed=0, weights=weights)
        assert again.weights == weights
        message = rf"the weights of tiny have digest \w+, expected {weights} \(a seed gives other last bits on the CPU of"
        with pytest.raises(BeyondClsError, match=message):
            load_encoder("tiny", model=MODEL, arguments=TINY, random_seed=1, weights=weights)
        with pytest.raises(BeyondClsError, match=rf"expected {weights} \(a seed gives"):
            load_encoder("quickstart-random", weights=weights)
        save_file(tiny_encoder(0).model.state_dict(), tmp_path / "w.safetensors")
        with pytest.raises(BeyondClsError, match=rf"expected {'0' * 32}; if the new weights are meant"):
            from_checkpoint(tmp_path / "w.safetensors", weights="0" * 32)

    def test_every_value_counts(self):
        model = tiny_encoder().model
        digests = {weights_digest(model)}
        for parameter in model.parameters():
            parameter.flatten()[-1].add_(1e-3)
            digests.add(weights_digest(model))
        assert len(digests) == 1 + len(list(model.parameters()))

    def test_does_not_depend_on_memory_layout(self):
        model = tiny_encoder().model
        before = weights_digest(model)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data = parameter.data.t().contiguous().t()
        assert weights_digest(model) == before


class TestRandom:
    def test_seed_decides(self):
        assert tiny_encoder(3).weights == tiny_encoder(3).weights
        assert tiny_encoder(3).weights != tiny_encoder(4).weights

    def test_global_random_state_is_left_alone(self):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        tiny_encoder(3)
        load_encoder("quickstart-random")
        assert torch.equal(torch.get_rng_state(), before)

    def test_untrained_twin_has_a_fixed_seed(self):
        twin = load_encoder("quickstart-random")
        assert twin.weights == load_encoder("quickstart-random", random_seed=0).weights
        assert twin.weights != load_encoder("quickstart-random", random_seed=1).weights


def test_a_hub_that_cannot_be_reached(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("cannot find the host\nlong explanation")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(BeyondClsError, match=rf"^.*'{MODEL}\.mae' from the hub \(cannot find the host\).*--checkpoint FILE$"):
        load_encoder(f"{MODEL}.mae")


class TestPublishedFiles:
    @pytest.fixture
    def published(self, tmp_path, monkeypatch):
        """An encoder `mine` whose weights are published, in a separate registry."""
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
        file = tmp_path / "published" / "checkpoint.pth"
        file.parent.mkdir()
        torch.save({"model": state()}, file)
        monkeypatch.setitem(ENCODERS, "mine", Pretrained(MODEL, file.as_uri(), "MIT", TINY))
        return file

    def test_are_fetched_once(self, published):
        encoder = load_encoder("mine")
        assert encoder.weights == tiny_encoder(1).weights
        published.unlink()
        assert load_encoder("mine").weights == encoder.weights

    def test_that_cannot_be_fetched(self, published, monkeypatch):
        published.unlink()
        with pytest.raises(BeyondClsError, match=r"checkpoint\.pth cannot be fetched \(.*give --checkpoint"):
            load_encoder("mine")
        monkeypatch.setitem(ENCODERS, "mine", Pretrained(MODEL, "see https://example.org/weights", "MIT", TINY))
        with pytest.raises(BeyondClsError, match=r"from https://example\.org/weights and give --checkpoint FILE"):
            load_encoder("mine")


def test_numbers_of_an_older_numpy(tmp_path):
    """Schedules are arrays, so learning rates are numbers of numpy, which older files name by another module."""
    written = {
        "teacher": {"norm.weight": torch.ones(3)},
        "optimizer": {"lr": np.float64(1e-4), "decay": np.float32(0.4)},
    }
    torch.save(written, tmp_path / "new.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "new.pth").read_bytes()
    assert b"cnumpy._core.multiarray\nscalar" in content
    (tmp_path / "old.pth").write_bytes(content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    for age in ("new", "old"):
        content = read_checkpoint(tmp_path / f"{age}.pth")
        assert content["optimizer"] == written["optimizer"]
        assert torch.equal(content["teacher"]["norm.weight"], torch.ones(3))


def test_settings_of_yacs(tmp_path, monkeypatch):
    """SimMIM's training script saves its settings as they are; they are read without yacs and without running code."""

    class CfgNode(dict[str, Any]):
        def __init__(self, **values):
            super().__init__(values)
            self.__dict__["__immutable__"] = True

    yacs = ModuleType("yacs.config")
    CfgNode.__module__, CfgNode.__qualname__, yacs.CfgNode = "yacs.config", "CfgNode", CfgNode
    monkeypatch.setitem(sys.modules, "yacs", ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", yacs)
    settings = CfgNode(MODEL=CfgNode(TYPE="vit", DROP=0.1, SIZES=[1, 2]), BASE=("",))
    torch.save({"model": {"norm.weight": torch.ones(3)}, "config": settings, "epoch": 799}, tmp_path / "w.pth")
    monkeypatch.delitem(sys.modules, "yacs.config")
    content = read_checkpoint(tmp_path / "w.pth")
    assert content["config"] == {"MODEL": {"TYPE": "vit", "DROP": 0.1, "SIZES": [1, 2]}, "BASE": ("",)}
    assert torch.equal(content["model"]["norm.weight"], torch.ones(3))
