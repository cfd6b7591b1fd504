"""Forms of exchange one by one: what others read, what is hostile in each, and descriptions that were made to fit."""

import hashlib
import io
import json
import shutil
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import webdataset as wds
import xxhash

from store import FeatureStore, StoreError
from store.exchange import form_of, get_exchange
from store.exchange.exchange import _zarr_json, chosen_arrays, described_store, description_of
from store.format.layout import ATTRIBUTE
from store.format.reader import with_digest
from tests.pickled import Payload
from tests.store import exported as sets_to_export
from tests.store.conftest import put_at, same
from tests.store.exported import BYTES, PATCH, N, import_as, write_set

store, ready = sets_to_export.store, sets_to_export.ready


@pytest.fixture
def exported(ready, tmp_path):
    """Copies that a test may damage, by form."""

    def copied(form):
        source, copy = ready(form), tmp_path / f"copy-{form}"
        return copy if copy.exists() else Path((shutil.copytree if source.is_dir() else shutil.copy)(source, copy))

    return copied


def assert_refused(form, source, message):
    with pytest.raises(StoreError, match=message) as error:
        import_as(form, source, source.parent / "back")
    assert source.name in str(error.value)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def described(store):
    return json.loads(json.dumps(description_of("npy", store, list(store.arrays))))


class TestWhatOthersRead:
    def test_hdf5(self, store, ready):
        with h5py.File(ready("hdf5")) as file:
            for name, array in store.arrays.items():
                values = file[name]
                assert same(values[:], array.stored(np.arange(len(values))))
                assert (values.chunks, values.compression) == ((min(32, len(values)), *values.shape[1:]), None)
                assert json.loads(values.attrs["beyondcls"]) == described(store)["arrays"][name]
            assert json.loads(file.attrs["beyondcls"])["group"] == store.attributes

    def test_npy(self, store, ready):
        for name, array in store.arrays.items():
            read = np.load(ready("npy") / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            assert same(np.asarray(read), array.stored(np.arange(array.layout.shape[0])))
        assert json.loads((ready("npy") / "description.json").read_text()) == described(store)

    def test_webdataset(self, store, ready):
        tars = str(ready("webdataset") / "features-{000000..000002}.tar")
        samples = list(wds.WebDataset(tars, shardshuffle=False).decode())
        assert [sample["__key__"] for sample in samples] == [f"{row:09d}" for row in range(N)]
        for name, array in store.arrays.items():
            if not name.startswith("norm/"):
                read = np.stack([sample[name.replace("/", ".") + ".npy"] for sample in samples])
                assert same(read, array.stored(np.arange(N)))
            else:
                assert same(np.load(ready("webdataset") / f"{name}.npy"), array.stored(np.arange(5)))


def test_names_and_their_beginnings(tmp_path):
    store = FeatureStore.open(write_set(tmp_path / "int4", "int4"))
    assert chosen_arrays(store, ["patch"]) == [PATCH, f"{PATCH}-scale"]
    assert chosen_arrays(store, [PATCH, "norm"]) == [PATCH, f"{PATCH}-scale", "norm/weight", "norm/bias"]
    for unknown in ("patch/block4", "patches", "pat", ""):
        with pytest.raises(StoreError, match=f"has no .*'{unknown}'"):
            chosen_arrays(store, [unknown])


def test_forms(ready, tmp_path):
    with pytest.raises(StoreError, match="unknown form of exchange 'hdf'; did you mean 'hdf5'"):
        get_exchange("hdf")
    with pytest.raises(StoreError, match="there is no "):
        form_of(tmp_path / "none")
    assert form_of(Path(shutil.copy(ready("hdf5"), tmp_path / "features.bin"))).name == "hdf5"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.zeros((N - 1, 3, 6), "<f4")), r"\[69, 3, 6\] float32, described as \[70, 3, 6\] float16"),
        (npy(np.zeros((N, 3, 6), "<f2", order="F")), "Fortran order"),
        (npy(np.zeros((N, 3, 6), "<f2")) + b"x", r"has \d+ bytes, expected \d+"),
        (None, "cannot be read"),
    ],
    ids=["shape", "order", "longer", "missing"],
)
def test_npy_as_described(exported, content, message):
    source = exported("npy")
    (source / f"{PATCH}.npy").unlink() if content is None else (source / f"{PATCH}.npy").write_bytes(content)
    assert_refused("npy", source, message)


@pytest.mark.parametrize("name", ["features-000002.tar", "norm/bias.npy"])
def test_missing_files_and_members(exported, name):
    source = exported("webdataset")
    retar(source / "features-000002.tar", lambda members: members[:-1])
    assert_refused("webdataset", source, r"features-000002.tar .*it lacks cls/block5/view0")
    (source / name).unlink()
    assert_refused("webdataset", source, f"{name} cannot be read")


# -- descriptions: they come from anywhere, and their digests may have been made to fit --------------------------------


