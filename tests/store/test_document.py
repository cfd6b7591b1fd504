"""docs/store-format.md says what the code does."""

import ast
import hashlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter
from store.codecs import CODECS, SCALE
from store.format.layout import (
    ATTRIBUTE,
    CHECKED_NBYTES,
    CHUNK_ROWS,
    DIGEST,
    GROUP,
    KINDS,
    flat_layout,
    groups_of,
    shard_rows_of,
)
from store.format.layout import DIMENSIONS as FLAT
from store.format.pretraining import FAMILIES
from store.format.spec import FORMAT_VERSION
from store.format.unfinished import WRITING, is_stub, write_stub
from store.moving.receipt import ArrayReceipt, Receipt
from store.moving.transfer import PULLED
from store.truths import rle
from store.writing import claims
from tests.features import write_features
from tests.folders import files
from tests.store.conftest import CONSTANTS, SPEC, layouts, same, unit_of
from tests.truths import instances_of, with_truths

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/store-format.md").read_text()


def _tables(heading: str) -> list[list[dict[str, str]]]:
    """Tables of a section, subsections left out: rows by column name, backticks removed."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", TEXT, flags=re.M | re.S)
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", section, flags=re.M):
        head, _, *rows = ([c.strip().replace("`", "") for c in line.strip("|").split("|")] for line in block.splitlines())
        tables.append([dict(zip(head, row, strict=True)) for row in rows])
    return tables


def _fields(table: list[dict[str, str]]) -> list[str]:
    return [row["Field"] for row in table]


def _attributes(path: Path, name: str = "") -> dict[str, Any]:
    return json.loads((path / name / "zarr.json").read_text())["attributes"][ATTRIBUTE]


def _fits(value: Any, described: str) -> bool:
    """Whether a JSON value is of the type that a table names."""
    kinds = {"string": str, "integer": int, "object": dict, "number": float, "null": type(None)}
    if described == "two integers":
        return isinstance(value, list) and [type(v) for v in value] == [int, int]
    return any(
        isinstance(value, list) and all(_fits(v, kind.removeprefix("list of ").removesuffix("s")) for v in value)
        if kind.startswith("list of ")
        else type(value) is kinds[kind]
        for kind in described.split(" or ")
    )


def _extract_source() -> ast.Module:
    """Parsed, not imported: extraction needs timm, the store does not."""
    files = sorted((ROOT / "extract").rglob("*.py"))
    return ast.Module([node for file in files for node in ast.parse(file.read_text()).body], [])


def test_constants() -> None:
    top = re.search(r"(?:^\|.*\|\n)+", TEXT, flags=re.M)
    assert top
    rows = [[c.strip().strip("`") for c in line.strip("|").split("|")] for line in top[0].splitlines()[2:]]
    assert dict(rows) == {
        "format version": str(FORMAT_VERSION),
        "rows of a chunk": str(CHUNK_ROWS),
        "bytes of rows that share a digest, at least": str(CHECKED_NBYTES),
        "attribute that holds ours": ATTRIBUTE,
        "what writers keep": WRITING,
    }
    assert TEXT.startswith(f"# Store format, version {FORMAT_VERSION}\n")


def test_description() -> None:
    (table,) = _tables("Description")
    assert _fields(table) == [f.name for f in fields(FeatureSpec)]
    described = replace(SPEC, truths={"segmentation": "0" * 32}, drop_path=0.1).to_dict()
    assert [row["Field"] for row in table if not _fits(described[row["Field"]], row["Type"])] == []


@pytest.mark.parametrize("name", [f.name for f in fields(FeatureSpec)])
def test_what_is_in_the_encoder_key(name: str) -> None:
    (table,) = _tables("Description")
    changed = FeatureSpec(**{**{f.name: getattr(SPEC, f.name) for f in fields(FeatureSpec)}, name: "changed"})
    stated = {row["Field"]: row["In the encoder key"] for row in table}[name]
    assert stated == ("no" if changed.encoder_key == SPEC.encoder_key else "yes")


def test_group_attributes(written: Path) -> None:
    (table,) = _tables("Group attributes")
    stored = _attributes(written)
    assert _fields(table) == list(stored)
    assert [row["Field"] for row in table if not _fits(stored[row["Field"]], row["Type"])] == []
    stated = {row["Field"]: row["Meaning"] for row in table}["invalid"]
    assert stated.endswith(", ".join(stored["invalid"][0]))


def test_array_attributes(written: Path) -> None:
    array, shard = _tables("Array attributes")[:2]
    for name in FeatureStore.open(written).arrays:
        stored = _attributes(written, name)
        codec = next((a.codec for a in layouts() if a.name == name), None)
        assert [field for field in _fields(array) if field != "codec" or codec] == list(stored)
        assert stored.get("codec") == codec
        for record in stored["shards"]:
            assert _fields(shard) == list(record)
            assert [row["Field"] for row in shard if not _fits(record[row["Field"]], row["Type"])] == []


def test_names_and_shapes(written: Path) -> None:
    """Every array of the table is in the test set, and the other way round; kinds are those of the code."""
    (table,) = _tables("Folder")
    store = FeatureStore.open(written)
    n, t, d = store.tokens("patch").shape
    sizes = {"N": n, "T": t, "D": d, "W": 9, "R": 2, "L": 6, "H": 2, "2": 2, "16": 16}
    named_arrays = set()
    for row in table:
        pattern = row["Array"].replace("{B}", r"\d+").replace("{V}", r"\d+").replace("{NAME}", r"\w+")
        names = [name for name in store.arrays if re.fullmatch(pattern, name)]
        assert names, row
        named_arrays |= set(names)
        for array in (store.array(name) for name in names):
            assert array.shape == tuple(sizes[s] for s in row["Shape"].split(", "))
            assert array.dtype == (
                store.spec.dtype if row["dtype"] in ("tokens", "vectors", "summaries", "maps") else row["dtype"]
            )
            meta = json.loads((written / array.name / "zarr.json").read_text())
            assert meta["dimension_names"] == row["Dimensions"].split(", ")
    assert named_arrays == set(store.arrays)
    assert list(dict.fromkeys(row["Array"].split("/")[0] for row in table)) == list(KINDS)
    assert all((written / group / "zarr.json").read_bytes() == GROUP for group in groups_of(list(store.arrays)))
    assert set(KINDS) < set(groups_of(list(store.arrays)))


def test_extraction_names_dimensions_and_dtypes_as_the_table() -> None:
    stated = {
        row["Array"]: row
        for section in ("Folder", "Views", "Labels and boxes", "Truths")
        for table in _tables(section)
        for row in table
        if row["Array"] not in FLAT
    }
    source = _extract_source()
    (dimensions,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DIMENSIONS"
    )
    by_kind = {name.split("/")[0]: tuple(row["Dimensions"].split(", ")) for name, row in stated.items()}
    assert dimensions == {kind: by_kind[kind] for kind in dimensions}
    images = {}
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ArrayLayout":
            name = ast.unparse(node.args[0]).removeprefix("f").strip("'").replace("{view}", "{V}").replace("DIGEST", DIGEST)
            if name.startswith("images/"):
                images[name] = (ast.literal_eval(node.args[2]), ast.literal_eval(node.args[3]))
    assert images == {
        name: (row["dtype"], tuple(row["Dimensions"].split(", "))) for name, row in stated.items() if name.startswith("images/")
    }


def test_truths(tmp_path: Path) -> None:
    """Names, shapes, dtypes and dimensions are those of the table, and masks are what the text says."""
    (table,) = _tables("Truths")
    stated = {row["Array"].replace("{V}", "0"): row for row in table}
    maps = [np.array([[0, 1], [-1, 1], [0, 0]], np.int16), np.full((1, 2), -1, np.int16)]
    masks = instances_of(np.stack([maps[0] == 1]), [2])
    plain = write_features(tmp_path / "plain", n=2)
    given = {"maps": maps, "map_classes": ("a", "b"), "instances": [masks, []], "instance_classes": ("x", "y", "z")}
    store = with_truths(plain, tmp_path / "set", **given)  # type: ignore[arg-type]
    of_set = {name for name in store.arrays if name.split("/")[1] in ("segmentation", "instances", "patch_label")}
    assert of_set == set(stated)
    assert {name for name in stated if store.arrays[name].layout.dimensions[0] != "image"} == set(FLAT)
    for name in of_set:
        array, row = store.arrays[name], stated[name]
        s = len(store.array(f"images/{name.split('/')[1]}/label").all()) if "patch" not in name else 0
        n_bytes = array.shape[0] if name.endswith("counts") else 0
        sizes = {"N": 2, "N + 1": 3, "S": s, "S + 1": s + 1, "4": 4, "B": n_bytes, "T": store.tokens("patch").shape[1]}
        assert array.shape == tuple(sizes[part] for part in row["Shape"].split(", ")), name
        assert (array.dtype.name, ", ".join(array.layout.dimensions)) == (row["dtype"], row["Dimensions"])
    assert rle.encode(np.stack([maps[0] == 1])) == [b"321"], "runs 3, 2, 1, a byte each"
    (formula,) = re.findall(r"C = (min\(n, max\(1, .*?\))\) rows", TEXT)
    for n, b in ((10, 4), (70_000, 1), (9_000_000, 16), (3, 1 << 20)):
        chunk_rows = eval(formula.replace("⌊65536 / b⌋", "65536 // b") + ")", {"min": min, "max": max, "n": n, "b": b})
        layout = flat_layout("x", (n, b), "uint8")
        assert (layout.chunk_rows, layout.shard_rows) == (chunk_rows, chunk_rows * min(1024, -(-n // chunk_rows)))


def test_digest_of_truths(tmp_path: Path) -> None:
    """The text, once more in code."""
    maps = [np.zeros((3, 3), np.int16)] * 2
    store = with_truths(write_features(tmp_path / "plain", n=2), tmp_path / "set", maps=maps, map_classes=("a", "é"))
    content = json.dumps(["segmentation", "a", "é"]).encode()
    for last in ("counts", "first", "label", "start"):
        values = store.array(f"images/segmentation/{last}").all()
        content += json.dumps([last, values.dtype.name, *values.shape]).encode() + values.tobytes()
    assert store.spec.truths == {"segmentation": hashlib.sha256(content).hexdigest()[:32]}
    assert store.attributes["truth_classes"] == {"segmentation": ["a", "é"]}


def test_families_are_those_of_the_code() -> None:
    (families,) = re.findall(r"^- `family`, a string: (.*?)[;.]", TEXT, flags=re.M | re.S)
    assert tuple(re.findall("`(.*?)`", families.replace("\n  ", " "))) == FAMILIES


def test_extraction_gives_the_other_attributes() -> None:
    (table,) = _tables("Group attributes")
    (given,) = (
        [ast.literal_eval(key) for key in node.body[-1].value.keys if key]
        for node in ast.walk(_extract_source())
        if isinstance(node, ast.FunctionDef) and node.name == "attributes_of"
    )
    assert sorted(_fields(table)) == sorted([*given, "key", "spec", "invalid", "arrays", "digest"])


def test_zarr_fields(written: Path) -> None:
    stated = {row["Zarr field"]: row["Value"] for row in _tables("Array attributes")[2]}
    for a in layouts():
        meta = json.loads((written / a.name / "zarr.json").read_text())
        (sharding,) = meta["codecs"]
        assert sharding["name"] == stated["codecs"].split()[0]
        assert {f"its {name}" for name in sharding["configuration"]} == {name for name in stated if name.startswith("its ")}
        assert [c["name"] for c in sharding["configuration"]["codecs"]] == ["bytes"]
        assert [c["name"] for c in sharding["configuration"]["index_codecs"]] == re.findall(
            r"bytes|crc32c", stated["its index_codecs"]
        )
        assert sharding["configuration"]["index_location"] == stated["its index_location"]
        encoding = meta["chunk_key_encoding"]
        assert f"{encoding['name']}, separator {encoding['configuration']['separator']}" == stated["chunk_key_encoding"]
        assert meta["fill_value"] == int(stated["fill_value"].split(";")[0])
        assert meta["chunk_grid"]["name"] == stated["chunk_grid"].split(";")[0]


def test_header_records_and_claims(tmp_path: Path, contents: dict[str, np.ndarray]) -> None:
    tables = _tables("Writing")
    writer = FeatureWriter(tmp_path / "one", SPEC, layouts(), CONSTANTS, computed_by={"device": "cpu"})
    assert str(writer.staging.relative_to(tmp_path)) == f".staging/one-{SPEC.key}"
    assert writer.claim(0)
    claim = json.loads((writer.staging / ".writing/claims/0-0").read_bytes())
    writer.write_unit(0, unit_of(contents, layouts(), 0))
    header = json.loads((writer.staging / ".writing/header.json").read_bytes())
    digest, line = (writer.staging / ".writing/units/0.json").read_text().splitlines()
    assert digest == xxhash.xxh3_64_hexdigest(line.encode())
    for table, document in zip(tables, (header, json.loads(line)), strict=True):
        assert _fields(table) == list(document)
        assert [row["Field"] for row in table if not _fits(document[row["Field"]], row["Type"])] == []
    meaning = {row["Field"]: row["Meaning"] for row in tables[1]}["shards"]
    for name in json.loads(line)["shards"][0]:
        assert re.search(rf"\b{name}\b", meaning), name
    assert header["arrays"]["images/size"] == [[150, 2], "int32", 64, None]
    (stated,) = re.findall(r"A claim is a JSON object with (.*)\.", TEXT)
    assert re.findall("`(.*?)`", stated) == list(claim)
    seconds = re.findall(r"every (\d+) *\n?seconds|unchanged for (\d+) seconds", TEXT)
    assert [int(one or other) for one, other in seconds] == [claims.SECONDS / claims.RENEWALS, claims.SECONDS]


def test_receipt(written: Path) -> None:
    of_set, of_array = _tables("Receipts")
    file = json.loads(Receipt.from_store(store := FeatureStore.open(written)).to_json())
    assert {row["Field"] for row in of_set} == set(file)
    assert _fields(of_set) == [f.name for f in fields(Receipt)]
    assert [row["Field"] for row in of_set if not _fits(file[row["Field"]], row["Type"])] == []
    assert file["format_version"] == int({row["Field"]: row["Meaning"] for row in of_set}["format_version"])
    assert file["digest"] == xxhash.xxh3_128_hexdigest((written / "zarr.json").read_bytes())
    assert set(file["arrays"]) == set(store.arrays)
    named = re.findall(r"\b(nbytes|xxh3_128)\b", {row["Field"]: row["Meaning"] for row in of_array}["shards"])
    for name, entry in file["arrays"].items():
        assert _fields(of_array) == [f.name for f in fields(ArrayReceipt)]
        assert set(_fields(of_array)) == set(entry)
        assert [row["Field"] for row in of_array if not _fits(entry[row["Field"]], row["Type"])] == []
        meta = json.loads((written / name / "zarr.json").read_text())
        assert entry["shape"] == meta["shape"]
        assert entry["dtype"] == meta["attributes"][ATTRIBUTE].get("codec", meta["data_type"])
        assert entry["shards"] == [{n: shard[n] for n in named} for shard in meta["attributes"][ATTRIBUTE]["shards"]]
        assert entry["nbytes"] == sum(
            f.stat().st_size for f in (written / name).rglob("*") if f.is_file() and f.name != "zarr.json"
        )
    canonical = json.dumps(file, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert Receipt.from_store(store).to_json() == canonical


def test_stub(written: Path, tmp_path: Path) -> None:
    """To the byte the group's zarr.json, and an empty folder for each kind; any other file makes it none."""
    stub = tmp_path / "one"
    write_stub(stub, (written / "zarr.json").read_bytes())
    assert files(stub) == {"zarr.json": (written / "zarr.json").read_bytes()}
    assert {f.name for f in stub.iterdir() if f.is_dir()} == set(KINDS)
    assert is_stub(stub)
    (stub / "patch" / "zarr.json").write_bytes(GROUP)
    assert not is_stub(stub)
    assert not is_stub(written)


