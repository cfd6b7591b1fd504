"""Over a hundred ways to damage a set: each is reported, and none reaches who reads."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from store import ArrayLayout, FeatureStore, Loader, StoreError, verify
from store.codecs import get_codec
from tests.folders import files
from tests.store.conftest import CONSTANTS, values, write

N, SHARD = 90, 64
EACH = 140
Damage = dict[str, bytes | None]  # file -> its new content; None removes it


def _arrays() -> tuple[list[ArrayLayout], dict[str, np.ndarray]]:
    """Small rows, rows that have a digest each few, and rows with a scale."""
    tokens = ("image", "patch", "channel")
    arrays = [
        ArrayLayout("images/label", (N,), "int64", ("image",), SHARD),
        ArrayLayout("images/valid", (N,), "uint8", ("image",), SHARD),
        ArrayLayout("patch/block3/view0", (N, 2, 3), "float16", tokens, SHARD, codec="float16"),
        ArrayLayout("patch/block5/view0", (N, 2, 3), "float16", tokens, SHARD, codec="float16"),
        ArrayLayout("patch/block5/view1", (N, 3, 1024), "int8", tokens, SHARD, codec="int8"),
        ArrayLayout("patch/block5/view1-scale", (N, 3), "float32", tokens[:2], SHARD),
    ]
    contents, generator = values(arrays), np.random.default_rng(0)
    contents["images/valid"][:] = 1
    encoded = get_codec("int8").encode(torch.from_numpy(generator.normal(size=(N, 3, 1024)).astype("float32")))
    for end, part in encoded.items():
        contents[f"patch/block5/view1{end}"] = part.numpy()
    return arrays, contents


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set; each test leaves it as it was."""
    out = tmp_path_factory.mktemp("corruption") / "one"
    write(out, *_arrays())
    return out


def _damage(generator: random.Random, sound: dict[str, bytes]) -> Damage:
    """One random damage."""
    name = generator.choice([*sound, *(n for n in sound if not n.endswith(".json"))])  # shards twice as often
    content, how = sound[name], generator.randrange(8)
    if how < 4:
        # Anywhere, or near the end, where the tail is.
        at = generator.randrange(len(content)) if how < 3 else -generator.randrange(1, min(200, len(content)) + 1)
        data = bytearray(content)
        data[at] ^= 1 << generator.randrange(8)
        return {name: bytes(data)}
    if how == 4:
        return {name: content[: generator.randrange(len(content))]}
    if how == 5:
        return {name: None}
    if how == 6:  # within an array, or between arrays of one shape
        folder = generator.choice(["patch/block3/view0/c/", "patch/block5/view0/c/"])
        group = generator.sample(names := [n for n in sound if n.startswith(folder)], len(names))
        one, other = group[:2] if generator.random() < 0.5 else (group[0], _twin(group[0]))
        return {one: sound[other], other: sound[one]}
    metas = [n for n in sound if n.endswith("zarr.json")]  # test_fuzz.py edits them in all ways
    name = generator.choice([n for n in metas if b'"array"' in sound[n]])
    return {name: sound[generator.choice([n for n in metas if sound[n] != sound[name]])]}


def _twin(name: str) -> str:
    return name.replace("block3", "block5") if "block3" in name else name.replace("block5", "block3")


def _unused(name: str) -> bool:
    """The group of a kind that this set has nothing of."""
    return name in {f"{kind}/zarr.json" for kind in ("cls", "registers", "average", "pooled", "statistics", "attention")}


def _named(name: str, message: str) -> bool:
    """Whether a message names a file; of a shard's array, the message may be about its zarr.json."""
    return (f"one/{name}" if name != "zarr.json" else "one") in message


def _check_reported(path: Path, damage: Damage) -> None:
    """By `verify`, each damaged file by itself; a damaged group says so of every array below it."""
    try:
        problem_texts = [str(problem) for _, _, problem in verify(path) if problem]
    except StoreError as error:
        problem_texts = [str(error)] if "zarr.json" in damage else []
    for name in damage:
        assert _unused(name) or any(_named(name, problem) for problem in problem_texts), (name, problem_texts)
    assert problem_texts or all(_unused(name) for name in damage)


def _check_read(path: Path, damage: Damage, expected: dict[str, torch.Tensor]) -> None:
    """All values are right until the damage is met; then a message names it."""
    messages = []
    for read in (_rows, _loaded, _streamed):
        try:
            store = FeatureStore.open(path)
            for name in CONSTANTS:
                assert np.array_equal(store.array(name).all(), CONSTANTS[name])
            for batch in read(store):
                for name, got in batch.items():
                    if name not in ("row", "label"):
                        assert torch.equal(_bits(got), _bits(expected[name][batch["row"]])), name
        except StoreError as error:
            messages.append(str(error))
    assert len(messages) in (0, 3)
    assert all(any(_named(name, message) for name in damage) for message in messages), (messages, list(damage))


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _names(store: FeatureStore) -> list[str]:
    return [name for name in store.arrays if not name.startswith("norm/") and not name.endswith("-scale")]


def _rows(store: FeatureStore) -> Any:
    rows = store.rows(np.arange(N))
    yield {**{name: torch.from_numpy(values) for name, values in rows.items()}, "row": torch.arange(N)}


def _loaded(store: FeatureStore) -> Any:
    arrays = {name: store.array(name) for name in _names(store)}
    return Loader(arrays, np.arange(N), placement="memory", dtype=None, batch_size=40, threads=2).epoch()


def _streamed(store: FeatureStore) -> Any:
    arrays = {name: store.array(name) for name in _names(store)}
    options: dict[str, Any] = {"dtype": None, "batch_size": 10, "buffer_nbytes": 1, "block_rows": 10, "threads": 2}
    return Loader(arrays, np.arange(N), placement="stream", **options).epoch(1)


@pytest.fixture(scope="module")
def expected(damaged: Path) -> dict[str, torch.Tensor]:
    store = FeatureStore.open(damaged)
    return {name: torch.from_numpy(store.array(name).all()) for name in _names(store)}


def test_damage_is_reported_and_not_read(damaged: Path, expected: dict[str, torch.Tensor]) -> None:
    generator, sound = random.Random(0), files(damaged)
    for i in range(EACH):
        damage = {name: content for name, content in _damage(generator, sound).items() if content != sound[name]}
        try:
            for name, content in damage.items():
                (damaged / name).unlink() if content is None else (damaged / name).write_bytes(content)
            _check_reported(damaged, damage)
            _check_read(damaged, damage, expected)
        except Exception as error:
            raise AssertionError(f"damage {i}: {list(damage)}") from error
        finally:
            for name in damage:
                (damaged / name).write_bytes(sound[name])
    assert files(damaged) == sound
    assert all(problem is None for _, _, problem in verify(damaged))


def test_every_bit_of_a_tail_counts(damaged: Path) -> None:
    """Digests and index of one shard, bit by bit."""
    store = FeatureStore.open(damaged)
    layout = store.array("patch/block5/view1").layout
    file = damaged / layout.file(1)
    sound = file.read_bytes()
    try:
        for at in range(layout.data_nbytes(1), len(sound)):
            data = bytearray(sound)
            data[at] ^= 1 << at % 8
            file.write_bytes(data)
            with pytest.raises(StoreError, match="its tail"):
                FeatureStore.open(damaged).array(layout.name).stored([N - 1])
    finally:
        file.write_bytes(sound)
