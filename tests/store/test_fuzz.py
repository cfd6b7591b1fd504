"""With any damage, metadata and traces of writers: a StoreError or the right rows, and no file outside the folder."""

import copy
import json
import os
import random
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from store import ArrayLayout, FeatureSpec, FeatureStore, Loader, StoreError, verify
from store.codecs import get_codec
from store.format.unfinished import HEADER, record_bytes, record_name
from tests.folders import files
from tests.store.conftest import ATTRIBUTES, CONSTANTS, edit, layouts, put, values, write
from tests.store.tiny import Tiny

N, EACH, N_DAMAGED = 40, 50, 80
TOKENS = ("image", "patch", "channel")


@pytest.fixture(scope="module", autouse=True)
def _few_files():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.format.layout.KINDS", ("images", "patch"))
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A set with rows that have a digest each few, and with scales; its stored values; and those that are read."""
    arrays = [
        *(a for a in layouts(N, 32) if a.name.startswith("images/")),
        *(ArrayLayout(f"patch/block{b}/view0", (N, 2, 3), "float16", TOKENS, 32, codec="float16") for b in (1, 2)),
        ArrayLayout("cls/block0/view0", (N, 3), "float16", ("image", "channel"), 32, codec="float16"),
    ]
    contents = values(arrays) | CONSTANTS
    for name, codec, dim in (("patch/block0/view0", "int4", 4), ("patch/block3/view0", "int8", 4096)):
        tokens = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 2, dim)).astype("float32"))
        parts, stored = get_codec(codec).encode(tokens), get_codec(codec).parts((N, 2, dim))
        for end, (shape, dtype) in stored.items():
            arrays.append(ArrayLayout(name + end, shape, dtype, TOKENS[: len(shape)], 32, codec=None if end else codec))
            contents[name + end] = parts[end].numpy()
    folder = tmp_path_factory.mktemp("fuzz") / "one"
    write(folder, arrays, contents, blocks=(0,))
    store = FeatureStore.open(folder)
    expected = {name: torch.from_numpy(array.all()) for name, array in store.arrays.items()}
    # What is imported on the way is imported now.
    assert [problem_with(way, folder, contents, expected) for way in WAYS] == [None] * 3
    assert all(problem is None for *_, problem in verify(folder))
    return folder, contents, expected


WAYS = ("rows", "memory", "stream")


def problem_with(way, folder, contents, expected=None):
    """What the error says if the set is refused; None if it is read, and then it is right."""
    try:
        store = FeatureStore.open(folder)
        _ = store.ids, store.valid, store.n_classes, repr(store), store.kinds, store.shard_rows, store.spec.key, store.labels
        for name, array in store.arrays.items():  # right up to the name of the type and the tail's shape
            if way == "rows" or name.startswith("norm/"):
                assert array.stored(np.arange(array.layout.shape[0])).tobytes() == contents[name].tobytes(), name
                _ = array.all(), repr(array), array.nbytes, array.dtype
        if way == "rows":
            return None
        arrays = {name: array for name, array in store.arrays.items() if not name.startswith("norm/")}
        options = {"dtype": None, "batch_size": 10, "buffer_nbytes": 1, "block_rows": 10, "threads": 2}
        batches = list(Loader(arrays, np.arange(len(store)), placement=way, **options).epoch(1))
        assert sum(len(batch["row"]) for batch in batches) == len(store)
        for batch in batches:
            for name in arrays if expected else ():
                wanted = expected[name][batch["row"]]
                assert torch.equal(batch[name].contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)), name
    except StoreError as error:
        return str(error)
    return None


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(generator, content):
    """One random damage: file -> its new content; None removes it."""
    name = generator.choice([*content, *(n for n in content if not n.endswith(".json"))])  # shards twice as often
    data, how = bytearray(content[name]), generator.randrange(8)
    if how < 4:
        # Anywhere, or near the end, where the tail is.
        at = generator.randrange(len(data)) if how < 3 else -generator.randrange(1, min(200, len(data)) + 1)
        data[at] ^= 1 << generator.randrange(8)
        return {name: bytes(data)}
    if how == 4:
        return {name: bytes(data[: generator.randrange(len(data))])}
    if how == 5:
        return {name: None}
    if how == 6:  # within an array, or between arrays of one shape
        one, other = generator.sample([f"patch/block{b}/view0/c/{shard}/0/0" for b in (1, 2) for shard in (0, 1)], 2)
        return {one: content[other], other: content[one]}
    metas = [n for n in content if n.endswith("zarr.json")]
    name = generator.choice([n for n in metas if b'"array"' in content[n]])
    return {name: content[generator.choice([n for n in metas if content[n] != content[name]])]}


def test_damage_is_reported_and_not_read(sound):
    """By `verify`, each damaged file by itself, and by whoever reads it, however."""
    folder, contents, expected = sound
    generator, content = random.Random(0), files(folder)
    for i in range(N_DAMAGED):
        changed = {name: new for name, new in damage(generator, content).items() if new != content[name]}
        named = [folder.name if name == "zarr.json" else f"one/{name}" for name in changed]
        try:
            for name, new in changed.items():
                (folder / name).unlink() if new is None else (folder / name).write_bytes(new)
            try:
                reports = [problem for *_, problem in verify(folder) if problem]
            except StoreError as error:
                reports = [str(error)] if "zarr.json" in changed else []
            assert all(any(name in report for report in reports) for name in named), (named, reports)
            problems = [problem_with(way, folder, contents, expected) for way in WAYS]
            assert problems == [None] * 3 or all(any(name in str(problem) for name in named) for problem in problems), problems
        except Exception as error:
            raise AssertionError(f"damage {i}: {list(changed)}") from error
        finally:
            for name in changed:
                (folder / name).write_bytes(content[name])


def test_every_bit_of_a_tail_counts(sound):
    layout = FeatureStore.open(sound[0]).array("patch/block3/view0").layout
    file = sound[0] / layout.file(1)
    content = file.read_bytes()
    try:
        for at in range(layout.data_nbytes(1), len(content)):
            data = bytearray(content)
            data[at] ^= 1 << at % 8
            file.write_bytes(data)
            with pytest.raises(StoreError, match="its tail"):
                FeatureStore.open(sound[0]).array(layout.name).stored([N - 1])
    finally:
        file.write_bytes(content)


# -- metadata ----------------------------------------------------------------------------------------------------------

JUNK = [
    *(None, True, 0, 1, -1, 31, 10**12, -(10**18), 10**300, 1.5, 1e308, float("nan"), float("inf"), -0.0),
    *("", "int8", "float128", "int4", "../x", "/etc/passwd", "a/../../b", "\ud800", "\0", "x" * 300),
    *([], [0], {}, {"name": "x"}, [[[[[]]]]], json.loads("[" * 90 + "]" * 90)),
]


def places(node):
    """Every (container, key) inside plain JSON."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [(node, key) for key, _ in items] + [place for _, value in items for place in places(value)]