def test_where_copies_lie() -> None:
    """Names that the text gives. The order of writing is tested where copies are."""
    (section,) = re.findall(r"^## Shared roots and stubs\n(.*?)(?=^## )", TEXT, flags=re.M | re.S)
    assert f"`{PULLED}/NAME-KEY`" in section
    (scratch,) = re.findall(r"what is to be sent in `(.*?)/NAME-KEY`", section)
    publish = ast.parse((ROOT / "pipelines/sharing/publish.py").read_text())
    (stated,) = (
        ast.literal_eval(n.value) for n in publish.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "SCRATCH"
    )
    assert stated == scratch


def _arithmetic(n: int, s: int, c: int, b: int, i: int, q: int) -> dict[str, Any]:
    """The table of index arithmetic, evaluated as it is."""
    (table,) = _tables("Index arithmetic")
    formulas = {row["Quantity"]: row["Value"] for row in table}
    names: dict[str, Any] = {"N": n, "S": s, "C": c, "b": b, "i": i, "q": q, "min": min}

    def value(quantity: str) -> Any:
        formula = formulas[quantity].split("= ")[-1].replace("rows of shard k", "rows").replace("·", "*").replace("−", "-")
        formula = re.sub(r"⌈(.*?) / (.*?)⌉", r"-(-(\1) // (\2))", formula).replace("mod", "%").replace(" / ", " // ")
        return eval(formula, {"__builtins__": {}}, names)

    result: dict[str, Any] = {"shards": value("shards")}
    names["k"] = result["k"] = value("shard of row i")
    first, last = formulas["rows of shard k"].replace("·", "*").replace("−", "-").split(" to ")
    result["rows"] = (eval(first, {}, names), eval(last, {}, names) + 1)
    names["rows"] = result["rows"][1] - result["rows"][0]
    result["offset"] = value("offset of row i in the file")
    names["n"] = result["n"] = value("chunks present in shard k")
    result["digests"] = value("digests in shard k")
    result["size"] = value("size of the file")
    return result


