"""A set takes the place of another, or begins with what another one holds: what both have is not computed again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.attention import STATISTICS
from extract.datasets import ImageSet, open_images
from extract.requests import Request
from extract.run import confirm
from extract.sample import SampleCheck
from extract.writing import Settings
from store import FeatureStore, StoreError
from tests.extract.conftest import BAD, N, Run, Whole
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import Counting, tiny_encoder
from tests.folders import files


@pytest.fixture
def computed(run: Run, encoder: Counting, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Images that a run computes beside those of its checks by a sample and one to see the shapes; none are sampled twice."""

    def computed(out: Path, **arguments: Any) -> int:
        checks: list[SampleCheck] = []
        encoder.seen = 0
        run(out, **{"existing": "update", **arguments}, checked=lambda _, check: checks.append(check))
        views = arguments.get("views", 1)
        return encoder.seen - 1 - sum(check.n_sampled for check in checks) * views

    return computed


class TestUpdate:
    """`existing="update"`."""

    def test_the_same_set_stays(self, computed: Callable[..., int], make_set: Run, tmp_path: Path) -> None:
        make_set(tmp_path / "f")
        times = {file: file.stat().st_mtime_ns for file in (tmp_path / "f").rglob("*")}
        assert computed(tmp_path / "f") == 0
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / "f").rglob("*")} == times

    @pytest.mark.parametrize(
        ("before", "after", "n"),
        [
            ({"blocks": (0,)}, {"blocks": (0, 1)}, N - 2),
            ({"blocks": (0, 1)}, {"blocks": (1,)}, 0),
            ({"blocks": (0,)}, {"blocks": (1,)}, N - 2),
            ({"statistics": ("cls_self",)}, {"statistics": ("cls_self", "patch_self")}, N - 2),
            ({}, {"statistics": ("patch_self",), "maps": False}, 0),
            ({"shard_rows": 64}, {"blocks": (0, 1)}, N - 2),
            ({"dtype": "float32"}, {"dtype": "int8"}, N - 2),
            ({"blocks": (0, 1), "shard_rows": 64}, {"blocks": (0,), "shard_rows": 32}, 0),
            ({}, {"vectors": "all"}, N - 2),
            ({"vectors": "all"}, {"blocks": (1,)}, 0),
        ],
        ids=["block", "fewer", "another", "statistic", "without", "shards", "dtype", "shards of less", "vectors", "no vectors"],
    )
    def test_what_both_have_is_taken_over(
        self,
        before: dict[str, Any],
        after: dict[str, Any],
        n: int,
        computed: Callable[..., int],
        make_set: Run,
        whole: Whole,
        tmp_path: Path,
    ) -> None:
        make_set(tmp_path / "f", **before)
        assert computed(tmp_path / "f", **after) == n
        assert files(tmp_path / "f") == whole(**after)
        assert not (tmp_path / ".staging").exists()

    def test_shards_that_are_alike_are_linked(self, run: Run, make_set: Run, tmp_path: Path) -> None:
        make_set(tmp_path / "f", blocks=(0,))
        inode = (tmp_path / "f/patch/block0/view0/c/0/0/0").stat().st_ino
        run(tmp_path / "f", blocks=(0, 1), existing="update")
        assert (tmp_path / "f/patch/block0/view0/c/0/0/0").stat().st_ino == inode

    @pytest.mark.parametrize(
        "order",
        [[*range(40, N), *range(40)], [5, 4, 3, 60, 61], [1, 2, 7, 45], list(range(33))],
        ids=["another order", "a few", "invalid ones", "the first"],
    )
    def test_images_are_known_by_their_bytes(
        self, order: list[int], run: Run, computed: Callable[..., int], images: ImageSet, make_set: Run, tmp_path: Path
    ) -> None:
        make_set(tmp_path / "f")
        part = images.part(order)
        assert computed(tmp_path / "f", images=part) == 0
        whole = run(tmp_path / "whole", images=part)
        assert files(tmp_path / "f") == files(tmp_path / "whole")
        assert [note["row"] for note in whole.attributes["invalid"]] == [r for r, image in enumerate(order) if image in BAD]

    @pytest.mark.parametrize(("before", "after", "n"), [({}, {}, N - 40 - 1), ({"blocks": (0,)}, {"blocks": (0, 1)}, N - 2)])
    def test_only_new_images_are_computed(
        self, before: Any, after: Any, n: int, computed: Any, images: ImageSet, make_set: Run, whole: Whole, tmp_path: Path
    ) -> None:
        """10 before and 20 behind; of those that cannot be read one is new. With a new block, all are."""
        make_set(tmp_path / "f", images=images.part(range(10, 50)), **before)
        assert computed(tmp_path / "f", **after) == n
        assert files(tmp_path / "f") == whole(**after)

    def test_random_views_go_by_the_id(self, run: Run, encoder: Counting, make_set: Run, whole: Whole, tmp_path: Path) -> None:
        """The same bytes under another id have other crops."""
        first, second = samples(8), samples(8)
        for sample in second[4:]:
            sample["__key__"] = f"x{sample['__key__']}"
        sets = [open_images(str(write_tar(tmp_path / f"{i}.tar", content))) for i, content in enumerate((first, second))]
        make_set(tmp_path / "f", images=sets[0], views=2)
        encoder.seen = 0
        run(tmp_path / "f", images=sets[1], views=2, existing="update")
        assert files(tmp_path / "f") == whole(images=sets[1], views=2)
        assert encoder.seen - 1 == 2 * 4 + 2 * 4, "of the second four two views; of the first four a sample"

    def test_another_encoder_takes_its_place(self, run: Run, make_set: Run, whole: Whole, tmp_path: Path) -> None:
        make_set(tmp_path / "f")
        other = tiny_encoder(1)
        run(tmp_path / "f", encoder=other, existing="update")
        assert files(tmp_path / "f") == whole(encoder=other)

    def test_a_run_that_was_stopped_goes_on(self, run: Run, make_set: Run, whole: Whole, tmp_path: Path) -> None:
        before = make_set(tmp_path / "f", blocks=(0,)).spec.key

        calls = iter(range(1000))

        def stop(_: int) -> None:
            if next(calls) == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "f", blocks=(1,), existing="update", progress=stop)
        assert FeatureStore.open(tmp_path / "f").spec.key == before, "until the other one is finished"
        run(tmp_path / "f", blocks=(1,), existing="update")
        assert files(tmp_path / "f") == whole(blocks=(1,))

    def test_a_copy_without_a_kind_is_completed(self, run: Run, make_set: Run, tmp_path: Path) -> None:
        make_set(tmp_path / "f")
        before = files(tmp_path / "f")
        shutil.rmtree(tmp_path / "f/patch")
        run(tmp_path / "f", existing="update")
        assert files(tmp_path / "f") == before

    def test_a_damaged_set_gives_way(self, run: Run, make_set: Run, tmp_path: Path) -> None:
        make_set(tmp_path / "f")
        before = files(tmp_path / "f")
        (tmp_path / "f/patch/block1/view0/c/1/0/0").write_bytes(b"cut")
        notes: list[str] = []
        run(tmp_path / "f", existing="update", warn=notes.append)
        assert files(tmp_path / "f") == before
        assert "It is extracted again; what is there is replaced when that is finished" in notes[0]
        (tmp_path / "f/patch/block1/view0/c/1/0/0").write_bytes(b"cut")
        with pytest.raises(StoreError, match="has 3 bytes"):
            run(tmp_path / "f")

    def test_names_of_classes_are_brought_up_to_date(
        self, computed: Callable[..., int], images: ImageSet, make_set: Run, whole: Whole, tmp_path: Path
    ) -> None:
        make_set(tmp_path / "f")
        named = ImageSet(images.source, images.samples, ["a", "b", "c"])
        assert computed(tmp_path / "f", images=named) == 0
        assert FeatureStore.open(tmp_path / "f").attributes["classes"] == ["a", "b", "c"]
        assert files(tmp_path / "f") == whole(images=named)

    def test_tasks_share_it(self, run: Run, make_set: Run, whole: Whole, tmp_path: Path) -> None:
        make_set(tmp_path / "f", blocks=(0,))
        for task in range(2):
            run(tmp_path / "f", blocks=(0, 1), existing="update", task_id=task, n_tasks=2)
        assert files(tmp_path / "f") == whole(blocks=(0, 1))


