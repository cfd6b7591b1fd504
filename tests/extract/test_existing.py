"""A feature set that is there is kept, replaced, added to or mended: what both have is neither computed nor written again."""

import re
import shutil

import numpy as np
import pytest

from extract.attention import STATISTICS
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder
from extract.requests import Request
from extract.run import confirm
from extract.writing import Settings
from store import FeatureStore, StoreError, verify
from tests.extract.conftest import BAD, TWO, N
from tests.extract.pictures import samples, write_file, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files

SHARD = "patch/block1/view0/c/1/0/0"
EVERY, SELF = {"blocks": (0, 1)}, {"statistics": ("patch_self",)}


def part(*rows):
    return {"images": lambda images: images.part(rows)}


# What was extracted before, the verb and its options, what is extracted at once with the same result if other options are, and
# how many images are computed beside those of checks by a sample, and one to see the shapes.
CHANGES = {
    **{f"the same, {verb}": ({}, verb, {}, None, 0) for verb in ("refuse", "extend")},
    "another block": ({"blocks": (0,)}, "update", {"blocks": (1,)}, None, N - 2),
    "fewer blocks and statistics": (EVERY, "update", {"blocks": (1,), **SELF, "maps": False}, None, 0),
    "a statistic": ({"statistics": ("cls_self",)}, "update", {"statistics": TWO}, None, N - 2),
    "shards": ({"shard_rows": 64}, "update", EVERY, None, N - 2),
    "shards of less": ({**EVERY, "shard_rows": 64}, "update", {"blocks": (0,), "shard_rows": 32}, None, 0),
    "dtype": ({"dtype": "float32"}, "update", {"dtype": "int8"}, None, N - 2),
    "vectors": ({}, "update", {"vectors": "all"}, None, N - 2),
    # Images are known by their bytes.
    "another order": ({}, "update", part(*range(40, N), *range(40)), None, 0),
    "a few images": ({}, "update", part(5, 4, 7, 45, 60), None, 0),
    "the first images": ({}, "update", part(*range(33)), None, 0),
    "images before and behind": (part(*range(10, 50)), "update", {}, None, N - 40 - 1),
    "names of classes": ({}, "update", {"images": lambda images: ImageSet("s", images.samples, [*"abc"])}, None, 0),
    "all of them more": ({"blocks": (0,), **SELF, "maps": False}, "extend", EVERY, None, N - 2),
    "views more": ({"views": 2}, "extend", {"views": 3}, None, N - 2),
    "views and blocks that are not asked for": ({"views": 2, **EVERY}, "extend", SELF, {"views": 2, **EVERY}, 0),
    "images more": (part(*range(40)), "extend", {}, None, N - 40 - 1),  # the last shard held 8
}


def written(folder):
    """Of every shard of features its bytes, inode and time of change."""
    shards = {str(file.relative_to(folder)): file for file in folder.rglob("c/**/*") if file.is_file()}
    kept = {name: file for name, file in shards.items() if not name.startswith(("images/", "norm/"))}
    return {name: (file.read_bytes(), file.stat().st_ino, file.stat().st_mtime_ns) for name, file in kept.items()}


@pytest.fixture
def computed(run, encoder):
    """Images that a run computes beside those of its checks by a sample, in as many views as are compared, and one."""

    def computed(out, n_compared=1, **arguments):
        checks = []
        encoder.seen = 0
        run(out, **{"existing": "update", **arguments}, checked=lambda _, check: checks.append(check))
        return encoder.seen - 1 - sum(check.n_sampled for check in checks) * n_compared

    return computed


@pytest.mark.parametrize("change", CHANGES)
def test_what_both_have_is_taken_over(change, computed, images, make_set, whole, tmp_path):
    before, verb, after, result, n = CHANGES[change]
    before, after = ({n: v(images) if callable(v) else v for n, v in options.items()} for options in (before, after))
    make_set(tmp_path / "f", **before)
    shards, times = written(tmp_path / "f"), {file: file.stat().st_mtime_ns for file in (tmp_path / "f").rglob("*")}
    assert computed(tmp_path / "f", before.get("views", 1), existing=verb, **after) == n
    assert files(tmp_path / "f") == whole(**(after if result is None else result))
    assert not (tmp_path / ".staging").exists()
    new = written(tmp_path / "f")
    again = [name for name, shard in shards.items() if name in new and new[name][0] == shard[0] and new[name] != shard]
    assert change in ("dtype", "the first images") or not again, "shards that are alike are linked"
    if before == after:
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / "f").rglob("*")} == times


