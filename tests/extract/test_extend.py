"""A feature set that is there is added to, or mended: only what it lacks is computed, and the rest is not touched."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from extract.datasets import open_images
from extract.encoders import Encoder
from extract.layouts import is_annotation
from store import StoreError, verify
from tests.extract.conftest import N
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files

SAMPLED, SAMPLED_OF_40 = 35, 32  # valid images that a check by a sample computes, of all and of the first 40


def shards(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every shard of features; annotations are always written anew."""
    names = (str(f.relative_to(folder)) for f in sorted(folder.rglob("c/**/*")) if f.is_file())
    kept = (name for name in names if not is_annotation(name.partition("/c/")[0]))
    return {name: ((folder / name).stat().st_ino, (folder / name).stat().st_mtime_ns) for name in kept}


@pytest.mark.parametrize(
    "less",
    [
        {"blocks": (-1,)},
        {"statistics": ("patch_self",)},
        {"maps": False},
        {"blocks": (0,), "statistics": ("patch_self",), "maps": False},
    ],
    ids=["block", "statistics", "maps", "all"],
)
def test_what_is_added_is_what_would_have_been_there(less, run, make_set, whole, tmp_path):
    make_set(tmp_path / "f", **{"blocks": (0, 1), **less})
    before = shards(tmp_path / "f")
    run(tmp_path / "f", blocks=(0, 1), existing="extend")
    assert files(tmp_path / "f") == whole(blocks=(0, 1))
    after = shards(tmp_path / "f")
    assert {name: after[name] for name in before if "norm" not in name} == {n: v for n, v in before.items() if "norm" not in n}
    assert not (tmp_path / ".staging").exists()


def test_what_is_there_stays_though_it_is_not_asked_for(run, make_set, tmp_path):
    make_set(tmp_path / "f", blocks=(0,))
    extended = run(tmp_path / "f", blocks=(1,), statistics=(), maps=False, existing="extend")
    assert extended.spec.blocks == (0, 1)
    assert extended.spec.statistics
    assert extended.spec.maps


def test_more_images(run, encoder, images, make_set, whole, tmp_path):
    """The last shard of 40 images held 8; they are kept, and only images behind them are computed."""
    small = make_set(tmp_path / "f", images=images.part(range(40)))
    tokens = small.tokens("patch").all()
    before, encoder.seen = shards(tmp_path / "f"), 0
    large = run(tmp_path / "f", existing="extend")
    assert encoder.seen == 1 + SAMPLED_OF_40 + 30 - 1, "to see the shapes, a sample, 30 new images but one that cannot be read"
    assert len(large) == N
    assert np.array_equal(large.tokens("patch").rows(range(40)), tokens)
    assert [note["row"] for note in large.attributes["invalid"]] == [7, 45]
    after = shards(tmp_path / "f")
    full = [name for name in before if "/c/0" in name and "norm" not in name]
    assert full
    assert all(after[name] == before[name] for name in full)
    assert files(tmp_path / "f") == whole()


def test_longer_ids(run, make_set, whole, tmp_path):
    write_tar(tmp_path / "tars" / "0.tar", samples(40))
    make_set(tmp_path / "f", images=open_images(str(tmp_path / "tars")))
    longer = [{**sample, "__key__": f"one-with-a-long-name-{i}"} for i, sample in enumerate(samples(3))]
    write_tar(tmp_path / "tars" / "1.tar", longer)
    images = open_images(str(tmp_path / "tars"))
    extended = run(tmp_path / "f", images=images, existing="extend")
    assert extended.ids == [sample.id for sample in images.samples]
    assert files(tmp_path / "f") == whole(images=images)


def test_nothing_to_add(run, encoder, make_set, tmp_path):
    make_set(tmp_path / "f")
    before, encoder.seen = shards(tmp_path / "f"), 0
    run(tmp_path / "f", existing="extend")
    assert encoder.seen == 1 + SAMPLED, "to see the shapes, and a sample"
    assert shards(tmp_path / "f") == before


def test_extending_what_is_not_there_makes_it(run, tmp_path):
    assert len(run(tmp_path / "f", existing="extend")) == N