def vouched(description):
    """Make every digest of a description right again, as somebody would who means harm."""
    group = description["group"]
    for name, entry in description["arrays"].items():
        if name in group["arrays"]:
            group["arrays"][name] = xxhash.xxh3_128_hexdigest(_zarr_json(name, entry))
    spec = json.dumps(group["spec"], sort_keys=True, separators=(",", ":"))
    group["key"] = hashlib.sha256(spec.encode()).hexdigest()[:32]
    meta = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: group}}
    description["group"] = json.loads(with_digest(meta))["attributes"][ATTRIBUTE]
    return description


def also_called(name):
    return lambda d: (d["group"]["arrays"].update({name: "0"}), d["arrays"].update({name: d["arrays"][PATCH]}))


def without_images(description):
    for name in [name for name in description["arrays"] if "norm" not in name]:
        del description["arrays"][name], description["group"]["arrays"][name]


GROUP, SPEC_, ARRAYS = ("group",), ("group", "spec"), ("arrays", PATCH)
NOTE = {"row": 2, "id": "", "problem": ""}
WRONG_TYPES = [
    *[(GROUP, "encoder", 3), (GROUP, "classes", "cat"), (GROUP, "norm_eps", "0"), (GROUP, "problems", [1])],
    *[(GROUP, "invalid", [NOTE, NOTE]), *((GROUP, "invalid", [NOTE | change]) for change in ({"row": N}, {"id": 7}))],
    *[(SPEC_, "blocks", "35"), (SPEC_, "statistics", "cls"), (SPEC_, "transform", []), (SPEC_, "weights", 0)],
    *[(ARRAYS, "shape", "7"), (ARRAYS, "shape", [N, 3, -6]), (ARRAYS, "dtype", ["<f2"]), (ARRAYS, "dimension_names", "abc")],
    (ARRAYS, "shard_rows", 0),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (put_at(*way, name, value), f"wrong type or range in {'spec.' * (way == SPEC_)}{PATCH if way == ARRAYS else name}")
            for way, name, value in WRONG_TYPES
        ),
        (put_at("exchange", 2), "it has version 2, this program reads 1"),
        (put_at("form", "npz"), "it is of the form 'npz'"),
        (put_at("group", []), "does not describe"),
        (put_at(*GROUP, "invalid", 3), "does not describe"),
        (put_at(*SPEC_, "n_images", 71), "70 rows for 71 images"),
        (put_at(*SPEC_, "format_version", 1), "format version 1"),
        (put_at(*ARRAYS, "shape", [10**30, 3, 6]), "does not describe|rows or bytes"),
        (put_at(*ARRAYS, "dtype", "object"), "does not describe"),
        (put_at(*ARRAYS, "codec", "int8"), "int8 stored as float16"),
        (put_at(*ARRAYS, "shards", []), "rows or bytes of its shards"),
        (lambda d: d["arrays"].pop(BYTES), "it lacks 1 of its 8 arrays"),
        *((also_called(name), "outside") for name in ("../../x", "/x")),
        (put_at("arrays", "norm/bias", "dimension_names", ["x"]), "norm/bias in other .* axes"),
        (without_images, "none"),
    ],
)
def test_a_description_made_to_fit(store, change, message):
    description = described(store)
    change(description)
    with suppress(TypeError, ValueError, AttributeError, KeyError, OverflowError):  # nobody can vouch for some
        vouched(description)
    with pytest.raises(StoreError, match=message) as error:
        described_store("here/description.json", "npy", description)
    assert "here/description.json" in str(error.value)


def test_arrays_that_do_not_fit_each_other(store, tmp_path):
    description, other = described(store), replace(store.arrays[PATCH].layout, shard_rows=64)
    digest = {"xxh3_128": description["arrays"][PATCH]["shards"][0]["xxh3_128"]}
    shards = [digest | {"rows": list(other.rows(i)), "nbytes": other.nbytes(i)} for i in range(2)]
    description["arrays"][PATCH] |= {"shard_rows": 64, "shards": shards}
    with pytest.raises(StoreError, match="shards differ in rows"):
        described_store("x", "npy", vouched(description))
    description = described(FeatureStore.open(write_set(tmp_path / "int8", "int8")))
    del description["arrays"][f"{PATCH}-scale"], description["group"]["arrays"][f"{PATCH}-scale"]
    with pytest.raises(StoreError, match="scales that are missing"):
        described_store("x", "npy", vouched(description))


@pytest.mark.parametrize("form", ["hdf5", "npy", "webdataset"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"3"])
def test_any_bytes_as_a_description(exported, form, content):
    source = exported(form)
    if form == "hdf5":
        with h5py.File(source, "r+") as file:
            file.attrs["beyondcls"] = np.frombuffer(content or b"\0", np.uint8) if b"\xff" in content else content.decode()
    else:
        (source / "description.json").write_bytes(content)
    assert_refused(form, source, ".")


@pytest.mark.parametrize("tar_rows", [0, 31, "32"])
def test_tars_of_other_rows_than_a_shard(exported, tar_rows):
    file = exported("webdataset") / "description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tar_rows": tar_rows}))
    assert_refused("webdataset", file.parent, "expected 32")


