"""CIFAR-10 and CIFAR-100 in both versions; the python version's pickles run nothing."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.datasets import DataError, open_images
from tests.extract.pictures import write_file, write_text
from tests.pickled import Payload

N = 3  # images of each file


def planes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (N, 3072), np.uint8)


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode()


def pickled(entries: dict[str, Any]) -> bytes:
    """A dictionary as Python 2 pickled it in the published files: protocol 2, texts and pixels as byte strings."""
    out = b"\x80\x02}("
    for key, value in entries.items():
        out += text(key)
        if isinstance(value, np.ndarray):
            shape = b"".join(b"J" + struct.pack("<i", n) for n in value.shape)
            out += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text("b") + b"tR"
            dtype = b"cnumpy\ndtype\n(" + text("u1") + b"K\x00K\x01tR(K\x03" + text("|")
            dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + struct.pack("<i", value.nbytes) + value.tobytes() + b"tb"
        elif isinstance(value, str):
            out += text(value)
        else:
            out += b"](" + b"".join(text(v) if isinstance(v, str) else b"K" + bytes([v]) for v in value) + b"e"
    return out + b"u."


LABELS = [2, 0, 1]
NAMES = {10: ["airplane", "automobile", "bird"], 100: ["apple", "aquarium_fish", "baby"]}
FILES = {10: [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], 100: ["train", "test"]}
COARSE = {"coarse_labels": [9, 9, 9], "coarse_label_names": ["food"]}


def binary(root: Path, n: int) -> Path:
    folder = root / {10: "cifar-10-batches-bin", 100: "cifar-100-binary"}[n]
    for seed, name in enumerate(FILES[n]):
        records = (bytes([9] * (n == 100) + [label]) + row.tobytes() for label, row in zip(LABELS, planes(seed), strict=True))
        write_file(folder / f"{name}.bin", b"".join(records))
    write_text(folder / {10: "batches.meta.txt", 100: "fine_label_names.txt"}[n], *NAMES[n], "")
    return root


def python(root: Path, n: int) -> Path:
    folder, of_all = (root / "cifar-10-batches-py", {"num_vis": [0]}) if n == 10 else (root / "cifar-100-python", COARSE)
    fine = "" if n == 10 else "fine_"
    for seed, name in enumerate(FILES[n]):
        batch = {"batch_label": name, f"{fine}labels": LABELS, "data": planes(seed), "filenames": ["a.png", "b.png", "c.png"]}
        write_file(folder / name, pickled({**of_all, **batch}))
    write_file(folder / {10: "batches.meta", 100: "meta"}[n], pickled({**of_all, f"{fine}label_names": NAMES[n]}))
    return root


@pytest.mark.parametrize("n", [10, 100])
def test_both_versions_are_the_same_images(n: int, tmp_path: Path) -> None:
    digests = []
    for write in (binary, python):
        source = str(write(tmp_path / write.__name__, n))
        train, test = (open_images(source, split=split) for split in ("train", "test"))
        last = len(FILES[n]) - 1
        assert [(s.id, s.label) for s in train.samples] == [(f"train/{i:05d}", LABELS[i % N]) for i in range(last * N)]
        assert [(s.id, s.label) for s in test.samples] == [(f"test/{i:05d}", LABELS[i]) for i in range(N)]
        assert (train.classes, train.all_problems()) == (NAMES[n], [])
        for images, row, seed in ((train, last * N - 2, last - 1), (test, 1, last)):
            assert np.array_equal(images.image(row), planes(seed)[1].reshape(3, 32, 32).transpose(1, 2, 0))
        digests.append((train.digest, test.digest))
    assert digests[0] == digests[1]


def test_as_numpy_of_today_pickles_it(tmp_path: Path) -> None:
    root = python(tmp_path, 100)
    batch = {b"fine_labels": LABELS, b"data": planes(1)}
    write_file(root / "cifar-100-python" / "test", pickle.dumps(batch, protocol=4))
    images = open_images(str(root), split="test")
    assert np.array_equal(images.image(1), planes(1)[1].reshape(3, 32, 32).transpose(1, 2, 0))


@pytest.mark.parametrize("name", ["test", "meta"])
def test_pickles_run_nothing(name: str, tmp_path: Path) -> None:
    root, ran = python(tmp_path, 100), tmp_path / "ran"
    write_file(root / "cifar-100-python" / name, pickle.dumps({b"data": Payload(ran)}))
    with pytest.raises(DataError, match=rf"cifar-100-python/{name}: it names posix\.mkdir, which CIFAR's files do not; do not"):
        open_images(str(root), split="test")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cifar-100-python/test", None, r"cannot be read .*No such file.*; unpack"),
        ("cifar-100-python/test", pickled({"data": planes(0), "fine_labels": [1]}), "9216 bytes for 1 labels.*data and fine_l"),
        ("cifar-100-python/meta", pickled({"other": "x"}), "not as expected .*class names"),
        ("cifar-100-binary/test.bin", bytes(3073), r"has 3073 bytes, expected a multiple of 3074; it is cut"),
    ],
)
def test_damaged_files(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    root = (python if "python" in name else binary)(tmp_path, 100)
    (root / name).unlink() if content is None else write_file(root / name, content)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        open_images(str(root), split="test")
