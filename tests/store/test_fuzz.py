"""With any metadata and traces of writers: a StoreError or the right rows, and no file outside the folder."""

import copy
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from store import ArrayLayout, FeatureSpec, FeatureStore, Loader, StoreError, verify
from store.codecs import get_codec
from store.format.unfinished import HEADER, record_bytes, record_name
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, CONSTANTS, edit, layouts, put, values, write
from tests.store.tiny import Tiny

EACH = 80

JUNK: list[Any] = [
    *(None, True, 0, 1, -1, 31, 10**12, -(10**18), 10**300, 1.5, 1e308, float("nan"), float("inf"), -0.0),
    *("", "int8", "float128", "int4", "../x", "/etc/passwd", "a/../../b", "\ud800", "\0", "x" * 300),
    *([], [0], {}, {"name": "x"}, [[[[[]]]]]),
]


def _deep(n: int) -> Any:
    out: Any = 0
    for _ in range(n):
        out = [out]
    return out


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside plain JSON."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [(node, key) for key, _ in items] + [place for _, value in items for place in _places(value)]


def _mutated(meta: Any, generator: random.Random) -> Any:
    """Another JSON document, much like this one."""
    meta = copy.deepcopy(meta)
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        node, key = generator.choice(_places(meta) or [([0], 0)])
        how = generator.randrange(6)
        junk = _deep(90) if generator.random() < 0.03 else generator.choice(JUNK)
        if how == 0:
            del node[key]
        elif how == 1:
            node[key] = junk
        elif how == 2 and isinstance(node, dict):
            node[generator.choice(["x", "..", "a/b", "shape", "/"])] = node.pop(key)
        elif how == 3 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif isinstance(node[key], int | float) and not isinstance(node[key], bool):
            n = node[key]
            node[key] = generator.choice([n + 1, -n, 2 * n, str(n), [n], 10**30, -(10**30), 0.5, float("nan"), float("inf")])
        else:
            node[key] = junk
    return meta


def _mangled(data: bytes, generator: random.Random) -> bytes:
    """Other bytes, much like these."""
    out = bytearray(data)
    while out == data:
        _mangle(out, generator)
    return bytes(out)


def _mangle(out: bytearray, generator: random.Random) -> None:
    for _ in range(generator.choice([1, 1, 2, 5])):
        at, n = generator.randrange(len(out) + 1), generator.choice([1, 1, 2, 20])
        how = generator.randrange(7)
        if how == 0 and at < len(out):
            out[at] ^= 1 << generator.randrange(8)
        elif how == 1:
            del out[at : at + n]
        elif how == 2:
            out[at:at] = generator.randbytes(n)
        elif how == 3:
            out[at:at] = generator.choice([b'"', b"{", b"]", b",", b"\n", b"\0", b"9" * 20, b"1e999", b"\xff\xfe", b"\\ud800"])
        elif how == 4:
            out[at : at + n] = out[:n]
        elif how == 5 and generator.random() < 0.3:
            del out[at:]
        elif generator.random() < 0.1:
            out[at:at] = generator.choice([b"[", b'{"a":']) * 20_000


_watched: list[Path] = []  # where files may be opened now


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event == "ctypes.dlopen" and arguments == (None,):
        return  # this program itself
    if event in ("exec", "compile", "subprocess.Popen", "os.system", "pickle.find_class", "import", "ctypes.dlopen"):
        raise RuntimeError(f"{event}: {arguments}")
    if event in ("open", "os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"):
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            if isinstance(path, str | bytes | os.PathLike):
                inside = Path(os.path.realpath(os.fsdecode(path)))
                if not any(inside.is_relative_to(folder) for folder in _watched) and os.path.isabs(os.fsdecode(path)):
                    raise RuntimeError(f"{event} of {inside}")


sys.addaudithook(_watch)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Nothing is executed, imported, or opened elsewhere."""
    _watched.extend([folder.resolve(), Path(f"/proc/{os.getpid()}")])  # a claim says when its process began
    try:
        yield
    finally:
        _watched.clear()


@pytest.fixture(scope="module", autouse=True)
def _few_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.format.layout.KINDS", ("images", "patch"))
        yield


@pytest.fixture(scope="module")
def contents() -> dict[str, np.ndarray]:
    contents = values(_arrays())
    for end, part in get_codec("int4").encode(torch.ones(40, 2, 4)).items():
        contents[f"patch/block0/view0{end}"] = part.numpy()
    return contents | CONSTANTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, np.ndarray]) -> Path:
    out = tmp_path_factory.mktemp("fuzz") / "one"
    write(out, _arrays(), contents, blocks=(0,))
    _read_all(out, contents)  # what is imported on the way is imported now
    list(verify(out))
    return out


def _arrays() -> list[ArrayLayout]:
    return [
        *(a for a in layouts(40, 32) if a.name.startswith("images/")),
        ArrayLayout("patch/block0/view0", (40, 2, 2), "uint8", ("image", "patch", "channel"), 32, codec="int4"),
        ArrayLayout("patch/block0/view0-scale", (40, 2, 1), "float16", ("image", "patch", "group"), 32),
        ArrayLayout("cls/block0/view0", (40, 3), "float16", ("image", "channel"), 32, codec="float16"),
    ]


def _read_all(folder: Path, contents: dict[str, np.ndarray]) -> bool:
    """Whether it was read, rather than refused; what is read is right, up to the name of the type and the tail's shape."""
    try:
        store = FeatureStore.open(folder)
        _ = store.ids, store.valid, store.n_classes, repr(store), len(store), store.kinds, store.shard_rows, store.spec.key
        for name, array in store.arrays.items():
            assert array.stored(np.arange(array.layout.shape[0])).tobytes() == contents[name].tobytes(), name
            _ = array.all(), repr(array), array.nbytes, array.dtype
        arrays = {name: array for name, array in store.arrays.items() if not name.startswith("norm/")}
        batches = Loader(arrays, store.labels, placement="stream", dtype=None, threads=1).epoch()
        assert sum(len(batch["row"]) for batch in batches) == len(store)
    except StoreError:
        return False
    return True