class TestUpdate:
    def test_random_views_go_by_the_id(self, run, encoder, make_set, whole, tmp_path):
        """The same bytes under another id have other crops."""
        renamed = [{**one, "__key__": f"x{one['__key__']}"} for one in samples(8)[4:]]
        sets = [open_images(str(write_tar(tmp_path / f"{len(n)}.tar", samples(8 - len(n)) + n))) for n in ([], renamed)]
        make_set(tmp_path / "f", images=sets[0], views=2)
        encoder.seen = 0
        run(tmp_path / "f", images=sets[1], views=2, existing="update")
        assert files(tmp_path / "f") == whole(images=sets[1], views=2)
        assert encoder.seen - 1 == 2 * 4 + 2 * 4, "of the second four two views; of the first four a sample"

    def test_a_run_that_was_stopped_goes_on(self, run, make_set, whole, tmp_path):
        """Also where another encoder takes its place."""
        before, calls = make_set(tmp_path / "f", encoder=tiny_encoder(1)).spec.key, iter(range(1000))

        def stop(_):
            if next(calls) == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "f", blocks=(1,), existing="update", progress=stop)
        assert FeatureStore.open(tmp_path / "f").spec.key == before, "until the other one is finished"
        run(tmp_path / "f", blocks=(1,), existing="update")
        assert files(tmp_path / "f") == whole(blocks=(1,))

    def test_a_copy_without_kinds_is_completed(self, run, make_set, whole, tmp_path):
        make_set(tmp_path / "f")
        for kind in ("patch", "average"):
            shutil.rmtree(tmp_path / "f" / kind)
        run(tmp_path / "f", existing="update")
        assert files(tmp_path / "f") == whole()

    def test_a_damaged_set_gives_way(self, run, make_set, whole, tmp_path):
        (make_set(tmp_path / "f").path / SHARD).write_bytes(b"cut")
        with pytest.raises(StoreError, match="has 3 bytes"):
            run(tmp_path / "f")
        notes = []
        run(tmp_path / "f", existing="update", warn=notes.append)
        assert files(tmp_path / "f") == whole()
        assert "It is extracted again" in notes[0]

    def test_tasks_share_it(self, run, make_set, whole, tmp_path):
        make_set(tmp_path / "f", blocks=(0,))
        for task in range(2):
            run(tmp_path / "f", **EVERY, vectors="all", existing="update", task_id=task, n_tasks=2)
        assert files(tmp_path / "f") == whole(**EVERY, vectors="all")


class TestExtend:
    def test_what_is_not_there_is_made_in_shards_that_suit_it(self, run, tmp_path):
        """A small set has one shard of at least 4 MiB."""
        store = run(tmp_path / "f", existing="extend", shard_rows=None)
        assert (len(store), store.tokens("patch").layout.n_shards) == (N, 1)
        assert store.shard_rows * store.tokens("patch").layout.row_nbytes >= 4 << 20

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            ({}, {"dtype": "int8"}, "f cannot be extended: dtype differ"),
            (part(*range(40, N)), {}, "its 30 images are not the first of the 70"),
            ({}, part(*range(40)), "its 70 images are not the first of the 40"),
        ],
        ids=["dtype", "images before those that are there", "fewer images"],
    )
    def test_refused(self, before, after, message, run, images, make_set, tmp_path):
        before, after = ({n: v(images) if n == "images" else v for n, v in options.items()} for options in (before, after))
        make_set(tmp_path / "f", **before)
        there = files(tmp_path / "f")
        with pytest.raises(StoreError, match=message):
            run(tmp_path / "f", **after, existing="extend")
        assert files(tmp_path / "f") == there

    def test_another_transform(self, run, make_set, tmp_path):
        """Such as that of a custom checkpoint, which was once taken from timm: the message has the options that give it."""
        transforms = ({"mean": (0.5, 0.5, 0.5), "crop_pct": 0.9}, {"mean": (0.485, 0.456, 0.406), "crop_pct": 0.875})
        old, new = (Encoder("tiny", tiny_encoder().model, {}, transform) for transform in transforms)
        make_set(tmp_path / "f", encoder=old)
        what = re.escape("transform (mean 0.5,0.5,0.5 and 0.485,0.456,0.406; crop_pct 0.9 and 0.875) differ")
        for existing in ("extend", "refuse", "repair"):
            options = "" if existing == "repair" else r".* \(--mean 0\.5,0\.5,0\.5 --crop-pct 0\.9\)"
            with pytest.raises(StoreError, match=f"{what}{options}"):
                run(tmp_path / "f", encoder=new, existing=existing)


