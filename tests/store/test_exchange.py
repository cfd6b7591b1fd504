"""Forms of exchange one by one: what others read, what is hostile in each, and descriptions that were made to fit."""

import hashlib
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import webdataset as wds
import xxhash

from store import FeatureStore, StoreError
from store.exchange import form_of, get_exchange
from store.exchange.exchange import _zarr_json, chosen_arrays, described_store, description_of
from store.exchange.webdataset import WebDataset
from store.format.layout import ATTRIBUTE
from store.format.reader import with_digest
from tests.folders import files
from tests.pickled import Payload
from tests.store import exported as sets_to_export
from tests.store.conftest import put_at, same
from tests.store.exported import BYTES, PATCH, N, import_as, write_set

store, ready = sets_to_export.store, sets_to_export.ready


@pytest.fixture
def exported(form: str, ready: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    source = ready(form)
    return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / source.name))


FORMS = pytest.mark.parametrize("form", ["hdf5", "npy", "webdataset"])


class TestWhatOthersRead:
    def test_hdf5(self, store, ready) -> None:
        with h5py.File(ready("hdf5")) as file:
            for name, array in store.arrays.items():
                values = file[name]
                assert same(values[:], array.stored(np.arange(len(values))))
                assert (values.chunks, values.compression) == ((min(32, len(values)), *values.shape[1:]), None)
                description = json.loads(values.attrs["beyondcls"])
                assert (description["codec"], description["shard_rows"]) == (array.layout.codec, array.layout.shard_rows)
                assert description["dimension_names"] == list(array.layout.dimensions)
            assert json.loads(file.attrs["beyondcls"])["group"] == store.attributes

    def test_npy(self, store, ready) -> None:
        for name, array in store.arrays.items():
            read = np.load(ready("npy") / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            assert same(np.asarray(read), array.stored(np.arange(array.layout.shape[0])))
        description = json.loads((ready("npy") / "description.json").read_text())
        assert description["group"] == store.attributes
        assert description["arrays"][PATCH]["codec"] == "float16"

    def test_webdataset(self, store, ready) -> None:
        tars = str(ready("webdataset") / "features-{000000..000002}.tar")
        samples = list(wds.WebDataset(tars, shardshuffle=False).decode())
        assert [sample["__key__"] for sample in samples] == [f"{row:09d}" for row in range(N)]
        for name, array in store.arrays.items():
            if not name.startswith("norm/"):
                read = np.stack([sample[name.replace("/", ".") + ".npy"] for sample in samples])
                assert same(read, array.stored(np.arange(N)))
            else:
                assert same(np.load(ready("webdataset") / f"{name}.npy"), array.stored(np.arange(5)))

    @pytest.mark.parametrize(("tar_rows", "n_tars"), [(10, 9), (32, 3), (1000, 3)])
    def test_tars_of_fewer_images(self, store, tmp_path: Path, tar_rows: int, n_tars: int) -> None:
        WebDataset(tar_rows).export(store, tmp_path / "x", list(store.arrays))
        assert len(list((tmp_path / "x").glob("*.tar"))) == n_tars
        import_as("webdataset", tmp_path / "x", tmp_path / "back")
        assert files(tmp_path / "back") == files(store.path)
        told: list[int] = []
        WebDataset(tar_rows).export(store, tmp_path / "one", [PATCH], told.append)
        assert told == [1, 1, 1], "its shards"


class TestPartOfASet:
    def test_names_and_their_beginnings(self, tmp_path: Path) -> None:
        store = FeatureStore.open(write_set(tmp_path / "int4", "int4"))
        assert chosen_arrays(store, ["patch"]) == [PATCH, f"{PATCH}-scale"]
        assert chosen_arrays(store, [PATCH, "norm"]) == [PATCH, f"{PATCH}-scale", "norm/weight", "norm/bias"]
        with pytest.raises(StoreError, match="has no array 'patch/block4'"):
            chosen_arrays(store, ["patch/block4"])
        for unknown in ("patches", "pat", "patch/block5/view", ""):
            with pytest.raises(StoreError, match=f"has no .*'{unknown}'"):
                chosen_arrays(store, [unknown])


class TestDamage:
    @FORMS
    def test_another_dtype_or_shape(self, form: str, exported: Path, tmp_path: Path) -> None:
        def changed(rows: int) -> None:
            if form == "hdf5":
                with h5py.File(exported, "r+") as file:
                    attribute = file[PATCH].attrs["beyondcls"]
                    del file[PATCH]
                    file[PATCH] = np.zeros((rows, 3, 6), "<f4")
                    file[PATCH].attrs["beyondcls"] = attribute
            elif form == "npy":
                np.save(exported / f"{PATCH}.npy", np.zeros((rows, 3, 6), "<f4"))
            else:
                _retar(
                    exported / "features-000000.tar",
                    _replaced(f"000000000.{PATCH.replace('/', '.')}.npy", _npy(np.zeros((3, 6), "<i2"))),
                )

        changed(N - 1)
        with pytest.raises(StoreError, match=r"described as \[(70, )?3, 6\] float16"):
            import_as(form, exported, tmp_path / "back")

    def test_npy_of_the_same_bytes_or_more(self, ready, tmp_path: Path) -> None:
        source = shutil.copytree(ready("npy"), tmp_path / "set")
        file = source / f"{PATCH}.npy"
        whole = file.read_bytes()
        np.save(file, np.load(file).reshape(N, 6, 3))
        with pytest.raises(StoreError, match=r"holds \[70, 6, 3\] float16, described as \[70, 3, 6\]"):
            import_as("npy", source, tmp_path / "back")
        np.save(file, np.asfortranarray(np.load(file).reshape(N, 3, 6)))
        with pytest.raises(StoreError, match="Fortran order"):
            import_as("npy", source, tmp_path / "back")
        file.write_bytes(whole + b"x")
        with pytest.raises(StoreError, match=f"has {len(whole) + 1} bytes, expected {len(whole)}"):
            import_as("npy", source, tmp_path / "back")

    def test_missing_files(self, ready, tmp_path: Path) -> None:
        for form, name in (("npy", f"{PATCH}.npy"), ("webdataset", "features-000001.tar"), ("webdataset", "norm/bias.npy")):
            source = shutil.copytree(ready(form), tmp_path / name.replace("/", "_"))
            (source / name).unlink()
            with pytest.raises(StoreError, match=f"{name} cannot be read"):
                import_as(form, source, tmp_path / "back")
            shutil.rmtree(tmp_path / ".staging", ignore_errors=True)


def _vouched(description: dict[str, Any]) -> None:
    """Make every digest of a description right again, as somebody would who means harm."""
    group = description["group"]
    for name, entry in description["arrays"].items():
        if name in group["arrays"]:
            group["arrays"][name] = xxhash.xxh3_128_hexdigest(_zarr_json(name, entry))
    spec = json.dumps(group["spec"], sort_keys=True, separators=(",", ":"))
    group["key"] = hashlib.sha256(spec.encode()).hexdigest()[:32]
    meta = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: group}}
    description["group"] = json.loads(with_digest(meta))["attributes"][ATTRIBUTE]