def _fuzz(folder: Path, contents: dict[str, np.ndarray], change: Callable[[random.Random], None]) -> int:
    """How many of the changed sets were read."""
    generator, sound, n_read = random.Random(0), {p: p.read_bytes() for p in folder.rglob("zarr.json")}, 0
    for i in range(EACH):
        try:
            change(generator)
            with _inside(folder):
                n_read += _read_all(folder, contents)
                with suppress(StoreError):
                    assert all(problem is None or isinstance(problem, str) for _, _, problem in verify(folder))
        except Exception as error:
            raise AssertionError(f"mutation {i}") from error
        finally:
            for path, content in sound.items():
                path.write_bytes(content)
    return n_read


ARRAYS = ("images/label", "images/id", "patch/block0/view0", "patch/block0/view0-scale", "cls/block0/view0", "norm/bias")


@pytest.mark.parametrize("vouch", [False, True])
def test_metadata_of_arrays(folder: Path, contents: dict[str, np.ndarray], vouch: bool) -> None:
    def change(generator: random.Random) -> None:
        name = generator.choice(ARRAYS)
        content = (folder / name / "zarr.json").read_bytes()
        if generator.random() < 0.4:
            content = _mangled(content, generator)
        else:
            content = json.dumps(_mutated(json.loads(content), generator)).encode()
        put(folder, content, name, vouch)

    n_read = _fuzz(folder, contents, change)
    assert n_read > 5 if vouch else n_read == 0  # some fields do not matter


@pytest.mark.parametrize("how", ["mangled", "mutated", "vouched", "with its key"])
def test_metadata_of_the_group(folder: Path, contents: dict[str, np.ndarray], how: str) -> None:
    def change(generator: random.Random) -> None:
        content = (folder / "zarr.json").read_bytes()
        if how == "mangled":
            put(folder, _mangled(content, generator))
        elif how == "mutated":
            put(folder, json.dumps(_mutated(json.loads(content), generator)).encode())
        else:
            edit(folder, lambda meta: _change_description(meta, generator, how == "with its key"))

    n_read = _fuzz(folder, contents, change)
    assert n_read == 0 if how in ("mangled", "mutated") else 8 < n_read < EACH * 0.8


def _change_description(meta: dict[str, Any], generator: random.Random, key: bool) -> None:
    ours = meta["attributes"]["beyondcls"]
    changed = _mutated({k: v for k, v in ours.items() if k != "digest"}, generator)
    if key:
        with suppress(KeyError, TypeError, ValueError):
            changed["key"] = FeatureSpec.from_dict(changed["spec"]).key
    meta["attributes"]["beyondcls"] = changed


# -- what writers keep -------------------------------------------------------------------------------------------------

TINY = Tiny(40, (3,))
KEPT = (HEADER, record_name(0))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """Where a writer was killed after one of two units; and the files that it would have written."""
    out = tmp_path_factory.mktemp("staged") / "a" / "one"
    with TINY.begin(out) as writer:
        TINY.write(writer, 0)
    return out, dict(TINY.expected(tmp_path_factory.mktemp("expected") / "one"))


@pytest.mark.parametrize("vouch", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_headers_and_records(tmp_path: Path, staged: tuple[Path, dict[str, bytes]], vouch: bool, name: str) -> None:
    """What a kill or a bad disk leaves is noticed; even a forged one does no harm."""
    killed, expected = staged
    generator, n_finished = random.Random(0), 0
    folder = shutil.copytree(killed.parent, tmp_path / "a")
    file = folder / ".staging" / f"one-{TINY.spec.key}" / name
    sound = files(folder)
    content = file.read_bytes()
    for i in range(EACH // 2):
        changed = _forged(name, content, generator) if vouch else _mangled(content, generator)
        file.write_bytes(changed)
        try:
            with _inside(folder):
                finished = _finish(folder / "one", vouch or i % 3 == 0) or _finish(folder / "one", True)
            n_finished += finished
            if (folder / "one").exists() and not vouch:
                assert files(folder / "one") == expected
        except Exception as error:
            raise AssertionError(f"mutation {i}: {changed!r}") from error
        finally:
            shutil.rmtree(folder)
            for path, data in sound.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
    assert n_finished == EACH // 2 or name == HEADER or vouch


def _forged(name: str, content: bytes, generator: random.Random) -> bytes:
    """Another record or header that seems to be one."""
    document = json.loads(content if name == HEADER else content.partition(b"\n")[2])
    mutated = _mutated(document, generator)
    return json.dumps(mutated).encode() if name == HEADER else record_bytes(mutated)


def _finish(path: Path, all_of_it: bool) -> bool:
    """Whether a writer went on and the set is right, or refused."""
    try:
        with TINY.begin(path) as writer:
            if not all_of_it:
                return 1 in writer.missing_units()
            for unit in writer.missing_units():
                TINY.write(writer, unit)
            writer.finish(ATTRIBUTES)
        store = FeatureStore.open(path)
        for name in writer.layouts:
            assert np.array_equal(store.array(name).stored(np.arange(TINY.n)), TINY.values(name)), name
    except StoreError:
        return False
    return True
