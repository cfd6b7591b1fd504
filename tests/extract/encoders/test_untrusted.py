"""Checkpoints that are made to crash, hang or fill whoever reads them; none does, and what is read is plain data."""

import io
import os
import pickle
import struct
import zipfile
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extract import plain_pickle
from extract.encoders.torch_file import NAMES
from extract.encoders.weights import read_checkpoint
from store import BeyondClsError
from tests.extract.untrusted import reading

STORAGE_NBYTES = 64


def number(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def many(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def named(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def call(name: str, *arguments: bytes) -> bytes:
    return named(name) + many(*arguments) + b"R"


def data(content: bytes) -> bytes:
    """Bytes as protocol 2 writes them."""
    return call("_codecs.encode", text(content.decode("latin-1")), text("latin1"))


def storage(kind: str = "Float", name: str = "0", n: int = 16) -> bytes:
    return many(text("storage"), named(f"torch.{kind}Storage"), text(name), text("cpu"), number(n)) + b"Q"


def tensor(size: tuple[int, ...] = (16,), stride: tuple[int, ...] = (1,), offset: int = 0, stored: bytes = b"") -> bytes:
    axes = (many(*map(number, axes)) for axes in (size, stride))
    hooks = call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", stored or storage(), number(offset), *axes, b"\x89", hooks)


def dictionary(value: bytes) -> bytes:
    return b"}" + text("x") + value + b"s"


def zipped(program: bytes, n_storages: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02" + program + b".")
        for i in range(n_storages):
            archive.writestr(f"w/data/{i}", bytes(range(STORAGE_NBYTES)))
        archive.writestr("w/version", "3\n")
    return file.getvalue()


def legacy(program: bytes, n_storages: int = 1) -> bytes:
    stored = io.BytesIO()
    torch.save({}, stored, _use_new_zipfile_serialization=False)
    head = stored.getvalue()[: stored.getvalue().index(b"\x80\x02}q\x00.")]
    program = program.replace(b"tQ", b"NtQ")  # where a storage begins in another one
    n_storages *= b"tQ" in program
    keys = pickle.dumps([str(i) for i in range(n_storages)], protocol=2)
    storages = (struct.pack("<q", STORAGE_NBYTES // 4) + bytes(range(STORAGE_NBYTES))) * n_storages
    return head + b"\x80\x02" + program + b"." + keys + storages


def dtype(code: str) -> bytes:
    return call("numpy.dtype", text(code), b"\x89", b"\x88")


ORDER = text("<")
DTYPE, OBJECT, EIGHT = dtype("f8"), dtype("O8"), data(b"12345678")
REST = (b"N", b"N", b"N", number(-1), number(-1), number(0))
NUMBER = DTYPE + many(number(3), ORDER, *REST) + b"b"
MANY = {"bytes": b"\x8e", "bytes that change": b"\x96"}
SCALAR, PATH = "numpy._core.multiarray.scalar", named("pathlib.PosixPath")
# What it does to a reader that trusts each name on a list.
HOSTILE = {
    "an object in a number's dtype": call(
        SCALAR,
        DTYPE + many(number(3), text("|"), many(OBJECT, many(number(1))), *REST[:2], number(8), number(1), number(0)) + b"b",
        EIGHT,
    ),
    "a number's dtype as an array of 4096": call(
        SCALAR, dtype("i8") + many(number(3), ORDER, many(DTYPE, many(number(4096))), *REST[1:]) + b"b", EIGHT
    ),
    "bytes that are not in the file": call("builtins.bytearray", number(10**12)),
    "a text that is not in the file": b"X\xff\xff\xff\xff" + b"a",
    "an integer of gigabytes": b"\x8b\xff\xff\xff\x7f1",
    **{f"many {kind} that are not in the file": code + struct.pack("<Q", 1 << 40) for kind, code in MANY.items()},
    "a place in a memo of gigabytes": b"Nr\xff\xff\xff\x3f",
    "a tensor of a terabyte by strides": tensor((1 << 20, 1 << 20), (0, 0)),
    "a tensor of a thousand axes": tensor((1,) * 1000, (1,) * 1000),
    "a storage that grows": tensor() + many(storage(), number(0), many(number(1 << 36)), many(number(1))) + b"b",
    "a device that is no machine's": call(
        "torch._utils._rebuild_device_tensor_from_numpy", b"N", named("torch.float32"), text("x"), b"\x89"
    ),
    "a key of many tuples, one in another": b"}" + b")" + b"\x85" * 200_000 + b"Ns",
    "keys whose hashes are equal": b"}(" + b"".join(number(i * (2**61 - 1)) + b"N" for i in range(40_000)) + b"u",
    "a list copied a million times": b"]("
    + b"N" * 100_000
    + b"eq\0]("
    + (named("__builtin__.set") + b"h\0\x85R") * 100_000
    + b"e",
    "text that doubles": text("a" * 1000) + b"q\x000" + text("b") + (b"q\1" + PATH + b"h\1h\1\x86R") * 60,
    "a number of text that doubles": b"]q\1" + b"]q\2h\1ah\1aq\1" * 60 + PATH + b"h\1\x85R",
}
# What is plain data after all.
READ = {"a number's dtype as an array of 4096", "a place in a memo of gigabytes"}


@pytest.fixture(scope="module")
def reader():
    with reading("checkpoint") as process:
        yield process


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile(what, reader):
    assert reader.outcome(zipped(dictionary(HOSTILE[what]))).startswith("read" if what in READ else "refused: ")


@pytest.mark.parametrize("form", [zipped, legacy])
def test_what_hostile_programs_are_made_of(form, reader):
    """Without it, all could be refused for a fault in this file."""
    for sound in (tensor(), tensor((4, 4), (1, 4)), tensor((3, 16), (0, 1)), call(SCALAR, NUMBER, data(b"12345678"))):
        assert reader.outcome(form(dictionary(sound))) == "read"


def test_too_many_steps(monkeypatch, tmp_path):
    monkeypatch.setattr(plain_pickle, "MOST_STEPS", 1000)
    for n in (900, 1100):
        (tmp_path / f"{n}.pth").write_bytes(zipped(dictionary(b"](" + b"\x8f" * n + b"e")))
    assert read_checkpoint(tmp_path / "900.pth")
    with pytest.raises(BeyondClsError, match="its pickle takes more than 1,000 steps"):
        read_checkpoint(tmp_path / "1100.pth")


def drawn(values: str, separator: str | None = None) -> st.SearchStrategy[str]:
    return st.sampled_from(values.split(separator))


INTEGERS = st.sampled_from(
    [*range(3), 4, 8, 16, 17, -1, -8, 255, 4096, *(2**n for n in (31, 40, 62, 63, 70)), 2**63 - 1, -(2**63)]
)
SMALL = st.integers(-1, 17) | INTEGERS
REBUILD = [f"torch._utils._rebuild_{kind}" for kind in ("tensor", "tensor_v2", "tensor_v3", "qtensor", "sparse_tensor")]
CALLED = sorted({*NAMES, *REBUILD})
TEXTS = drawn("|0|1|storage|cpu|f8|i8|O8|<|latin1|x|\0|é|__class__|" + "a" * 300, "|")
AXES = st.lists(SMALL, max_size=3).map(lambda axes: many(*map(number, axes)))
TWO_AXES = st.tuples(st.integers(0, 4), st.integers(0, 4))
KINDS = drawn("Float Float Float Double Bool BFloat16 ComplexDouble QInt8")
STORED = st.builds(storage, KINDS, TEXTS | st.just("0"), SMALL) | st.just(storage())
OPERATIONS = [*(bytes([one]) for one in b"()]}NQRbeasut12.0\x81\x85\x86\x87\x88\x89\x8f\x90\x94\x93\x00"), b"h\0", b"q\0"]
PLAIN = st.one_of(
    st.sampled_from([b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"h\0", b"h\1", b"G" + b"\x7f\xf8" + bytes(6)]),
    INTEGERS.map(number),
    TEXTS.map(text),
    drawn("|12345678|1234", "|").map(str.encode).map(data),
    st.sampled_from(CALLED).map(named),
    STORED,
)


def _more(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Values that are made of others, as the reader expects them or not."""
    several = st.lists(values, max_size=4).map(lambda parts: [*parts])
    axes, rebuilt = AXES | values, st.sampled_from([name for name in CALLED if "_rebuild" in name])
    calling = st.sampled_from([b"R", b"\x81"])
    begins_and_ends = st.sampled_from([(b"(", b"t"), (b"](", b"e"), (b"}(", b"u"), (b"\x8f(", b"\x90")])
    return st.one_of(
        st.builds(lambda name, parts, how: named(name) + many(*parts) + how, st.sampled_from(CALLED), several, calling),
        st.builds(
            lambda name, *parts: call(name, *parts[:-1], *parts[-1]),
            *(rebuilt, STORED | values, SMALL.map(number) | values, axes, axes, several),
        ),
        st.builds(tensor, TWO_AXES, TWO_AXES, st.integers(0, 4), STORED),
        st.builds(lambda value, state: value + state + b"b", values, values),
        st.builds(partial(call, SCALAR), values | st.just(NUMBER), values | st.just(data(b"12345678"))),
        st.builds(lambda parts, around: around[0] + b"".join(parts) + around[1], several, begins_and_ends),
        st.builds(bytes.__add__, values, st.sampled_from([*OPERATIONS, b"q\0", b"q\1"])),
    )


PROGRAMS = st.recursive(PLAIN, _more, max_leaves=12)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Checkpoints of one to four values, some of them with a few bytes changed."""
    values = draw(st.lists(PROGRAMS, min_size=1, max_size=4))
    content = draw(st.sampled_from([zipped, legacy]))(b"}(" + b"".join(text(f"x{i}") + v for i, v in enumerate(values)) + b"u")
    changed = bytearray(content)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


@settings(
    max_examples=int(os.environ.get("BEYONDCLS_FUZZ", "300")),
    derandomize="BEYONDCLS_FUZZ" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(files())
def test_any_program(reader, content):
    """Built of what the reader knows: nothing crashes, hangs or takes memory, and what is read is plain data."""
    outcome = reader.outcome(content)
    assert outcome == "read" or outcome.startswith("refused: "), outcome