def also_called(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda d: (d["group"]["arrays"].update({name: "0"}), d["arrays"].update({name: d["arrays"][PATCH]}))


GROUP, SPEC_, ARRAYS = ("group",), ("group", "spec"), ("arrays", PATCH)


class TestDescription:
    """It comes from anywhere, and its digests may have been made to fit."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (put_at("exchange", 2), "it has version 2, this program reads 1"),
            (put_at("form", "npz"), "it is of the form 'npz'"),
            (put_at("group", []), "does not describe"),
            (put_at("arrays", {}), "it lacks 8 of its 8 arrays"),
            (put_at(*GROUP, "encoder", 3), "wrong type or range in encoder"),
            (put_at(*GROUP, "classes", {"cat": 1}), "wrong type or range in classes"),
            (put_at(*GROUP, "classes", "cat"), "wrong type or range in classes"),
            (put_at(*GROUP, "norm_eps", "0"), "wrong type or range in norm_eps"),
            (put_at(*GROUP, "problems", [1]), "wrong type or range in problems"),
            (put_at(*GROUP, "invalid", [{"row": N, "id": "", "problem": ""}]), "wrong type or range in invalid"),
            (put_at(*GROUP, "invalid", [{"row": -1, "id": "", "problem": ""}]), "wrong type or range in invalid"),
            (put_at(*GROUP, "invalid", [{"row": 2, "id": "", "problem": ""}] * 2), "wrong type or range in invalid"),
            (put_at(*GROUP, "invalid", [{"row": 2, "id": 7, "problem": ""}]), "wrong type or range in invalid"),
            (put_at(*GROUP, "invalid", [{"row": True, "id": "", "problem": ""}]), "wrong type or range in invalid"),
            (put_at(*GROUP, "invalid", 3), "does not describe"),
            (put_at(*SPEC_, "n_images", "70"), "does not describe"),
            (put_at(*SPEC_, "n_images", 71), "70 rows for 71 images"),
            (put_at(*SPEC_, "blocks", "35"), "wrong type or range in spec.blocks"),
            (put_at(*SPEC_, "statistics", "cls"), "wrong type or range in spec.statistics"),
            (put_at(*SPEC_, "transform", []), "wrong type or range in spec.transform"),
            (put_at(*SPEC_, "weights", 0), "wrong type or range in spec.weights"),
            (put_at(*SPEC_, "more", 0), "wrong fields"),
            (put_at(*SPEC_, "format_version", 1), "format version 1"),
            (put_at(*ARRAYS, "shape", [N, 3]), "rows or bytes of its shards"),
            (put_at(*ARRAYS, "shape", "7"), f"wrong type or range in {PATCH}"),
            (put_at(*ARRAYS, "shape", [N, 3, -6]), f"wrong type or range in {PATCH}"),
            (put_at(*ARRAYS, "shape", [10**30, 3, 6]), "does not describe|rows or bytes"),
            (put_at(*ARRAYS, "dtype", "object"), "does not describe"),
            (put_at(*ARRAYS, "dtype", ["<f2"]), f"wrong type or range in {PATCH}"),
            (put_at(*ARRAYS, "dtype", "float32"), "float16 stored as float32|rows or bytes"),
            (put_at(*ARRAYS, "codec", "int8"), "int8 stored as float16"),
            (put_at(*ARRAYS, "codec", "zip"), "unknown dtype 'zip'"),
            (put_at(*ARRAYS, "dimension_names", "abc"), f"wrong type or range in {PATCH}"),
            (put_at(*ARRAYS, "shard_rows", 0), f"wrong type or range in {PATCH}"),
            (put_at(*ARRAYS, "chunk_rows", 5), "shards on axis 0 only"),
            (put_at(*ARRAYS, "shards", []), "rows or bytes of its shards"),
            (put_at(*ARRAYS, "shards", 3), "does not describe"),
            (lambda d: d["arrays"].pop(BYTES), "it lacks 1 of its 8 arrays"),
            *((also_called(name), "outside") for name in ("../../x", "/x")),
            (put_at("arrays", "norm/bias", "dimension_names", ["x"]), "norm/bias in other .* axes"),
            (
                lambda d: [d["arrays"].pop(n) and d["group"]["arrays"].pop(n) for n in list(d["arrays"]) if "norm" not in n],
                "none",
            ),
        ],
    )
    def test_made_to_fit(self, store, change: Callable[[dict[str, Any]], Any], message: str) -> None:
        description = json.loads(json.dumps(description_of("npy", store, list(store.arrays))))
        change(description)
        with suppress(TypeError, ValueError, AttributeError, KeyError, OverflowError):  # nobody can vouch for some
            _vouched(description)
        with pytest.raises(StoreError, match=message) as error:
            described_store("here/description.json", "npy", description)
        assert "here/description.json" in str(error.value)

    def test_another_shard_size_of_one_array(self, store) -> None:
        description = json.loads(json.dumps(description_of("npy", store, list(store.arrays))))
        other = replace(store.arrays[PATCH].layout, shard_rows=64)
        shards = [
            {**description["arrays"][PATCH]["shards"][0], "rows": list(other.rows(i)), "nbytes": other.nbytes(i)}
            for i in range(2)
        ]
        description["arrays"][PATCH] |= {"shard_rows": 64, "shards": shards}
        _vouched(description)
        with pytest.raises(StoreError, match="shards differ in rows"):
            described_store("x", "npy", description)

    def test_scales_that_are_left_out(self, tmp_path: Path) -> None:
        store = FeatureStore.open(write_set(tmp_path / "int8", "int8"))
        description = json.loads(json.dumps(description_of("npy", store, list(store.arrays))))
        del description["arrays"][f"{PATCH}-scale"], description["group"]["arrays"][f"{PATCH}-scale"]
        _vouched(description)
        with pytest.raises(StoreError, match="scales that are missing"):
            described_store("x", "npy", description)

    def test_unvouched_changes_are_noticed(self, store) -> None:
        for change in (
            put_at(*GROUP, "encoder", "other"),
            put_at(*ARRAYS, "dimension_names", ["a", "b", "c"]),
            put_at(*GROUP, "x", 1),
        ):
            description = json.loads(json.dumps(description_of("npy", store, list(store.arrays))))
            change(description)
            with pytest.raises(StoreError, match="was changed since"):
                described_store("x", "npy", description)

    @FORMS
    @pytest.mark.parametrize("content", [b"", b"[1", b"\xff\xfe", b"[" * 100_000, b"null", b"3", b'"x"'])
    def test_any_bytes(self, exported: Path, form: str, content: bytes, tmp_path: Path) -> None:
        if form == "hdf5":
            with h5py.File(exported, "r+") as file:
                file.attrs["beyondcls"] = np.frombuffer(content or b"\0", np.uint8) if b"\xff" in content else content.decode()
        else:
            (exported / "description.json").write_bytes(content)
        with pytest.raises(StoreError, match=exported.name):
            import_as(form, exported, tmp_path / "back")


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


Member = tuple[tarfile.TarInfo, bytes]


def _member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE, target: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, target
    return info, content


def _retar(tar: Path, change: Callable[[list[Member]], list[Member]]) -> None:
    with tarfile.open(tar) as file:
        members = [(info, source.read()) for info in file if (source := file.extractfile(info)) is not None]
    with tarfile.open(tar, "w") as file:
        for info, content in change(members):
            file.addfile(info, io.BytesIO(content))


def _replaced(name: str, content: bytes) -> Callable[[list[Member]], list[Member]]:
    def change(members: list[Member]) -> list[Member]:
        assert name in [info.name for info, _ in members]
        return [_member(name, content) if info.name == name else (info, old) for info, old in members]

    return change


class TestHostile:
    FIRST = "000000000.images.id.npy"

    @pytest.mark.parametrize(
        ("member", "message"),
        [
            (_member("../../../escaped.npy", b"x"), "the file member '../../../escaped.npy'"),
            (_member("/tmp/escaped.npy", b"x"), "the file member '/tmp/escaped.npy'"),
            (_member("000000001.images.secret.npy", b"x"), "the file member '000000001.images.secret.npy'"),
            (_member(FIRST, b"", tarfile.SYMTYPE, "/etc/passwd"), "the link or other member"),
            (_member(FIRST, b"", tarfile.LNKTYPE, "000000001.images.id.npy"), "the link or other member"),
            (_member(FIRST, b"", tarfile.DIRTYPE), "the link or other member"),
            (_member(FIRST, b"x" * 9000), "has 9000 bytes for 9 of values"),
            (_member(FIRST, b"x" * 20), "no header of a .npy file"),
            (_member(FIRST, _npy(np.zeros(10, np.uint8))), r"holds \[10\] uint8, described as \[9\] uint8"),
            (_member(FIRST, _npy(np.zeros(9, np.uint8))[:-1]), "holds 8 bytes of values, expected 9"),
            (_member(FIRST, _npy(np.zeros(9, np.uint8)) + b"x"), "holds 10 bytes of values, expected 9"),
            *(
                (_member(f"{row:09}.images.id.npy", _npy(np.zeros(9, np.uint8))), f"row {row} of images/id appears")
                for row in (32, 1)
            ),
        ],
    )
    def test_tar_members(self, ready, tmp_path: Path, member: Member, message: str) -> None:
        source = shutil.copytree(ready("webdataset"), tmp_path / "set")
        _retar(source / "features-000000.tar", lambda members: [member, *members[1:]])
        with pytest.raises(StoreError, match=message) as error:
            import_as("webdataset", source, tmp_path / "back")
        assert "features-000000.tar" in str(error.value)
        assert not list(tmp_path.parent.rglob("escaped*"))

    @pytest.mark.parametrize(
        "headers",
        [[("x", 1 << 40, tarfile.GNUTYPE_LONGNAME)], [("x", 8, tarfile.XHDTYPE)] * 3000],
        ids=["a name of a terabyte", "fields of fields"],
    )
    def test_headers_that_state_what_is_not_there(self, ready, tmp_path: Path, headers: list[tuple[str, int, bytes]]) -> None:
        source = shutil.copytree(ready("webdataset"), tmp_path / "set")
        blocks = []
        for name, size, kind in headers:
            info = tarfile.TarInfo(name)
            info.size, info.type = size, kind
            blocks += [info.tobuf(tarfile.GNU_FORMAT), b"8 a=bcd\n".ljust(512, b"\0") if size > 0 else b""]
        (source / "features-000000.tar").write_bytes(b"".join(blocks))
        with pytest.raises(StoreError, match=r"features-000000\.tar cannot be read \(.*; export the feature set again"):
            import_as("webdataset", source, tmp_path / "back")

    def test_a_missing_member(self, ready, tmp_path: Path) -> None:
        source = shutil.copytree(ready("webdataset"), tmp_path / "set")
        _retar(source / "features-000002.tar", lambda members: members[:-1])
        with pytest.raises(StoreError, match=r"features-000002.tar cannot be read \(it lacks cls/block5/view0"):
            import_as("webdataset", source, tmp_path / "back")

    @pytest.mark.parametrize("tar_rows", [0, 33, "32", True, None])
    def test_tar_rows(self, ready, tmp_path: Path, tar_rows: Any) -> None:
        source = shutil.copytree(ready("webdataset"), tmp_path / "set")
        description = json.loads((source / "description.json").read_text()) | {"tar_rows": tar_rows}
        (source / "description.json").write_text(json.dumps(description))
        with pytest.raises(StoreError, match="expected 1 to 32"):
            import_as("webdataset", source, tmp_path / "back")

    def test_pickles_are_not_opened(self, ready, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        evil = np.empty(N, object)
        evil[:] = [Payload(mark) for _ in range(N)]
        assert pickle.dumps(evil)
        npy = shutil.copytree(ready("npy"), tmp_path / "npy")
        (npy / "images/label.npy").write_bytes(_npy(evil))
        with pytest.raises(StoreError, match=r"label.npy cannot be read .*Python objects"):
            import_as("npy", npy, tmp_path / "back")
        tars = shutil.copytree(ready("webdataset"), tmp_path / "tars")
        _retar(tars / "features-000000.tar", _replaced("000000000.images.label.npy", _npy(evil[:1])))
        with pytest.raises(StoreError, match="Python objects"):
            import_as("webdataset", tars, tmp_path / "back")
        assert not mark.exists()

    @pytest.mark.parametrize(
        "kind", ["soft", "external link", "external values", "virtual", "never written", "compressed", "group"]
    )
    def test_hdf5_has_its_own_values(self, ready, tmp_path: Path, kind: str) -> None:
        source = Path(shutil.copy(ready("hdf5"), tmp_path / "set.h5"))
        other = Path(shutil.copy(source, tmp_path / "other.h5"))
        with h5py.File(source, "r+") as file:
            attribute, values = file[PATCH].attrs["beyondcls"], file[PATCH][:]
            del file[PATCH]
            if kind == "soft":
                file["copy"] = values
                file[PATCH] = h5py.SoftLink("/copy")
            elif kind == "external link":
                file[PATCH] = h5py.ExternalLink(str(other), PATCH)
            elif kind == "external values":
                file.create_dataset(PATCH, values.shape, "<f2", external=[(str(other), 0, values.nbytes)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout(values.shape, "<f2")
                layout[:] = h5py.VirtualSource(str(other), PATCH, values.shape)
                file.create_virtual_dataset(PATCH, layout)
            elif kind == "never written":
                file.create_dataset(PATCH, values.shape, "<f2", chunks=(32, 3, 6))
            elif kind == "compressed":
                file.create_dataset(PATCH, data=np.zeros_like(values), chunks=(32, 3, 6), compression="gzip")
            else:
                file.create_group(PATCH)
            if "link" not in kind and kind != "soft":
                file[PATCH].attrs["beyondcls"] = attribute
        expected = {"soft": "is a link", "external link": "is a link", "never written": "not whole", "compressed": "not whole"}
        with pytest.raises(StoreError, match=expected.get(kind, "no values of its own")):
            import_as("hdf5", source, tmp_path / "back")


class TestForms:
    def test_unknown(self) -> None:
        with pytest.raises(StoreError, match="unknown form of exchange 'hdf'; did you mean 'hdf5'"):
            get_exchange("hdf")

    def test_seen_from_the_source(self, ready, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="there is no "):
            form_of(tmp_path / "none")
        with pytest.raises(StoreError, match=r"expected hdf5 \(a file.*--from"):
            form_of(tmp_path)
        renamed = Path(shutil.copy(ready("hdf5"), tmp_path / "features.bin"))
        assert form_of(renamed).name == "hdf5"


@pytest.mark.parametrize("form", ["hdf5", "npy"])
def test_what_gets_the_name_meanwhile_stays(form: str, written: Path, tmp_path: Path) -> None:
    """A file or a folder."""
    store, out = FeatureStore.open(written), tmp_path / "out"

    def put(_: int) -> None:
        if form == "npy":
            out.mkdir(exist_ok=True)
        (out / "mine" if form == "npy" else out).write_text("mine")

    with pytest.raises(StoreError, match="was made by others meanwhile, and stays"):
        get_exchange(form).export(store, out, ["images/label"], put)
    assert (files(out) or out.read_text()) in ({"mine": b"mine"}, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