def mutated(meta, generator):
    """Another JSON document, much like this one."""
    meta = copy.deepcopy(meta)
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        node, key = generator.choice(places(meta) or [([0], 0)])
        how = generator.randrange(6)
        if how == 0:
            del node[key]
        elif how == 2 and isinstance(node, dict):
            node[generator.choice(["x", "..", "a/b", "shape", "/"])] = node.pop(key)
        elif how == 3 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif how > 1 and isinstance(n := node[key], int | float) and not isinstance(n, bool):
            node[key] = generator.choice([n + 1, -n, 2 * n, str(n), [n], 10**30, -(10**30), 0.5, float("nan"), float("inf")])
        else:
            node[key] = generator.choice(JUNK)
    return meta


BYTES = [b'"', b"{", b"]", b",", b"\n", b"\0", b"9" * 20, b"1e999", b"\xff\xfe", b"\\ud800"]


def mangled(data, generator):
    """Other bytes, much like these."""
    out = bytearray(data)
    while out == data:
        for _ in range(generator.choice([1, 1, 2, 5])):
            at, n = generator.randrange(len(out) + 1), generator.choice([1, 1, 2, 20])
            how = generator.randrange(7)
            if how == 0 and at < len(out):
                out[at] ^= 1 << generator.randrange(8)
            elif how in (1, 2, 3, 4):
                replaced = {1: b"", 2: generator.randbytes(n), 3: generator.choice(BYTES), 4: out[:n]}[how]
                out[at : at + n if how in (1, 4) else at] = replaced
            elif how == 5 and generator.random() < 0.3:
                del out[at:]
            elif generator.random() < 0.1:
                out[at:at] = generator.choice([b"[", b'{"a":']) * 20_000
    return bytes(out)


watched: list[Path] = []  # where files may be opened now