class TestSource:
    """`source`."""

    def test_what_it_has_is_taken_over(
        self, computed: Callable[..., int], images: ImageSet, make_set: Run, whole: Whole, tmp_path: Path
    ) -> None:
        source = make_set(tmp_path / "full", blocks=(0, 1))
        few = images.part(range(3, 60, 5))
        assert computed(tmp_path / "few", images=few, existing="refuse", source=source) == 0
        assert files(tmp_path / "few") == whole(images=few)
        larger = FeatureStore.open(tmp_path / "few")
        assert computed(tmp_path / "again", existing="refuse", source=larger) == N - 2 - len(few) + (1 in few_bad(few))
        assert files(tmp_path / "again") == whole()

    def test_one_without_digests(self, run: Run, images: ImageSet, make_set: Run, tmp_path: Path) -> None:
        source = make_set(tmp_path / "small", images=images.part(range(60, 20, -1)))
        del source.arrays["images/digest"]
        with pytest.raises(StoreError, match=r"small has no digests of its images, expected .* images/digest, .* 0\.1\.0"):
            run(tmp_path / "g", source=source)

    def test_another_encoder(self, run: Run, make_set: Run, whole: Whole, tmp_path: Path) -> None:
        source = make_set(tmp_path / "f", encoder=tiny_encoder(1))
        with pytest.raises(StoreError, match="f cannot be taken over from: weights, architecture differ"):
            run(tmp_path / "g", source=source)
        run(tmp_path / "g", older=source)
        assert files(tmp_path / "g") == whole(), "nothing fits, so nothing is taken over"