def _checked_rows(c: int, b: int) -> int:
    """q, as the text below the table says it."""
    q = 1
    while q * b < CHECKED_NBYTES:
        q *= 2
    return q if q < c and c % q == 0 else c


@pytest.mark.parametrize("d", [5, 5000, 12_345, 40_000])
@pytest.mark.parametrize(("n", "s", "i"), [(1, 32, 0), (150, 64, 149), (150, 64, 63), (128, 64, 127), (300, 96, 200)])
def test_index_arithmetic(n: int, s: int, i: int, d: int) -> None:
    layout = ArrayLayout("a", (n, 3, d), "float16", ("image", "patch", "channel"), s)
    q = _checked_rows(CHUNK_ROWS, layout.row_nbytes)
    got = _arithmetic(n, s, CHUNK_ROWS, layout.row_nbytes, i, q)
    k = got["k"]
    assert layout.row_nbytes == 2 * 3 * d
    assert layout.checked_rows == q
    assert got["shards"] == layout.n_shards
    assert got["rows"] == layout.rows(k)
    assert got["rows"][0] <= i < got["rows"][1]
    assert got["n"] == layout.n_chunks(k)
    assert got["digests"] == layout.n_digests(k)
    marked = np.zeros((np.ptp(got["rows"]), 3, d), "float16")
    marked[i - got["rows"][0]] = np.arange(3 * d).reshape(3, d) % 2048
    data, padding = layout.encode(k, marked)
    tail = layout.tail(k, data, padding)
    assert got["size"] == layout.nbytes(k) == len(data) + len(padding) + len(tail)
    assert data[got["offset"] : got["offset"] + layout.row_nbytes] == marked[i - got["rows"][0]].tobytes()
    whole, step = bytes(data) + bytes(padding), q * layout.row_nbytes
    digests = b"".join(xxhash.xxh3_128_digest(whole[at : at + step]) for at in range(0, len(whole), step))
    assert tail[: 16 * got["digests"]] == digests
    assert tail[16 * got["digests"] :] == layout.index(k)