class TestRepair:
    @pytest.mark.parametrize(("damage", "n_computed"), [("cut", 31), ("missing array", 0), ("flip missing array", 31)])
    def test_same_bytes_as_before(self, damage, n_computed, run, encoder, make_set, whole, tmp_path):
        folder = make_set(tmp_path / "f").path
        content = bytearray((folder / SHARD).read_bytes())
        if "flip" in damage:
            content[1234] ^= 4
        (folder / SHARD).write_bytes(content[:-1] if damage == "cut" else content)
        if "missing" in damage:
            (folder / "images/label/c/2").unlink()
        if "array" in damage:
            (folder / "cls/block1/view0/zarr.json").write_text("{}")
        run(folder, existing="repair")
        assert files(folder) == whole()
        assert not [problem for _, _, problem in verify(folder) if problem]
        assert encoder.seen == 1 + n_computed

    def test_with_other_options_or_of_a_part(self, run, make_set, tmp_path):
        make_set(tmp_path / "f")
        with pytest.raises(StoreError, match=r"these options give .* \(blocks, maps differ\)"):
            run(tmp_path / "f", blocks=(0,), existing="repair")
        shutil.rmtree(tmp_path / "f" / "cls")
        with pytest.raises(StoreError, match="is a copy without cls/block1/view0; pull all of it first"):
            run(tmp_path / "f", existing="repair")


class TestSource:
    def test_what_it_has_is_taken_over(self, computed, images, make_set, whole, tmp_path):
        few = images.part([*range(3, 60, 5), BAD[0]])
        assert computed(tmp_path / "few", images=few, existing="refuse", source=make_set(tmp_path / "full", **EVERY)) == 0
        assert files(tmp_path / "few") == whole(images=few)
        larger = FeatureStore.open(tmp_path / "few")
        assert computed(tmp_path / "again", existing="refuse", source=larger) == N - 2 - (len(few) - 1)
        assert files(tmp_path / "again") == whole()

    def test_one_without_digests_or_of_another_encoder(self, run, images, make_set, whole, tmp_path):
        source = make_set(tmp_path / "small", images=images.part(range(60, 20, -1)))
        assert np.array_equal(source.array("images/digest").all(), images.image_digests[60:20:-1])
        del source.arrays["images/digest"]
        with pytest.raises(StoreError, match=r"small has no digests of its images, expected .* images/digest, .* 0\.1\.0"):
            run(tmp_path / "g", source=source)
        other = make_set(tmp_path / "f", encoder=tiny_encoder(1))
        with pytest.raises(StoreError, match="f cannot be taken over from: weights, architecture differ"):
            run(tmp_path / "g", source=other)
        run(tmp_path / "g", older=other)
        assert files(tmp_path / "g") == whole(), "nothing fits, so nothing is taken over"


@pytest.fixture
def edit(monkeypatch):
    """Has the program give other values of a statistic from now on."""
    before = STATISTICS["cls_self"]
    return lambda: monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)