def few_bad(images: ImageSet) -> list[int]:
    return [sum(sample.id == f"{bad:04d}" for bad in BAD) for sample in images.samples]


class TestEditedCode:
    @pytest.fixture
    def edit(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        before = STATISTICS["cls_self"]
        return lambda: monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)

    @pytest.mark.parametrize("arguments", [{}, {"existing": "update", "blocks": (0,)}, {"existing": "extend", "blocks": (0,)}])
    def test_stops(self, arguments: dict[str, Any], edit: Callable[[], None], run: Run, tmp_path: Path) -> None:
        """Also where another set would begin with it: it would hold the features of two programs."""
        run(tmp_path / "f")
        before = files(tmp_path / "f")
        edit()
        with pytest.raises(StoreError, match=r"not what the program computes now: .*, most in statistics/cls_self/view0:"):
            run(tmp_path / "f", **arguments)
        assert files(tmp_path / "f") == before
        assert not (tmp_path / ".staging").exists()

    def test_stops_at_a_source(self, edit: Callable[[], None], run: Run, make_set: Run, tmp_path: Path) -> None:
        source = make_set(tmp_path / "f")
        edit()
        with pytest.raises(StoreError, match="Leave out --from, and all is extracted; or undo the change"):
            run(tmp_path / "g", source=source, blocks=(0,))

    def test_stops_at_a_shared_root(
        self, edit: Callable[[], None], encoder: Counting, images: ImageSet, make_set: Run, tmp_path: Path
    ) -> None:
        shared_set = make_set(tmp_path / "f")
        edit()
        for recompute in (False, True):
            with pytest.raises(StoreError, match=r"remove that set \(beyondcls store rm, .*others may use it"):
                confirm(Request.resolve(encoder, images), shared_set, Settings(on_error="record", recompute=recompute))

    @pytest.mark.parametrize(
        "arguments", [{}, {"existing": "update", "blocks": (0,)}, {"existing": "extend", "blocks": (0, 1)}]
    )
    def test_is_extracted_again_if_that_is_wanted(
        self, arguments: dict[str, Any], edit: Callable[[], None], run: Run, make_set: Run, tmp_path: Path
    ) -> None:
        make_set(tmp_path / "f")
        edit()
        notes: list[str] = []
        run(tmp_path / "f", recompute=True, warn=notes.append, **arguments)
        run(tmp_path / "whole", **({"blocks": arguments["blocks"]} if arguments else {}))
        assert files(tmp_path / "f") == files(tmp_path / "whole")
        assert notes[0].endswith("it is extracted again")

    def test_another_array_does_not_matter(self, edit: Callable[[], None], run: Run, make_set: Run, tmp_path: Path) -> None:
        """The statistic is not asked for."""
        make_set(tmp_path / "f", statistics=("patch_self",))
        edit()
        run(tmp_path / "f", statistics=("patch_self",))

    def test_one_process_recomputes(self, edit: Callable[[], None], run: Run, make_set: Run, tmp_path: Path) -> None:
        make_set(tmp_path / "f")
        run(tmp_path / "f", recompute=True, n_tasks=2)
        edit()
        with pytest.raises(StoreError, match=r"leave out the number of tasks; or remove it \(beyondcls store rm\), and all"):
            run(tmp_path / "f", recompute=True, n_tasks=2)


