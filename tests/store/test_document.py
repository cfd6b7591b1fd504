"""docs/store-format.md says what the code does."""

import ast
import hashlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from store import ArrayLayout, FeatureStore, FeatureWriter
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


def _rows(block):
    """Cells of a table, backticks and the line below its head removed."""
    head, _, *rows = ([cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in block.splitlines())
    return [head, *rows]


def _tables(heading):
    """Tables of a section, subsections left out: rows by column name."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", TEXT, flags=re.M | re.S)
    tables = [_rows(block) for block in re.findall(r"(?:^\|.*\|\n)+", section, flags=re.M)]
    return [[dict(zip(head, row, strict=True)) for row in rows] for head, *rows in tables]


def _column(table, name, key="Field"):
    return {row[key]: row[name] for row in table}


def _attributes(path, name=""):
    return json.loads((path / name / "zarr.json").read_text())["attributes"][ATTRIBUTE]


def _fits(value, described):
    """Whether a JSON value is of the type that a table names."""
    kinds = {"string": str, "integer": int, "object": dict, "number": float, "null": type(None)}
    return any(
        isinstance(value, list) and all(type(one) is kinds[kind.removeprefix("list of ").removesuffix("s")] for one in value)
        if kind.startswith("list of ")
        else type(value) is kinds[kind]
        for kind in described.replace("two integers", "list of integers").split(" or ")
    )


def _assert_described(table, document):
    """The fields in their order, each of its type."""
    assert list(_column(table, "Type")) == list(document)
    assert [name for name, kind in _column(table, "Type").items() if not _fits(document[name], kind)] == []


def _extract_source():
    """Parsed, not imported: extraction needs timm, the store does not."""
    files = sorted((ROOT / "extract").rglob("*.py"))
    return ast.Module([node for file in files for node in ast.parse(file.read_text()).body], [])


def _assigned(nodes, name):
    (value,) = (node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    return ast.literal_eval(value)


def test_constants():
    assert dict(_rows(re.search(r"(?:^\|.*\|\n)+", TEXT, flags=re.M)[0])[1:]) == {
        "format version": str(FORMAT_VERSION),
        "rows of a chunk": str(CHUNK_ROWS),
        "bytes of rows that share a digest, at least": str(CHECKED_NBYTES),
        "attribute that holds ours": ATTRIBUTE,
        "what writers keep": WRITING,
    }
    assert TEXT.startswith(f"# Store format, version {FORMAT_VERSION}\n")
    (families,) = re.findall(r"^- `family`, a string: (.*?)[;.]", TEXT, flags=re.M | re.S)
    assert tuple(re.findall("`(.*?)`", families.replace("\n  ", " "))) == FAMILIES


def test_description():
    (table,) = _tables("Description")
    _assert_described(table, replace(SPEC, truths={"segmentation": "0" * 32}, drop_path=0.1).to_dict())
    for name, stated in _column(table, "In the encoder key").items():
        changed = replace(SPEC, **{name: "changed"})
        assert stated == ("no" if changed.encoder_key == SPEC.encoder_key else "yes"), name
        assert changed.key != SPEC.key, name


def test_attributes(written):
    (group,), (array, shard) = _tables("Group attributes"), _tables("Array attributes")[:2]
    stored = _attributes(written)
    _assert_described(group, stored)
    assert _column(group, "Meaning")["invalid"].endswith(", ".join(stored["invalid"][0]))
    (given,) = (
        [ast.literal_eval(key) for key in node.body[-1].value.keys if key]
        for node in ast.walk(_extract_source())
        if isinstance(node, ast.FunctionDef) and node.name == "attributes_of"
    )
    assert sorted(stored) == sorted([*given, "key", "spec", "invalid", "arrays", "digest"])
    for name in FeatureStore.open(written).arrays:
        _assert_described([row for row in array if row["Field"] != "codec"], stored := _attributes(written, name))
        for record in stored["shards"]:
            _assert_described(shard, record)


def test_names_and_shapes(written):
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
            is_of_spec = row["dtype"] in ("tokens", "vectors", "summaries", "maps")
            assert array.shape == tuple(sizes[s] for s in row["Shape"].split(", "))
            assert array.dtype == (store.spec.dtype if is_of_spec else row["dtype"])
            assert array.layout.dimensions == tuple(row["Dimensions"].split(", "))
    assert named_arrays == set(store.arrays)
    assert list(dict.fromkeys(row["Array"].split("/")[0] for row in table)) == list(KINDS)
    assert all((written / group / "zarr.json").read_bytes() == GROUP for group in groups_of(list(store.arrays)))
    assert set(KINDS) < set(groups_of(list(store.arrays)))
    assert all(re.fullmatch(r"([\w-]+/)*zarr\.json|([\w-]+/){2,4}c/\d+(/0)*", name) for name in files(written))


def test_extraction_names_dimensions_and_dtypes_as_the_table():
    tables = [table for section in ("Folder", "Views", "Labels and boxes", "Truths") for table in _tables(section)]
    stated = {row["Array"]: row for table in tables for row in table if row["Array"] not in FLAT}
    source = _extract_source()
    dimensions = _assigned(source.body, "DIMENSIONS")
    by_kind = {name.split("/")[0]: tuple(row["Dimensions"].split(", ")) for name, row in stated.items()}
    assert dimensions == {kind: by_kind[kind] for kind in dimensions}
    images = {}
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ArrayLayout":
            name = ast.unparse(node.args[0]).removeprefix("f").strip("'").replace("{view}", "{V}").replace("DIGEST", DIGEST)
            images[name] = (ast.literal_eval(node.args[2]), ast.literal_eval(node.args[3])) if "images/" in name else None
    assert {name: of for name, of in images.items() if of} == {
        name: (row["dtype"], tuple(row["Dimensions"].split(", "))) for name, row in stated.items() if name.startswith("images/")
    }


def test_truths(tmp_path):
    """Names, shapes, dtypes and dimensions are those of the table, and masks are what the text says."""
    (table,) = _tables("Truths")
    stated = {row["Array"].replace("{V}", "0"): row for row in table}
    maps = [np.array([[0, 1], [-1, 1], [0, 0]], np.int16), np.full((1, 2), -1, np.int16)]
    masks = instances_of(np.stack([maps[0] == 1]), [2])
    plain = write_features(tmp_path / "plain", n=2)
    given = {"maps": maps, "map_classes": ("a", "b"), "instances": [masks, []], "instance_classes": ("x", "y", "z")}
    store = with_truths(plain, tmp_path / "set", **given)
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


def test_digest_of_truths(tmp_path):
    """The text, once more in code."""
    maps = [np.zeros((3, 3), np.int16)] * 2
    store = with_truths(write_features(tmp_path / "plain", n=2), tmp_path / "set", maps=maps, map_classes=("a", "é"))
    content = json.dumps(["segmentation", "a", "é"]).encode()
    for last in ("counts", "first", "label", "start"):
        values = store.array(f"images/segmentation/{last}").all()
        content += json.dumps([last, values.dtype.name, *values.shape]).encode() + values.tobytes()
    assert store.spec.truths == {"segmentation": hashlib.sha256(content).hexdigest()[:32]}
    assert store.attributes["truth_classes"] == {"segmentation": ["a", "é"]}


def test_zarr_fields(written):
    stated = _column(_tables("Array attributes")[2], "Value", "Zarr field")
    for a in layouts():
        meta = json.loads((written / a.name / "zarr.json").read_text())
        (sharding,) = meta["codecs"]
        settings, encoding = sharding["configuration"], meta["chunk_key_encoding"]
        assert {f"its {name}" for name in settings} == {name for name in stated if name.startswith("its ")}
        assert [c["name"] for c in settings["codecs"]] == ["bytes"]
        assert [c["name"] for c in settings["index_codecs"]] == re.findall(r"bytes|crc32c", stated["its index_codecs"])
        assert settings["index_location"] == stated["its index_location"]
        assert f"{encoding['name']}, separator {encoding['configuration']['separator']}" == stated["chunk_key_encoding"]
        for name, value in {
            "codecs": sharding["name"],
            "fill_value": str(int(meta["fill_value"])),
            "chunk_grid": meta["chunk_grid"]["name"],
        }.items():
            assert stated[name].split(";")[0].split()[0] == value


def test_header_records_and_claims(tmp_path, contents):
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
        _assert_described(table, document)
    meaning = _column(tables[1], "Meaning")["shards"]
    assert all(re.search(rf"\b{name}\b", meaning) for name in json.loads(line)["shards"][0])
    assert header["arrays"]["images/size"] == [[150, 2], "int32", 64, None]
    (stated,) = re.findall(r"A claim is a JSON object with (.*)\.", TEXT)
    assert re.findall("`(.*?)`", stated) == list(claim)
    seconds = re.findall(r"every (\d+) *\n?seconds|unchanged for (\d+) seconds", TEXT)
    assert [int(one or other) for one, other in seconds] == [claims.SECONDS / claims.RENEWALS, claims.SECONDS]


def test_receipt(written):
    of_set, of_array = _tables("Receipts")
    file = json.loads(Receipt.from_store(store := FeatureStore.open(written)).to_json())
    _assert_described(of_set, {field.name: file[field.name] for field in fields(Receipt)})
    assert file["format_version"] == int(_column(of_set, "Meaning")["format_version"])
    assert file["digest"] == xxhash.xxh3_128_hexdigest((written / "zarr.json").read_bytes())
    assert (set(file), set(file["arrays"])) == ({field.name for field in fields(Receipt)}, set(store.arrays))
    named = re.findall(r"\b(nbytes|xxh3_128)\b", _column(of_array, "Meaning")["shards"])
    for name, entry in file["arrays"].items():
        _assert_described(of_array, {field.name: entry[field.name] for field in fields(ArrayReceipt)})
        meta = json.loads((written / name / "zarr.json").read_text())
        shards = sum(f.stat().st_size for f in (written / name / "c").rglob("*") if f.is_file())
        dtype = meta["attributes"][ATTRIBUTE].get("codec", meta["data_type"])
        assert (entry["shape"], entry["dtype"], entry["nbytes"]) == (meta["shape"], dtype, shards)
        assert entry["shards"] == [{n: shard[n] for n in named} for shard in meta["attributes"][ATTRIBUTE]["shards"]]
    canonical = json.dumps(file, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert Receipt.from_store(store).to_json() == canonical


def test_stub(written, tmp_path):
    """To the byte the group's zarr.json, and an empty folder for each kind; any other file makes it none."""
    stub = tmp_path / "one"
    write_stub(stub, (written / "zarr.json").read_bytes())
    assert files(stub) == {"zarr.json": (written / "zarr.json").read_bytes()}
    assert {f.name for f in stub.iterdir() if f.is_dir()} == set(KINDS)
    assert is_stub(stub)
    (stub / "patch" / "zarr.json").write_bytes(GROUP)
    assert not is_stub(stub)
    assert not is_stub(written)


def test_where_copies_lie():
    """Names that the text gives. The order of writing is tested where copies are."""
    (section,) = re.findall(r"^## Shared roots and stubs\n(.*?)(?=^## )", TEXT, flags=re.M | re.S)
    assert f"`{PULLED}/NAME-KEY`" in section
    (scratch,) = re.findall(r"what is to be sent in `(.*?)/NAME-KEY`", section)
    assert scratch == _assigned(ast.parse((ROOT / "pipelines/sharing/publish.py").read_text()).body, "SCRATCH")


@pytest.mark.parametrize("d", [5, 5000, 12_345, 40_000])
@pytest.mark.parametrize(("n", "s", "i"), [(1, 32, 0), (150, 64, 149), (150, 64, 63), (128, 64, 127), (300, 96, 200)])
def test_index_arithmetic(n, s, i, d):
    """The table, evaluated as it is, and q as the text below it says."""
    formulas = _column(_tables("Index arithmetic")[0], "Value", "Quantity")
    layout = ArrayLayout("a", (n, 3, d), "float16", ("image", "patch", "channel"), s)
    q = next((2**e for e in range(5) if 2**e * layout.row_nbytes >= CHECKED_NBYTES), CHUNK_ROWS)
    names = {"N": n, "S": s, "C": CHUNK_ROWS, "b": 2 * 3 * d, "i": i, "q": q, "min": min, "__builtins__": {}}

    def value(quantity, part=-1):
        formula = formulas[quantity].split(" to ")[part].split("= ")[-1].replace("rows of shard k", "rows").replace("·", "*")
        formula = re.sub(r"⌈(.*?) / (.*?)⌉", r"-(-(\1) // (\2))", formula).replace("mod", "%").replace(" / ", " // ")
        return eval(formula.replace("−", "-"), names)

    names["k"] = k = value("shard of row i")
    start, stop = value("rows of shard k", 0), value("rows of shard k") + 1
    names["rows"] = stop - start
    names["n"] = value("chunks present in shard k")
    offset, n_digests, size = map(value, ("offset of row i in the file", "digests in shard k", "size of the file"))
    assert (layout.row_nbytes, layout.checked_rows, layout.n_shards) == (names["b"], q, value("shards"))
    assert (layout.rows(k), layout.n_chunks(k), layout.n_digests(k)) == ((start, stop), names["n"], n_digests)
    assert start <= i < stop
    marked = np.zeros((stop - start, 3, d), "float16")
    marked[i - start] = np.arange(3 * d).reshape(3, d) % 2048
    data, padding = layout.encode(k, marked)
    whole, tail = bytes(data) + bytes(padding), layout.tail(k, data, padding)
    assert size == layout.nbytes(k) == len(whole) + len(tail)
    assert data[offset : offset + layout.row_nbytes] == marked[i - start].tobytes()
    step = q * layout.row_nbytes
    digests = b"".join(xxhash.xxh3_128_digest(whole[at : at + step]) for at in range(0, len(whole), step))
    assert len(digests) == 16 * n_digests
    assert tail == digests + layout.index(k)


def test_rows_of_a_shard():
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


SCALES = {"–": None, "float32, one a token": ((1, 196), "float32"), "float16, one a group": ((1, 196, 12), "float16")}


@pytest.mark.parametrize("row", _tables("Codecs")[0], ids=lambda row: row["Codec"])
def test_codecs(row):
    assert [row["Codec"] for row in _tables("Codecs")[0]] == list(CODECS)
    codec, values = CODECS[row["Codec"]], torch.tensor([[1.5, -300.0, 7e-3, 0.0, 1e-9, 2.0]])
    assert (row["Zarr dtype"], row["Decodes to"]) == (codec.zarr_dtype, str(codec.decoded).removeprefix("torch."))
    assert codec.parts((1, 196, 768)).get(SCALE) == SCALES[row["Scales"]]
    assert int(row["Bytes of an image"]) == codec.nbytes((1, 196, 768))
    assert float(row["Range"]) == pytest.approx(codec.largest, rel=1e-4)
    x, scale = values.abs().double(), codec.encode(values).get(SCALE, torch.zeros(1)).double().flatten()
    s = scale.repeat_interleave(x.shape[-1] // len(scale))
    bound = re.sub(r"(\)) s|(2\^-\d+) abs", lambda m: f"{m[1]}*s" if m[1] else f"{m[2]}*abs", row["Error, at most"])
    either = [eval(part, {"abs": lambda _: x, "x": x, "s": s}) for part in bound.replace("^", "**").split(", or ")]
    either = [torch.as_tensor(part).double().expand(x.shape) for part in either]
    assert torch.equal(torch.stack(either).amax(0), codec.bound(values).double())


def test_examples(written, contents):
    """The code in the document does what the document says it does."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
        exec(code, names)
    described = _attributes(written)["spec"]
    assert names["GROUP"] == GROUP
    assert names["key"](described) == SPEC.key
    assert names["key"](described, without=("data", "n_images")) == SPEC.encoder_key
    for a in layouts():
        for k in range(a.n_shards):
            assert same(np.asarray(names["shard"](written, a.name, k)), contents[a.name][slice(*a.rows(k))])