class TestEditedCode:
    @pytest.mark.parametrize("arguments", [{}, {"existing": "extend", **EVERY}], ids=["the same", "more"])
    def test_stops_unless_it_is_to_be_extracted_again(self, arguments, edit, run, make_set, tmp_path):
        """Also where another set would begin with it: it would hold the features of two programs."""
        source = make_set(tmp_path / "f")
        before, notes = files(tmp_path / "f"), []
        edit()
        with pytest.raises(StoreError, match=r"not what the program computes now: .*, most in statistics/cls_self/view0:"):
            run(tmp_path / "f", **arguments)
        with pytest.raises(StoreError, match="Leave out --from, and all is extracted; or undo the change"):
            run(tmp_path / "g", source=source, blocks=(0,))
        assert files(tmp_path / "f") == before
        assert not (tmp_path / ".staging").exists()
        run(tmp_path / "f", recompute=True, warn=notes.append, **arguments)
        run(tmp_path / "whole", **({"blocks": arguments["blocks"]} if arguments else {}))
        assert files(tmp_path / "f") == files(tmp_path / "whole")
        assert notes[0].endswith("it is extracted again")

    def test_stops_at_a_shared_root_or_with_several_tasks(self, edit, run, encoder, images, make_set, tmp_path):
        make_set(tmp_path / "few", **SELF)
        stored, request = make_set(tmp_path / "f"), Request.resolve(encoder, images, statistics=TWO)
        run(tmp_path / "f", recompute=True, n_tasks=2)
        edit()
        run(tmp_path / "few", **SELF)
        for recompute in (False, True):
            with pytest.raises(StoreError, match=r"remove that set \(beyondcls store rm, .*others may use it"):
                confirm(request, stored, Settings(on_error="record", recompute=recompute))
        with pytest.raises(StoreError, match="leave out the number of tasks; or remove it"):
            run(tmp_path / "f", recompute=True, n_tasks=2)


class TestWhatOthersMade:
    """A set that finds something in its way is finished all the same, and published elsewhere without computing it again."""

    @pytest.fixture
    def put(self, tmp_path):
        return lambda _: write_file(tmp_path / "f/notes.txt", b"mine")

    @pytest.mark.parametrize(("existing", "before"), [("refuse", None), ("update", (0,)), ("extend", None)])
    def test_published_under_another_name(self, existing, before, put, run, computed, make_set, whole, tmp_path):
        if before is not None:
            make_set(tmp_path / "f", blocks=before)
        with pytest.raises(StoreError, match=r"notes\.txt.* the finished set is in .*with another --out"):
            run(tmp_path / "f", **EVERY, existing=existing, progress=put)
        assert (tmp_path / "f/notes.txt").read_text() == "mine"
        assert len(list((tmp_path / "f").rglob("*"))) == 1 or FeatureStore.open(tmp_path / "f").spec.blocks == (0,)
        assert computed(tmp_path / "g", **EVERY, existing=existing) == 0
        assert files(tmp_path / "g") == whole(**EVERY)

    def test_not_if_the_program_was_changed_since(self, put, edit, run, encoder, tmp_path):
        with pytest.raises(StoreError, match="the finished set is in"):
            run(tmp_path / "f", progress=put)
        edit()
        run(tmp_path / "g")
        assert encoder.seen > 2 * N

    def test_a_folder_that_is_no_set_is_not_replaced(self, run, encoder, tmp_path):
        write_file(tmp_path / "photos/images/cat.jpg", b"mine")
        with pytest.raises(StoreError, match=r"cat\.jpg"):
            run(tmp_path / "photos", existing="update")
        assert files(tmp_path / "photos") == {"images/cat.jpg": b"mine"}
        assert encoder.seen <= 1, "refused before anything is computed"

    def test_recomputed_under_another_name(self, put, edit, run, computed, make_set, tmp_path):
        """The key is that of the set which is there; giving the same command again removes nothing."""
        make_set(tmp_path / "f")
        edit()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"notes\.txt"):
                run(tmp_path / "f", existing="update", recompute=True, progress=put)
        assert computed(tmp_path / "g") == 0
