"""The benchmark of the store: each peer at its best, ratios, and the table of a page."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.store as benchmark
from benchmarks.readers import READERS, Reader
from benchmarks.store import CODECS, STATES, Round, fastest, lacking, over, page_with, round_of, table
from store import BeyondClsError

MARKERS = "before\n<!-- generated: store and peers -->\nold\n<!-- end of store and peers -->\nafter\n"
WAYS = {name: dict.fromkeys(STATES, next(iter(READERS[name].ways))) for name in ("loader", "h5py", "npy")}


def took(rate: float, cpu: float = 1.0) -> dict[str, Any]:
    """Half a GB at so many GB/s, with so many CPU seconds a GB."""
    return {"nbytes": 5 * 10**8, "seconds": 0.5 / rate, "cpu": cpu / 2, "peak": 10**9}


def a_round(loader: float, h5py: float, npy: float) -> Round:
    rates = {"loader": loader, "h5py": h5py, "npy": npy}
    read = {(codec, name, state): took(rates[name], 0.5) for codec in CODECS for name in rates for state in STATES}
    return read | {("float16", "raw", "cold"): took(2.0) | {"peak": 0}}


def test_each_peer_is_measured_at_its_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second, *others = READERS["h5py"].ways
    speeds = {first: (1.0, 4.0), second: (3.0, 1.0)} | dict.fromkeys(others, (1.0, 1.0))
    asked: list[tuple[str, ...]] = []

    def measured(
        name: str, way: str, folder: Path, batch: int, codecs: Sequence[str], states: Sequence[str]
    ) -> dict[str, dict[str, dict[str, Any]]]:
        asked.append((name, way, *codecs, *states))
        return {c: {state: took(speeds.get(way, (9.0, 9.0))[STATES.index(state)]) for state in states} for c in codecs}

    monkeypatch.setattr(benchmark, "measured", measured)
    monkeypatch.setattr(
        benchmark, "measured_disk", lambda folder: {"1 x MiB": took(5.0), "8 x MiB": took(6.0), "8 x chunk": took(4.0)}
    )
    ways = fastest(tmp_path, ["h5py"], quick=False)
    assert ways["h5py"] == {"cold": second, "warm": first}
    assert asked == [("h5py", way, "float16", "cold", "warm") for way in speeds]
    assert fastest(tmp_path, ["h5py"], quick=True)["h5py"] == {"cold": first, "warm": first}

    asked.clear()
    measurement = round_of(tmp_path, {"loader": ways["loader"], "h5py": ways["h5py"]}, 0)
    assert asked == [
        ("loader", "", *CODECS, "cold", "warm"),
        ("h5py", second, *CODECS, "cold"),
        ("h5py", first, *CODECS, "warm"),
    ]
    assert measurement["int8", "h5py", "warm"] == took(4.0)
    assert measurement["float16", "raw", "cold"] == took(6.0)


def test_ratios_are_medians_over_rounds() -> None:
    rounds = [a_round(2.0, 1.0, 2.0), a_round(4.0, 1.0, 2.0), a_round(3.0, 3.0, 2.0)]
    assert over(rounds, "float16", "h5py", "cold") == pytest.approx(2.0)
    assert over(rounds, "int8", "npy", "warm") == pytest.approx(1.5)
    assert over(rounds, "int8", "npy", "warm", "cpu") == pytest.approx(1.0)
    assert over(rounds, "float16", "raw", "cold") == pytest.approx(1.5)


def test_the_table_has_ours_first_then_peers_by_speed() -> None:
    ways = WAYS | {"npy": {"cold": "plain reads, 8 threads", "warm": "map, 8 threads"}}
    rounds = [a_round(3.0, 0.5, 1.0), a_round(2.0, 0.75, 9.0), a_round(4.0, 0.25, 1.5)]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(ways, rounds).splitlines()]
    assert lines[0] == ["reader", "way", "float16, cold", "float16, warm", "int8, cold", "int8, warm", "memory"]
    assert [line[0] for line in lines[3:]] == [
        READERS["loader"].title,
        f"numpy, .npy {np.__version__}",
        f"h5py {version('h5py')}",
    ]
    assert lines[2][2:] == ["2.00 (1.00)", "", "", "", ""]
    assert lines[3][2:] == ["3.00 (0.50)"] * 4 + ["1.0 GB"]
    assert lines[4][1:3] == ["plain reads, 8 threads; warm: map, 8 threads", "1.50 (0.50)"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = dict.fromkeys(("plain", "fast"), READERS["npy"].ways["map, 8 threads"])
    monkeypatch.setitem(READERS, "older", Reader("older", "npy", "numpy", ways, {"fast": "1000"}))
    assert lacking("older") == [f"older, fast: numpy is {np.__version__}: pip install 'numpy>=1000'"]
    assert lacking("npy") == []
    both = {state: took(1.0) for state in STATES}
    monkeypatch.setattr(benchmark, "measured", lambda name, way, *_: {"float16": {"plain": both}[way]})
    assert fastest(Path(), ["older"], quick=False)["older"] == dict.fromkeys(STATES, "plain")


def test_a_page_needs_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKERS)
    assert page_with(page, "new") == MARKERS.replace("old", "new")
    page.write_text("nothing")
    with pytest.raises(BeyondClsError, match="has no `<!-- generated: store and peers -->`; write it"):
        page_with(page, "new")
