"""The files of a result: measures, what describes them, and arrays, refused before memory is taken for them."""

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from probe.result_files import (
    ResultError,
    array_of,
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


def test_measures_are_numbers_and_the_first_has_its_spread(metrics: Path):
    content = json.loads(metrics.read_text())
    assert content == {"top1": 41.0, "top1_std": pytest.approx(2**0.5), "top5": 90.5, "box": {"ap": 10.0}}
    assert list(content) == ["top1", "top1_std", "top5", "box"]


def test_what_could_not_be_measured_is_left_out():
    nothing = {"mean": None, "std": None, "values": [None]}
    measured = {"a": over_seeds([float("nan")]), "b": nothing, "c": {"d": nothing}, "e": over_seeds([1.0, 3.0])}
    assert summary(measured) == {"e": 2.0, "e_std": pytest.approx(2**0.5)}


def test_only_what_is_asked_for_is_shown_and_all_is_described(tmp_path: Path):
    write_result(tmp_path / "localisation.json", CONTENT, {"box": CONTENT["box"]})
    assert json.loads((tmp_path / "localisation.json").read_text()) == {"box": {"ap": 10.0}}
    assert read_result(tmp_path / "localisation.json") == CONTENT


def test_both_together_are_what_was_written(metrics: Path):
    assert read_result(metrics) == CONTENT


def test_a_time_belongs_to_the_description_too(metrics: Path):
    before = digest_of(metrics)
    write_result(metrics, CONTENT | {"encoder": "other"})
    assert digest_of(metrics) != before


def test_a_result_of_another_encoder_is_not_replaced_unless_the_folder_has_the_name_of_this_one(metrics: Path):
    out = metrics.parent
    with pytest.raises(
        BeyondClsError, match=rf"holds a result of encoder mae, which that of dino .* e\.g\. {out / 'dino'}, or"
    ):
        result_folder(out, "dino")
    for encoder in ("mae", out.name, out.parent.name):
        assert result_folder(out, encoder).folder == out
    for nothing in ("", "[]", "{}"):
        (out / "description.json").write_text(nothing)
        assert result_folder(out, "dino").folder == out


WHOLE = {"metrics.json": json.dumps(CONTENT), "description.json": None}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (WHOLE, r"metrics.json has a whole result, expected measures alone, .* 0\.1\.0"),
        ({"description.json": None}, r"metrics.json holds measures alone and there is no .*description.json.*dvc pull"),
        ({"metrics.json": '{"top1": 41.5}'}, r"description.json describes other measures than those in .*`dvc checkout`"),
        *(
            ({name: text}, "Expecting property|expected an object of names and values")
            for name in ("description.json", "metrics.json")
            for text in ("{", "[]", "3", "null")
        ),
    ],
)
def test_damaged_files_and_those_of_other_runs(changed: dict[str, str | None], message: str, metrics: Path):
    for name, text in changed.items():
        metrics.with_name(name).unlink() if text is None else metrics.with_name(name).write_text(text)
    with pytest.raises(ValueError if "Expecting" in message else ResultError, match=message):
        read_result(metrics)


def test_nothing_of_the_machine_but_its_kind_is_described():
    from socket import gethostname

    import torch

    from probe.result_files import computed_by

    described = computed_by(torch.device("cpu"))
    assert set(described["versions"]) >= {"torch", "numpy"}
    assert described["versions"]["torch"] == torch.__version__
    assert set(described["machine"]) == {"system", "architecture", "processor", "device"}
    assert all(described["machine"].values())
    text = json.dumps(described)
    assert gethostname() not in text
    assert not re.search(r"/(home|work|root|tmp|usr)\b", text)


EXPECTED = "an array [N, T]; run its stage again"


def stated(shape: str, dtype: str = "<f8", content: bytes = bytes(64)) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + content


def written(folder: Path, content: bytes, member: str | None, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    file = folder / "a.npy"
    if member is None:
        file.write_bytes(content)
    else:
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr(f"{member}.npy", content)
    return file


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize("values", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3) > 0), np.zeros((0, 4))], ids=str)
def test_sound(values: np.ndarray, member: str | None, tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, values)
    read = array_of(written(tmp_path, content.getvalue(), member), EXPECTED, member)
    assert (read.dtype, read.shape) == (values.dtype, values.shape)
    assert np.array_equal(read, values)


@pytest.mark.parametrize("member", [None, "correct"])
@pytest.mark.parametrize(
    "content",
    [
        stated("(1 << 37, 4)".replace("1 << 37", str(1 << 37))),
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
        array_of(written(tmp_path, content, member), EXPECTED, member)


def test_what_unpacks_to_much_more(tmp_path: Path) -> None:
    content = stated(f"({1 << 22},)", content=bytes(8 << 22))
    with pytest.raises(BeyondClsError, match=r"its correct would unpack to 33554560 bytes"):
        array_of(written(tmp_path, content, "correct", zipfile.ZIP_LZMA), EXPECTED, "correct")