class TestRefused:
    @pytest.mark.parametrize(
        ("other", "differ"),
        [({"encoder": tiny_encoder(1)}, "weights, architecture differ; give another set"), ({"dtype": "int8"}, "dtype differ")],
        ids=["encoder", "dtype"],
    )
    def test_another_encoder_or_dtype(self, other, differ, run, make_set, tmp_path):
        make_set(tmp_path / "f")
        with pytest.raises(StoreError, match=f"f cannot be extended: {differ}"):
            run(tmp_path / "f", **other, existing="extend")

    def test_another_transform(self, run, make_set, tmp_path):
        """Such as that of a custom checkpoint, which was once taken from timm: the message has the options that give it."""
        old = Encoder("tiny", tiny_encoder().model, {}, {"mean": (0.5, 0.5, 0.5), "crop_pct": 0.9})
        new = Encoder("tiny", tiny_encoder().model, {}, {"mean": (0.485, 0.456, 0.406), "crop_pct": 0.875})
        make_set(tmp_path / "f", encoder=old)
        what = re.escape("transform (mean 0.5,0.5,0.5 and 0.485,0.456,0.406; crop_pct 0.9 and 0.875) differ")
        for existing in ("extend", "refuse"):
            with pytest.raises(StoreError, match=rf"{what}.* \(--mean 0\.5,0\.5,0\.5 --crop-pct 0\.9\)"):
                run(tmp_path / "f", encoder=new, existing=existing)
        with pytest.raises(StoreError, match=what):
            run(tmp_path / "f", encoder=new, existing="repair")

    @pytest.mark.parametrize(
        ("stored_rows", "requested_rows", "message"),
        [
            (range(40, N), range(N), "its 30 images are not the first of the 70 in .*; new images must come after"),
            (range(N), range(40), "its 70 images are not the first of the 40"),
        ],
        ids=["before those that are there", "fewer"],
    )
    def test_images(self, stored_rows, requested_rows, message, run, images, make_set, tmp_path):
        make_set(tmp_path / "f", images=images.part(stored_rows))
        before = files(tmp_path / "f")
        with pytest.raises(StoreError, match=message):
            run(tmp_path / "f", images=images.part(requested_rows), existing="extend")
        assert files(tmp_path / "f") == before


class TestRepair:
    @pytest.mark.parametrize("damage", ["flip", "cut", "missing", "array", "all"])
    def test_same_bytes_as_before(self, damage, run, encoder, make_set, tmp_path):
        run(tmp_path / "f")
        before = files(tmp_path / "f")
        shard = tmp_path / "f" / "patch/block1/view0/c/1/0/0"
        if damage in ("flip", "all"):
            content = bytearray(shard.read_bytes())
            content[1234] ^= 4
            shard.write_bytes(content)
        if damage == "cut":
            shard.write_bytes(shard.read_bytes()[:-1])
        if damage in ("missing", "all"):
            (tmp_path / "f" / "images/label/c/2").unlink()
        if damage in ("array", "all"):
            (tmp_path / "f" / "cls/block1/view0/zarr.json").write_text("{}")
        encoder.seen = 0
        run(tmp_path / "f", existing="repair")
        assert files(tmp_path / "f") == before
        assert not [problem for _, _, problem in verify(tmp_path / "f") if problem]
        computed = {"flip": 31, "cut": 31, "missing": 0, "array": 0, "all": 31}
        assert encoder.seen == 1 + computed[damage]

    def test_with_other_options(self, run, make_set, tmp_path):
        make_set(tmp_path / "f")
        with pytest.raises(StoreError, match=r"these options give .* \(blocks, maps differ\)"):
            run(tmp_path / "f", blocks=(0,), existing="repair")

    def test_of_a_part(self, run, make_set, tmp_path):
        make_set(tmp_path / "f")
        shutil.rmtree(tmp_path / "f" / "cls")
        with pytest.raises(StoreError, match="is a copy without cls/block1/view0; pull all of it first"):
            run(tmp_path / "f", existing="repair")


def test_shards_that_suit_the_set(run, tmp_path):
    """A small set has one shard of at least 4 MiB."""
    store = run(tmp_path / "f", shard_rows=None)
    assert store.shard_rows * store.tokens("patch").layout.row_nbytes >= 4 << 20
    assert store.tokens("patch").layout.n_shards == 1
