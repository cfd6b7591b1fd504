"""The files of a result: measures, what describes them, and arrays, refused before memory is taken for them."""

import io
import json
import re
import zipfile
from pathlib import Path
from socket import gethostname

import numpy as np
import pytest
import torch

from probe.result_files import (
    ResultError,
    array_of,
    computed_by,
    digest_of,
    over_seeds,
    read_result,
    result_folder,
    summary,
    write_result,
)
from store import BeyondClsError

CONTENT = {
    "encoder": "mae",
    "seeds": [0, 1],
    "top1": over_seeds([40.0, 42.0]),
    "top5": over_seeds([90.0, 91.0]),
    "box": {"ap": over_seeds([10.0]), "ap_small": None, "note": "x"},
    "cost": {"parameters": 3},
    "rows": [{"top1": over_seeds([1.0])}],
}


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    write_result(tmp_path / "metrics.json", CONTENT)
    return tmp_path / "metrics.json"


def test_measures_are_numbers_the_first_with_its_spread_and_all_is_described(metrics: Path):
    content = json.loads(metrics.read_text())
    assert content == {"top1": 41.0, "top1_std": pytest.approx(2**0.5), "top5": 90.5, "box": {"ap": 10.0}}
    assert list(content) == ["top1", "top1_std", "top5", "box"]
    assert read_result(metrics) == CONTENT
    before = digest_of(metrics)
    write_result(metrics, CONTENT | {"encoder": "other"}, {"box": CONTENT["box"]})  # only what is asked for is shown
    assert json.loads(metrics.read_text()) == {"box": {"ap": 10.0}}
    assert read_result(metrics) == CONTENT | {"encoder": "other"}
    assert digest_of(metrics) != before


def test_what_could_not_be_measured_is_left_out():
    nothing = {"mean": None, "std": None, "values": [None]}
    measured = {"a": over_seeds([float("nan")]), "b": nothing, "c": {"d": nothing}, "e": over_seeds([1.0, 3.0])}
    assert summary(measured) == {"e": 2.0, "e_std": pytest.approx(2**0.5)}


@pytest.mark.parametrize(
    ("without", "kept"), [([[1.0, 2.0], [3.0, 6.0]], [2.0, 4.0]), ([[1.0, float("nan")]], None), ([[]], None)]
)
def test_what_is_left_without_images_is_kept_where_all_is_known(without, kept):
    assert over_seeds([1.0, 3.0], without).get("without") == kept


def test_a_result_of_another_encoder_is_not_replaced_unless_the_folder_has_the_name_of_this_one(metrics: Path):
    out = metrics.parent
    with pytest.raises(BeyondClsError, match=rf"encoder mae, which that of dino .* {out / 'dino'}, or"):
        result_folder(out, "dino")
    for encoder in ("mae", out.name, out.parent.name):
        assert result_folder(out, encoder).folder == out
    for nothing in ("", "[]", "{}"):
        (out / "description.json").write_text(nothing)
        assert result_folder(out, "dino").folder == out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metrics.json": json.dumps(CONTENT), "description.json": None}, r"a whole result, .* 0\.1\.0"),
        ({"description.json": None}, r"there is no .*description.json.*dvc pull"),
        ({"metrics.json": '{"top1": 41.5}'}, r"describes other measures .*`dvc checkout`"),
        *(
            ({name: text}, "Expecting property|expected an object of names and values")
            for name in ("description.json", "metrics.json")
            for text in ("{", "[]")
        ),
    ],
)
def test_damaged_files_and_those_of_other_runs(changed: dict[str, str | None], message: str, metrics: Path):
    for name, text in changed.items():
        metrics.with_name(name).unlink() if text is None else metrics.with_name(name).write_text(text)
    with pytest.raises(ValueError if "Expecting" in message else ResultError, match=message):
        read_result(metrics)


def test_nothing_of_the_machine_but_its_kind_is_described():
    described = computed_by(torch.device("cpu"))
    assert set(described["versions"]) >= {"torch", "numpy"}
    assert described["versions"]["torch"] == torch.__version__
    assert set(described["machine"]) == {"system", "architecture", "processor", "device"}
    assert all(described["machine"].values())
    assert not re.search(rf"/(home|work|root|tmp|usr)\b|{gethostname()}", json.dumps(described))


def stated(shape: str, dtype: str = "<f8", content: bytes = bytes(64)) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + content


def read(folder: Path, content: bytes, member: str | None, compression: int = zipfile.ZIP_DEFLATED) -> np.ndarray:
    """`array_of` a file with this content, or with a member that has it."""
    file = folder / "a.npy"
    if member is None:
        file.write_bytes(content)
    else:
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr(f"{member}.npy", content)
    return array_of(file, "an array [N, T]; run its stage again", member)


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize("values", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3) > 0), np.zeros((0, 4))], ids=str)
def test_sound_arrays(values: np.ndarray, member: str | None, tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, values)
    array = read(tmp_path, content.getvalue(), member)
    assert array.dtype == values.dtype
    np.testing.assert_array_equal(array, values, strict=True)


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize(
    "content",
    [
        stated(f"({1 << 37}, 4)"),
        stated(f"({2**62}, 4)"),
        stated("(-1, 8)"),
        stated("(9,)"),
        stated("(1,)", "<U1000000000"),
        stated("(8,)", "|O"),
        stated("(" * 3000 + "8,"),
        stated("(8,)")[:50],
        b"",
    ],
    ids=lambda content: str(content[60:90]),
)
def test_what_a_header_states(content: bytes, member: str | None, tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=r"a\.npy is damaged \(.*\), expected an array \[N, T\]; run its stage again"):
        read(tmp_path, content, member)


def test_what_unpacks_to_much_more(tmp_path: Path) -> None:
    content = stated(f"({1 << 22},)", content=bytes(8 << 22))
    with pytest.raises(BeyondClsError, match="correct would unpack to 33554560 bytes"):
        read(tmp_path, content, "correct", zipfile.ZIP_LZMA)
