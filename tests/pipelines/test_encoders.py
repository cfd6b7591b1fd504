"""`beyondcls encoders --record`: a list of where weights come from, and of the digests that loading them gave."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from extract.encoders import ENCODERS, load_encoder
from extract.encoders.checkpoints import UNKNOWN, ListedCheckpoint, read_checkpoints, write_checkpoints
from pipelines.parameters.params import read_params
from store import BeyondClsError
from tests.machines.project import ROOT

PARAMS = """
encoders:
  quickstart-mae: {}
  mae-s16: {}
  mine: { model: quickstart-random, checkpoint: %s/quickstart/encoders/random.safetensors }
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch, command):
    """Runs the command in a folder with a parameter file; what it says, and the list."""
    monkeypatch.chdir(tmp_path)
    mae = replace(ENCODERS["quickstart-mae"], weights=str(ROOT / "quickstart/encoders/mae.safetensors"))
    monkeypatch.setitem(ENCODERS, "quickstart-mae", mae)
    Path("params.yaml").write_text(PARAMS % ROOT)

    def record(*arguments: str) -> tuple[int, str, dict[str, ListedCheckpoint]]:
        status, out, err = command("encoders", "--record", "list.csv", *arguments)
        return status, out + err, read_checkpoints(Path("list.csv"))

    return record


def test_digests_are_those_that_parameters_expect(record) -> None:
    status, said, rows = record()
    assert status == 1, "weights of one cannot be fetched"
    assert "mae-s16: not recorded: the weights of vit_small_patch16_224 cannot be fetched by a program" in said
    assert [rows["mae-s16"].source[:4], rows["mae-s16"].digest] == ["see ", UNKNOWN]
    for name, file in (("quickstart-mae", "mae.safetensors"), ("mine", "random.safetensors")):
        assert rows[name].file == file
        assert f"{name}: {{ weights: {rows[name].digest} }}" in said
    load_encoder("quickstart-mae", weights=rows["quickstart-mae"].digest)  # or it is refused


def test_what_was_recorded_is_compared_and_stays(record) -> None:
    kept = ListedCheckpoint("gone", "https://example.org/gone.pth", "gone.pth", "1" * 32)
    write_checkpoints(Path("list.csv"), [kept, ListedCheckpoint("mine", "anywhere", digest="0" * 32)])
    status, said, rows = record("mine")
    assert status == 1
    assert f"expected {'0' * 32} as recorded; fetch" in said
    assert (rows["gone"], rows["mine"].digest, rows["quickstart-mae"].digest) == (kept, "0" * 32, UNKNOWN)
    write_checkpoints(Path("list.csv"), [kept])
    assert record("mine")[0] == record("mine")[0] == 0


def test_another_file_is_not_overwritten(record, command) -> None:
    Path("list.csv").write_text("a,b\n1,2\n")
    status, _, err = command("encoders", "--record", "list.csv")
    assert status == 1
    assert "list.csv has columns ['a', 'b'], expected ['encoder', 'source', 'file', 'digest']; name another file" in err
    assert Path("list.csv").read_text() == "a,b\n1,2\n"


def test_the_papers_list_has_its_encoders() -> None:
    rows = read_checkpoints(ROOT / "paper/checkpoints.csv")
    assert [*rows] == [*read_params(ROOT / "paper/params.yaml")["encoders"]]
    assert all(replace(row, digest=UNKNOWN) == ListedCheckpoint.of(name, {}) for name, row in rows.items())


@pytest.mark.parametrize("rows", [b"\xff\xfe", b"a" * 200_000, b"x,y\n"], ids=["bytes", "long", "short"])
def test_a_list_that_is_no_table(rows: bytes, tmp_path: Path) -> None:
    header = ",".join(column.name for column in fields(ListedCheckpoint)).encode()
    (tmp_path / "list.csv").write_bytes(header + b"\n" + rows + b"," * 20 + b"\n")
    with pytest.raises(BeyondClsError, match=r"list\.csv is not a table in UTF-8 \(.*\), expected columns \['encoder', "):
        read_checkpoints(tmp_path / "list.csv")