def test_rows_of_a_shard() -> None:
    """A sixteenth of the set, between the bounds that the text gives."""
    stated = re.search(r"a sixteenth of the set, (\d+) MiB at least and (\d+) MiB at most", TEXT)
    assert stated
    least, most = (int(mib) << 20 for mib in stated.groups())
    row = 301_056
    assert abs(shard_rows_of(row, 1_281_167) * row - most) < 32 * row
    assert abs(shard_rows_of(row, 10) * row - least) < 32 * row
    assert abs(shard_rows_of(row, 10_000) * row - 10_000 * row / 16) < 32 * row
    assert all(shard_rows_of(row, n) % CHUNK_ROWS == 0 for n in range(500, 9000, 500))
    assert shard_rows_of(row, 0) == shard_rows_of(1 << 30, 100) == CHUNK_ROWS


def test_codecs() -> None:
    (table,) = _tables("Codecs")
    assert [row["Codec"] for row in table] == list(CODECS)
    for row, codec in zip(table, CODECS.values(), strict=True):
        parts = codec.parts((1, 196, 768))
        scale = {"–": None, "float32, one a token": ((1, 196), "float32"), "float16, one a group": ((1, 196, 12), "float16")}
        assert (row["Zarr dtype"], row["Decodes to"]) == (codec.zarr_dtype, str(codec.decoded).removeprefix("torch."))
        assert parts.get(SCALE) == scale[row["Scales"]]
        assert int(row["Bytes of an image"]) == codec.nbytes((1, 196, 768))
        assert float(row["Range"]) == pytest.approx(codec.largest, rel=1e-4)