# -- hostile files -----------------------------------------------------------------------------------------------------


def member_of(name, content, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, target
    return info, content


def retar(tar, change):
    with tarfile.open(tar) as file:
        members = [(info, source.read()) for info in file if (source := file.extractfile(info)) is not None]
    with tarfile.open(tar, "w") as file:
        for info, content in change(members):
            file.addfile(info, io.BytesIO(content))


FIRST, VALUE = "000000000.images.id.npy", npy(np.zeros(9, np.uint8))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        *((member_of(name, b"x"), f"the file member '{name}'") for name in ("../../../escaped.npy", "/tmp/escaped.npy")),
        (member_of("000000001.images.secret.npy", b"x"), "the file member '000000001.images.secret.npy'"),
        (member_of(FIRST, b"", tarfile.SYMTYPE, "/etc/passwd"), "the link or other member"),
        (member_of(FIRST, b"", tarfile.DIRTYPE), "the link or other member"),
        (member_of(FIRST, b"x" * 9000), "has 9000 bytes for 9 of values"),
        (member_of(FIRST, b"x" * 20), "no header of a .npy file"),
        (member_of(FIRST, npy(np.zeros(10, np.uint8))), r"holds \[10\] uint8, described as \[9\] uint8"),
        (member_of(FIRST, npy(np.zeros(9, "<i2"))), r"holds \[9\] int16, described as \[9\] uint8"),
        (member_of(FIRST, VALUE + b"x"), "holds 10 bytes of values, expected 9"),
        *((member_of(f"{row:09}.images.id.npy", VALUE), f"row {row} of images/id appears") for row in (32, 1)),
    ],
)
def test_members_of_tars(exported, tmp_path, member, message):
    tar = exported("webdataset") / "features-000000.tar"
    retar(tar, lambda members: [member, *members[1:]])
    assert_refused("webdataset", tar.parent, f"features-000000.tar.*{message}")
    assert not list(tmp_path.parent.rglob("escaped*"))


@pytest.mark.parametrize(
    "headers",
    [[("x", 1 << 40, tarfile.GNUTYPE_LONGNAME)], [("x", 8, tarfile.XHDTYPE)] * 3000],
    ids=["a name of a terabyte", "fields of fields"],
)
def test_headers_that_state_what_is_not_there(exported, headers):
    blocks, source = [], exported("webdataset")
    for name, size, kind in headers:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        blocks += [info.tobuf(tarfile.GNU_FORMAT), b"8 a=bcd\n".ljust(512, b"\0")]
    (source / "features-000000.tar").write_bytes(b"".join(blocks))
    assert_refused("webdataset", source, r"features-000000\.tar cannot be read")


def test_pickles_are_not_opened(exported, tmp_path):
    evil = np.empty(N, object)
    evil[:] = [Payload(tmp_path / "mark") for _ in range(N)]
    (exported("npy") / "images/label.npy").write_bytes(npy(evil))
    assert_refused("npy", exported("npy"), r"label.npy cannot be read .*Python objects")
    member = member_of("000000000.images.label.npy", npy(evil[:1]))
    retar(exported("webdataset") / "features-000000.tar", lambda members: [member, *members[1:]])
    assert_refused("webdataset", exported("webdataset"), "Python objects")
    assert not (tmp_path / "mark").exists()


def virtual(file, values, other):
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(other, PATCH, values.shape)
    file.create_virtual_dataset(PATCH, layout)


HDF5 = {
    "another dtype": (lambda f, v, o: f.create_dataset(PATCH, data=v.astype("<f4")), "float32, described as .* float16"),
    "soft link": (lambda f, v, o: f.update({"copy": v, PATCH: h5py.SoftLink("/copy")}), "is a link"),
    "external link": (lambda f, v, o: f.update({PATCH: h5py.ExternalLink(o, PATCH)}), "is a link"),
    "external values": (
        lambda f, v, o: f.create_dataset(PATCH, v.shape, "<f2", external=[(o, 0, v.nbytes)]),
        "no values of its",
    ),
    "virtual": (virtual, "no values of its own"),
    "never written": (lambda f, v, o: f.create_dataset(PATCH, v.shape, "<f2", chunks=(32, 3, 6)), "not whole"),
    "compressed": (lambda f, v, o: f.create_dataset(PATCH, data=np.zeros_like(v), compression="gzip"), "not whole"),
    "group": (lambda f, v, o: f.create_group(PATCH), "no values of its own"),
}


@pytest.mark.parametrize("kind", HDF5)
def test_hdf5_has_its_own_values(exported, ready, tmp_path, kind):
    (change, message), other = HDF5[kind], shutil.copy(ready("hdf5"), tmp_path / "other.h5")
    with h5py.File(exported("hdf5"), "r+") as file:
        attribute, values = file[PATCH].attrs["beyondcls"], file[PATCH][:]
        del file[PATCH]
        change(file, values, str(other))
        if "link" not in kind:
            file[PATCH].attrs["beyondcls"] = attribute
    assert_refused("hdf5", exported("hdf5"), message)