def _watch(event, arguments):
    if not watched or (event == "ctypes.dlopen" and arguments == (None,)):  # this program itself
        return
    if event in ("exec", "compile", "subprocess.Popen", "os.system", "pickle.find_class", "import", "ctypes.dlopen"):
        raise RuntimeError(f"{event}: {arguments}")
    if event in ("open", "os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"):
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            if isinstance(path, str | bytes | os.PathLike) and os.path.isabs(os.fsdecode(path)):
                real = Path(os.path.realpath(os.fsdecode(path)))
                if not any(real.is_relative_to(folder) for folder in watched):
                    raise RuntimeError(f"{event} of {real}")


sys.addaudithook(_watch)


@contextmanager
def inside(folder):
    """Nothing is executed, imported, or opened elsewhere."""
    watched.extend([folder.resolve(), Path(f"/proc/{os.getpid()}")])  # a claim says when its process began
    try:
        yield
    finally:
        watched.clear()


def changed_document(content, generator, is_mangled):
    return mangled(content, generator) if is_mangled else json.dumps(mutated(json.loads(content), generator)).encode()


def change_array(folder, generator, how):
    name = generator.choice([path.parent.relative_to(folder).as_posix() for path in sorted(folder.rglob("c"))])
    content = (folder / name / "zarr.json").read_bytes()
    put(folder, changed_document(content, generator, generator.random() < 0.4), name, how == "vouched")


def change_group(folder, generator, how):
    def vouched(meta):
        ours = meta["attributes"].pop("beyondcls")
        del ours["digest"]
        meta["attributes"]["beyondcls"] = changed = mutated(ours, generator)
        if how == "with its key":
            with suppress(KeyError, TypeError, ValueError):
                changed["key"] = FeatureSpec.from_dict(changed["spec"]).key

    if how == "as it is":
        put(folder, changed_document((folder / "zarr.json").read_bytes(), generator, generator.random() < 0.5))
    else:
        edit(folder, vouched)


@pytest.mark.parametrize(
    ("change", "how", "least", "most"),
    [
        (change_array, "as it is", 0, 0),
        (change_array, "vouched", 4, EACH),  # some fields do not matter
        (change_group, "as it is", 0, 0),
        (change_group, "vouched", 6, EACH * 0.8),
        (change_group, "with its key", 6, EACH * 0.8),
    ],
)
def test_metadata(sound, change, how, least, most):
    folder, contents, _ = sound
    generator, metas, n_read = random.Random(0), {p: p.read_bytes() for p in folder.rglob("zarr.json")}, 0
    for i in range(EACH):
        try:
            change(folder, generator, how)
            with inside(folder):
                n_read += [problem_with(way, folder, contents) for way in ("rows", "stream")] == [None, None]
                with suppress(StoreError):
                    assert all(problem is None or isinstance(problem, str) for *_, problem in verify(folder))
        except Exception as error:
            raise AssertionError(f"mutation {i}") from error
        finally:
            for path, content in metas.items():
                path.write_bytes(content)
    assert least <= n_read <= most


# -- what writers keep -------------------------------------------------------------------------------------------------

TINY = Tiny(40, (3,))


@pytest.mark.parametrize("is_forged", [False, True])
@pytest.mark.parametrize("name", [HEADER, record_name(0)])
def test_headers_and_records(tmp_path, name, is_forged):
    """What a kill or a bad disk leaves is noticed; even a forged one does no harm."""
    folder, generator, n_finished = tmp_path / "a", random.Random(0), 0
    with TINY.begin(folder / "one") as writer:  # killed after one of two units
        TINY.write(writer, 0)
    killed, expected = files(folder), TINY.expected(tmp_path / "expected")
    file = f".staging/one-{TINY.spec.key}/{name}"
    for i in range(EACH // 2):
        changed = (forged if is_forged else mangled)(killed[file], generator)
        (folder / file).write_bytes(changed)
        try:
            with inside(folder):
                n_finished += finish(folder / "one", is_forged or i % 3 == 0) or finish(folder / "one", True)
            if (folder / "one").exists() and not is_forged:
                assert files(folder / "one") == expected
        except Exception as error:
            raise AssertionError(f"mutation {i}: {changed!r}") from error
        finally:
            shutil.rmtree(folder)
            for path, data in killed.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
    assert n_finished == EACH // 2 or name == HEADER or is_forged


def forged(content, generator):
    """Another header or record (which begins with a digest) that seems to be one."""
    if content.startswith(b"{"):
        return json.dumps(mutated(json.loads(content), generator)).encode()
    return record_bytes(mutated(json.loads(content.partition(b"\n")[2]), generator))


def finish(path, all_of_it):
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