@pytest.mark.parametrize("name", CODECS)
def test_declared_bounds(name: str) -> None:
    """The table's bound is the code's."""
    stated = {row["Codec"]: row["Error, at most"] for row in _tables("Codecs")[0]}[name]
    values = torch.tensor([[1.5, -300.0, 7e-3, 0.0, 1e-9, 2.0]])
    parts = CODECS[name].encode(values)
    x, scale = values.abs().double(), parts.get(SCALE, torch.zeros(1)).double().flatten()
    s = scale.repeat_interleave(x.shape[-1] // len(scale))
    formulas = re.sub(r"(\)|abs\(x\)) s|(2\^-\d+) abs", lambda m: f"{m[1]}*s" if m[1] else f"{m[2]}*abs", stated).replace(
        "^", "**"
    )
    either = [torch.as_tensor(eval(f, {"abs": lambda _: x, "x": x, "s": s})).expand(x.shape) for f in formulas.split(", or ")]
    assert torch.equal(torch.stack([f.double() for f in either]).amax(0), CODECS[name].bound(values).double())


def test_examples(written: Path, contents: dict[str, np.ndarray]) -> None:
    """The code in the document does what the document says it does."""
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
        exec(code, names)
    described = _attributes(written)["spec"]
    assert names["GROUP"] == GROUP
    assert names["key"](described) == SPEC.key
    assert names["key"](described, without=("data", "n_images")) == SPEC.encoder_key
    for a in layouts():
        for k in range(a.n_shards):
            assert same(np.asarray(names["shard"](written, a.name, k)), contents[a.name][slice(*a.rows(k))])


def test_folder_holds_nothing_else(written: Path) -> None:
    for name in files(written):
        assert re.fullmatch(r"([\w-]+/)*zarr\.json|([\w-]+/){2,4}c/\d+(/0)*", name), name