def test_digests_of_images(images: ImageSet, make_set: Run, tmp_path: Path) -> None:
    store = make_set(tmp_path / "f")
    assert np.array_equal(store.array("images/digest").all(), images.image_digests)
    assert len(np.unique(images.image_digests, axis=0)) == N


class TestWhatOthersMade:
    """A set that finds something in its way is finished all the same, and published elsewhere without computing it again."""

    @pytest.mark.parametrize("existing", ["refuse", "update", "extend"])
    @pytest.mark.parametrize("before", [None, (0,)])
    def test_published_under_another_name(
        self,
        existing: str,
        before: tuple[int, ...] | None,
        run: Run,
        computed: Callable[..., int],
        make_set: Run,
        tmp_path: Path,
    ) -> None:
        if before is not None:
            if existing == "refuse":
                pytest.skip("refused at once")
            make_set(tmp_path / "f", blocks=before)

        def put(_: int) -> None:
            (tmp_path / "f").mkdir(exist_ok=True)
            (tmp_path / "f/notes.txt").write_text("mine")

        wanted = {"blocks": (0, 1), "existing": existing}
        with pytest.raises(StoreError, match=r"notes\.txt.* the finished set is in .*with another --out"):
            run(tmp_path / "f", **wanted, progress=put)
        assert (tmp_path / "f/notes.txt").read_text() == "mine"
        assert len(list((tmp_path / "f").rglob("*"))) == 1 or FeatureStore.open(tmp_path / "f").spec.blocks == (0,)
        assert computed(tmp_path / "g", **wanted) == 0
        make_set(tmp_path / "whole", blocks=(0, 1))
        assert files(tmp_path / "g") == files(tmp_path / "whole")

    def test_not_if_the_program_was_changed_since(
        self, run: Run, encoder: Counting, monkeypatch: pytest.MonkeyPatch, make_set: Run, tmp_path: Path
    ) -> None:
        with pytest.raises(StoreError, match="the finished set is in"):
            run(
                tmp_path / "f", progress=lambda _: make_set(tmp_path / "f", blocks=(0,)) if not (tmp_path / "f").exists() else 0
            )
        before = STATISTICS["cls_self"]
        monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)
        run(tmp_path / "g")
        assert encoder.seen > 2 * N

    def test_a_folder_that_is_no_set_is_not_replaced(self, run: Run, encoder: Counting, tmp_path: Path) -> None:
        (tmp_path / "photos/images").mkdir(parents=True)
        (tmp_path / "photos/images/cat.jpg").write_text("mine")
        with pytest.raises(StoreError, match=r"cat\.jpg"):
            run(tmp_path / "photos", existing="update")
        assert files(tmp_path / "photos") == {"images/cat.jpg": b"mine"}
        assert encoder.seen <= 1, "refused before anything is computed"

    def test_recomputed_under_another_name(
        self, run: Run, computed: Callable[..., int], make_set: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The key is that of the set which is there; giving the same command again removes nothing."""
        make_set(tmp_path / "f")
        before = STATISTICS["cls_self"]
        monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)
        put = lambda _: (tmp_path / "f/notes.txt").write_text("mine")  # noqa: E731
        for _ in range(2):
            with pytest.raises(StoreError, match=r"notes\.txt"):
                run(tmp_path / "f", existing="update", recompute=True, progress=put)
        assert computed(tmp_path / "g") == 0
