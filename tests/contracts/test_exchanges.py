"""What holds for every form of exchange: exported and imported again, the same files, or an error that names what is wrong."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import ArrayReader, FeatureStore, StoreError
from store.exchange import EXCHANGES, form_of, import_from
from store.places.disk import partial_name
from tests.folders import files
from tests.store import exported as sets_to_export
from tests.store.exported import PATCH, SHARD, export, import_as, write_set
from tests.store.test_writing import before_call

Made = Callable[[str], Path]
store, ready = sets_to_export.store, sets_to_export.ready
pytestmark = pytest.mark.parametrize("form", EXCHANGES)


def contents(path: Path) -> dict[str, bytes]:
    return files(path) if path.is_dir() else {"": path.read_bytes()}


@pytest.mark.parametrize("codec", ["float16", "int4"])
def test_round_trip_gives_the_same_files(form: str, codec: str, tmp_path: Path) -> None:
    one = write_set(tmp_path / "one", codec)
    back = import_as(form, export(FeatureStore.open(one), form, tmp_path), tmp_path / "back")
    assert files(tmp_path / "back") == files(one)
    assert len(back.attributes["invalid"]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "exported", "one"]


def test_is_seen_from_what_it_wrote(form: str, ready: Made, tmp_path: Path) -> None:
    exchange = EXCHANGES[form]
    assert exchange.name == form
    assert form_of(ready(form)) is exchange
    assert not exchange.fits(tmp_path)
    with pytest.raises(StoreError) as caught:
        form_of(tmp_path)
    assert f"{form} ({exchange.looks})" in str(caught.value)


@pytest.mark.parametrize("other", EXCHANGES)
def test_is_not_read_as_another(form: str, other: str, ready: Made, tmp_path: Path) -> None:
    source = ready(form) if other != form else tmp_path / "none"
    with pytest.raises(StoreError, match=source.name):
        import_as(other, source, tmp_path / "back")


def test_export_is_deterministic(
    store: FeatureStore, form: str, ready: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert contents(export(store, form, tmp_path)) == contents(ready(form))


def test_reads_shard_by_shard_and_tells_its_progress(
    store: FeatureStore, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    done: list[int] = []
    stored = ArrayReader.stored
    monkeypatch.setattr(ArrayReader, "stored", lambda self, rows: (asked.append(len(rows)), stored(self, rows))[1])
    EXCHANGES[form].export(store, tmp_path / "x", list(store.arrays), done.append)
    assert max(asked) <= SHARD
    assert sum(done) == sum(array.layout.n_shards for array in store.arrays.values())
    done.clear()
    with EXCHANGES[form].read(tmp_path / "x") as opened:
        import_from(opened, tmp_path / "back", done.append)
    assert sum(done) == sum(a.layout.n_shards for name, a in store.arrays.items() if not name.startswith("norm/"))


def test_a_part_of_a_set_says_so(store: FeatureStore, form: str, tmp_path: Path) -> None:
    source = export(store, form, tmp_path, ["norm"])
    with pytest.raises(StoreError, match=r"it lacks 6 of its 8 arrays \(images/id.*exported without --arrays"):
        import_as(form, source, tmp_path / "back")
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


def test_a_copy_without_a_kind(store: FeatureStore, form: str, tmp_path: Path) -> None:
    shutil.rmtree(shutil.copytree(store.path, tmp_path / "copy") / "cls")
    source = export(FeatureStore.open(tmp_path / "copy"), form, tmp_path)
    with pytest.raises(StoreError, match=r"it lacks 1 of its 8 arrays \(cls/block5/view0\)"):
        import_as(form, source, tmp_path / "back")


class TestAllOrNothing:
    def test_what_exists_is_left_alone(self, store: FeatureStore, form: str, tmp_path: Path) -> None:
        (tmp_path / "exported").write_bytes(b"mine")
        with pytest.raises(StoreError, match="already exists; give another name"):
            export(store, form, tmp_path)
        assert files(tmp_path) == {"exported": b"mine"}

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StoreError("it is damaged")], ids=str)
    def test_nothing_is_left_of_one_that_fails(
        self, store: FeatureStore, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def fail() -> None:
            raise error

        before_call(9, fail, monkeypatch, ArrayReader, "stored")
        with pytest.raises(StoreError, match=str(error.args[-1])):
            export(store, form, tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("what", ["folder", "file"])
    def test_remains_of_a_killed_export_are_removed_after_an_hour(
        self, store: FeatureStore, form: str, ready: Made, what: str, tmp_path: Path
    ) -> None:
        old, recent = (partial_name(tmp_path / ".exported") for _ in range(2))
        for remains in (old, recent):
            (remains / "old").mkdir(parents=True) if what == "folder" else remains.write_bytes(b"old")
        for path in (old, *old.rglob("*")):
            os.utime(path, (1, 1))
        source = export(store, form, tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([source, recent]), "another process may be writing it"
        assert contents(source) == contents(ready(form))

    def test_of_two_exporters_the_first_to_end_stays(
        self, store: FeatureStore, form: str, ready: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[Path] = []
        stored = ArrayReader.stored

        def meanwhile(self: ArrayReader, rows: np.ndarray) -> np.ndarray:
            if not begun:
                begun.append(tmp_path)
                begun.append(export(store, form, tmp_path))
            return stored(self, rows)

        monkeypatch.setattr(ArrayReader, "stored", meanwhile)
        with pytest.raises(StoreError, match=r"was made by others meanwhile|already exists"):
            export(store, form, tmp_path)
        assert list(tmp_path.iterdir()) == [begun[1]]
        assert contents(begun[1]) == contents(ready(form))

    def test_an_occupied_place_is_refused(self, form: str, ready: Made, tmp_path: Path) -> None:
        (tmp_path / "back").mkdir()
        (tmp_path / "back/mine").write_text("keep")
        with pytest.raises(StoreError, match="already holds files"):
            import_as(form, ready(form), tmp_path / "back")
        assert files(tmp_path / "back") == {"mine": b"keep"}

    def test_an_interrupted_import_goes_on(self, store: FeatureStore, form: str, ready: Made, tmp_path: Path) -> None:
        asked: list[int] = []
        for stop_at in (1, 3):
            with EXCHANGES[form].read(ready(form)) as opened:
                unit = opened.unit

                def killed(number: int, unit: Callable = unit, stop_at: int = stop_at) -> dict[str, np.ndarray]:
                    if number == stop_at:
                        raise KeyboardInterrupt
                    asked.append(number)
                    return unit(number)

                opened.unit = killed  # type: ignore[method-assign]
                if stop_at < 3:
                    with pytest.raises(KeyboardInterrupt):
                        import_from(opened, tmp_path / "back")
                    assert not (tmp_path / "back").exists()
                else:
                    import_from(opened, tmp_path / "back")
        assert asked == [0, 1, 2]
        assert files(tmp_path / "back") == files(store.path)


class TestDamage:
    def test_any_is_found_or_harmless(self, store: FeatureStore, form: str, ready: Made, tmp_path: Path) -> None:
        generator = np.random.default_rng(0)
        whole, outcomes, copy = files(store.path), set(), shutil.copytree if ready(form).is_dir() else shutil.copy
        for attempt in range(16):
            source = Path(copy(ready(form), tmp_path / f"{attempt}-exported"))
            damaged = sorted(p for p in ([source] if source.is_file() else source.rglob("*")) if p.is_file())
            file = damaged[generator.integers(len(damaged))]
            content = bytearray(file.read_bytes())
            at = int(generator.integers(len(content) if attempt % 2 else min(len(content), 2000)))
            if attempt % 4 == 0:
                del content[at:]
            else:
                content[at] ^= 1 << int(generator.integers(8))
            file.write_bytes(content)
            out = tmp_path / f"back{attempt}"
            try:
                import_as(form, source, out)
            except StoreError as error:
                outcomes.add(file.name in str(error))
                assert not out.exists()
            else:
                assert files(out) == whole
        assert outcomes == {True}, "found, and named"

    def test_values_of_others(self, store: FeatureStore, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stored = ArrayReader.stored

        def changed(self: ArrayReader, rows: np.ndarray) -> np.ndarray:
            values = np.array(stored(self, rows))
            if self.name == PATCH:
                values[rows == 40] = 0.25
            return values

        with monkeypatch.context() as patch:
            patch.setattr(ArrayReader, "stored", changed)
            source = export(store, form, tmp_path)
        with pytest.raises(StoreError, match=r"rows 32 to 63 of patch/block5/view0 are not those that were exported"):
            import_as(form, source, tmp_path / "back")
