from pathlib import Path

from benchmarks.growth import steps


def test_every_step_is_measured(tmp_path: Path) -> None:
    taken = steps(tmp_path, 200)
    assert [*taken] == ["index", "digest", "describe", "write", "open", "epoch", "receipt", "verify", "push"]
    assert all(step["seconds"] > 0 and step["megabytes"] > 10 for step in taken.values())
