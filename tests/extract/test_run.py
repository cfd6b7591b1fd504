"""Extraction: order, completeness, bad images, going on after a kill, what is refused."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from extract.attention import PER_BLOCK, STATISTICS
from extract.datasets import DataError, ImageSet, open_images
from extract.encoders import Encoder
from extract.loop import Passes
from extract.requests import Request, possible_statistics
from store import BeyondClsError, FeatureStore, StoreError, verify
from tests.extract.conftest import N
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_file, write_tar
from tests.extract.tiny import sharpen, tiny_encoder
from tests.folders import files


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    content = samples(N)
    content[5]["png"] = picture(5, width=33, height=50)
    write_tar(folder / "0.tar", content[:40])
    write_tar(folder / "1.tar", content[40:])
    write_file(folder / "classes.txt", b"ape\nbee\ncat\n")
    return open_images(str(folder))


@pytest.fixture(scope="module")
def encoder():
    encoder = tiny_encoder()
    sharpen(encoder.model, 8)
    return Encoder("tiny", encoder.model, {"sharp": True})


@pytest.fixture(scope="module")
def run(encoder, images):
    """extract() with small shards; every argument can be given otherwise."""

    def run(out, encoder=encoder, images=images, **arguments):
        return extract(encoder, images, out, **{"shard_rows": 32, "batch_size": 8, "workers": 2, **arguments})

    return run


@pytest.fixture(scope="module")
def store(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "features", blocks=(0, -1))


def with_bad(folder: Path) -> ImageSet:
    """40 images; 3 is cut, 35 has no label, 38 no image, and the tar behind them is empty."""
    content = samples(40)
    content[3]["png"] = picture(3)[:-40]
    del content[35]["cls"]
    del content[38]["png"]
    write_tar(folder / "0.tar", content)
    write_file(folder / "1.tar", b"")
    return open_images(str(folder))


class TestWhole:
    def test_rows_are_the_images_in_order(self, store, images):
        assert len(store) == N
        assert store.ids == [f"{i:04}" for i in range(N)]
        assert store.labels.tolist() == [i % 3 for i in range(N)]
        assert store.valid.all()
        sizes = store.array("images/size").all().tolist()
        assert sizes == [[50, 33] if i == 5 else [40, 36] for i in range(N)], "height, width"

    def test_arrays(self, store):
        shapes = {name: (array.shape[1:], array.dtype.name) for name, array in store.arrays.items()}
        tokens, token, rows, statistic = (16, 32), (32,), (2, 16), (2, 2)
        assert shapes == {
            "images/id": ((4,), "uint8"),
            "images/digest": ((16,), "uint8"),
            "images/label": ((), "int64"),
            "images/size": ((2,), "int32"),
            "images/valid": ((), "uint8"),
            "patch/block0/view0": (tokens, "float16"),
            "patch/block1/view0": (tokens, "float16"),
            "cls/block0/view0": (token, "float16"),
            "cls/block1/view0": (token, "float16"),
            **{f"attention/{row}/block{block}/view0": (rows, "float16") for row in ("cls", "centre") for block in (0, 1)},
            **{f"statistics/{name}/view0": (statistic, "float32") for name in STATISTICS},
            **{f"statistics/{name}/view0": ((2,), "float32") for name in PER_BLOCK},
            "images/crop/view0": ((4,), "float32"),
            "images/flip/view0": ((), "uint8"),
            "norm/weight": ((), "float32"),
            "norm/bias": ((), "float32"),
        }
        assert not [problem for _, _, problem in verify(store.path) if problem]

    def test_each_row_is_what_the_encoder_says_of_that_image(self, store, images, encoder):
        for row in (0, 5, 31, 32, 69):
            encoded = encoder(encoder.transform(images.image(row))[None], [0, 1], encoder.statistics, maps=[0, 1])

            def compare(name, values, tolerance, row=row):
                stored = store.array(name).rows([row])[0].astype(np.float32)
                np.testing.assert_allclose(stored, values[0].numpy(), rtol=tolerance, atol=tolerance, err_msg=f"{row} {name}")

            for block in (0, 1):
                compare(f"patch/block{block}/view0", encoded.patch[block], 1e-3)
                compare(f"cls/block{block}/view0", encoded.cls[block], 1e-3)
            for name, values in encoded.statistics.items():
                compare(f"statistics/{name}/view0", values, 1e-5)
            for name, values in encoded.maps.items():
                compare(f"attention/{name}/view0", values, 1e-3)

    def test_images_differ(self, store):
        """Else the order of rows would not show."""
        tokens = store.tokens("cls").all().astype(np.float32)
        distances = np.abs(tokens[:, None] - tokens[None]).max(-1) + np.eye(N)
        assert distances.min() > 5e-3

    def test_final_norm_is_kept(self, store, encoder, images):
        """So that normalised tokens follow from the stored ones."""
        weight, bias = store.array("norm/weight").all(), store.array("norm/bias").all()
        eps = store.attributes["norm_eps"]
        assert eps == 1e-6
        tokens = torch.from_numpy(store.tokens("patch", 1).rows([7]).astype(np.float32))
        normalised = torch.nn.functional.layer_norm(tokens, (32,), torch.from_numpy(weight), torch.from_numpy(bias), eps)
        with torch.inference_mode():
            expected = encoder.model.forward_features(encoder.transform(images.image(7))[None])[:, 1:]
        torch.testing.assert_close(normalised, expected, rtol=0, atol=5e-3)

    def test_what_the_store_says_of_itself(self, store, encoder, images):
        spec = store.spec
        assert (spec.weights, spec.data, spec.n_images) == (encoder.weights, images.digest, N)
        assert spec.blocks == (0, 1)
        assert spec.statistics == (*STATISTICS, *PER_BLOCK)
        assert spec.maps == ("centre/block0", "centre/block1", "cls/block0", "cls/block1")
        assert (spec.dtype, spec.point) == ("float16", "pre-norm")
        assert store.attributes["encoder"] == "tiny"
        assert store.attributes["classes"] == ["ape", "bee", "cat"]
        assert store.attributes["invalid"] == store.attributes["problems"] == []


class TestChoices:
    def test_batch_size_changes_nothing_but_rounding(self, run, store, tmp_path):
        other = run(tmp_path / "f", blocks=(0, -1), batch_size=13, workers=1, shard_rows=64)
        assert other.ids == store.ids
        assert other.spec.key == store.spec.key
        for name, array in store.arrays.items():
            one, two = array.all().astype(np.float64), other.array(name).all().astype(np.float64)
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-3, err_msg=name)

    def test_no_statistics_and_no_maps(self, run, tmp_path):
        store = run(tmp_path / "f", statistics=(), maps=False)
        assert {name.split("/")[0] for name in store.arrays} == {"images", "patch", "cls", "norm"}
        assert store.spec.statistics == store.spec.maps == ()

    def test_blocks_are_counted_from_0_once_each(self, encoder, images, store):
        for blocks in ((-1, 1, -2, 0), (1, 0)):
            assert Request.resolve(encoder, images, blocks=blocks).spec.key == store.spec.key

    def test_last_block_by_default_and_progress_counts_every_image(self, run, store, tmp_path):
        counts, again = [], []
        other = run(tmp_path / "f", progress=counts.append)
        assert other.spec.blocks == (1,)
        np.testing.assert_array_equal(other.tokens("patch").all(), store.tokens("patch", 1).all())
        run(tmp_path / "f", progress=again.append)
        assert sum(counts) == sum(again) == N

    def test_without_cls(self, run, tmp_path):
        encoder = tiny_encoder(class_token=False, global_pool="avg")
        store = run(tmp_path / "f", encoder=encoder)
        assert set(store.arrays) == {
            *(f"images/{name}" for name in ("id", "digest", "label", "size", "valid")),
            "patch/block1/view0",
            "attention/centre/block1/view0",
            *(f"images/{name}/view0" for name in ("crop", "flip")),
            *(f"statistics/patch_{name}/view0" for name in ("self", "self_raw", "patch_entropy", "norm_ratio")),
        }
        assert store.attributes["norm_eps"] is None
        message = r"tiny has no \[cls\] token, so no cls_self; it can have: patch_self, patch_patch_entropy"
        with pytest.raises(BeyondClsError, match=message):
            run(tmp_path / "g", encoder=encoder, statistics=("cls_self",))

    def test_a_list_for_several_encoders(self):
        without = tiny_encoder(class_token=False, global_pool="avg")
        names = ["patch_self", "cls_self", "cls_norm_ratio"]
        assert possible_statistics(without, names) == ["patch_self"]
        assert possible_statistics(tiny_encoder(), names) == names
        assert possible_statistics(without, None) is None
        assert possible_statistics(without, []) == []
        with pytest.raises(BeyondClsError, match="unknown attention statistic 'cls_slef'; did you mean 'cls_self'"):
            possible_statistics(without, ["cls_slef"])
        with pytest.raises(BeyondClsError, match=r"statistics is 'cls_self', expected a list, e\.g\. \[cls_self\]"):
            possible_statistics(without, "cls_self")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("weight", lambda x: x.mul_(1e7), r"reaches .*, beyond the range of float16 \(±65504\)"),
        ("bias", lambda x: x.fill_(torch.nan), "its weights or its input"),
    ],
)
def test_values_that_cannot_be_stored(part, change, message, run, tmp_path):
    model = tiny_encoder().model
    change(getattr(model.blocks[-1].mlp.fc2, part).data)
    with pytest.raises(BeyondClsError, match=rf"patch/block1/view0.*{message}"):
        run(tmp_path / "f", encoder=Encoder("broken", model, {}))
    assert not (tmp_path / "f").exists()


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"dtype": "float61"}, "unknown dtype 'float61'; did you mean 'float16'"),
            ({"blocks": (2,)}, r"there is no block 2: the encoder has blocks 0 to 1 \(negative ones count from the end\)"),
            ({"blocks": (-3,)}, "there is no block -3: the encoder has blocks 0 to 1"),
            ({"blocks": ()}, "no block was asked for; give at least one"),
            ({"shard_rows": 48}, "shard_rows is 48, expected a multiple of 32"),
            ({"shard_rows": 0}, "shard_rows is 0, expected a multiple of 32"),
            ({"vectors": "al"}, "unknown value of vectors 'al'; did you mean 'all'"),
            ({"drop_path": 0.1}, "views is 1"),
            *(({"views": 2, "drop_path": rate}, "drop_path is") for rate in (1, 1.0, -0.1, float("nan"), "0.1", True)),
            ({"views": 0}, r"views is 0, expected 1 \(the evaluation crop\) or more"),
        ],
        ids=str,
    )
    def test_arguments(self, arguments, message, run, tmp_path):
        with pytest.raises(BeyondClsError, match=message):
            run(tmp_path / "f", **arguments)
        assert not list(tmp_path.iterdir())

    def test_place_of_another_feature_set(self, run, store):
        before = files(store.path)
        for change, differ in (
            ({"encoder": tiny_encoder(1)}, "weights, architecture"),
            ({"dtype": "float32"}, "dtype"),
            ({"blocks": (0,)}, "blocks, maps"),
            ({"statistics": (), "maps": False}, "statistics, maps"),
        ):
            with pytest.raises(StoreError) as caught:
                run(store.path, **{"blocks": (0, -1), **change})
            assert f"({differ} differ); give another --out, or remove it first" in str(caught.value)
            assert ("or add to it with --extend" in str(caught.value)) == ("blocks" in differ or "maps" in differ)
            assert f"holds a feature set with key {store.spec.key}" in str(caught.value)
        assert files(store.path) == before

    def test_place_of_other_files(self, run, tmp_path):
        write_file(tmp_path / "f" / "thesis.tex", b"years of work")
        with pytest.raises(StoreError, match=r"f already holds files \(thesis\.tex\); give another --out"):
            run(tmp_path / "f")
        assert files(tmp_path) == {"f/thesis.tex": b"years of work"}


class TestBadImages:
    def test_all_that_is_seen_beforehand_is_named_before_anything_is_computed(self, run, tmp_path):
        bad = with_bad(tmp_path / "tars")
        with pytest.raises(DataError) as caught:
            run(tmp_path / "f", images=bad)
        lines = str(caught.value).splitlines()
        assert lines[0] == f"{tmp_path / 'tars' / '1.tar'} is empty (0 bytes); write it again"
        assert lines[1].startswith("'0035' in ")
        assert lines[2].startswith("'0038' in ")
        assert lines[3] == "mend the data, or go on with --on-error record"
        assert len(lines) == 4
        assert not (tmp_path / "f").exists()

    def test_many_are_counted(self, run, tmp_path):
        content = [{"__key__": str(i), "png": picture(i)} for i in range(12)]
        tar = write_tar(tmp_path / "a.tar", [*content, {"__key__": "last", "png": picture(12), "cls": "0"}])
        with pytest.raises(DataError, match=r"(?s)'9' in .*\n\(12 problems in all\)\nmend the data"):
            run(tmp_path / "f", images=open_images(str(tar)))

    def test_image_that_cannot_be_decoded_stops_the_run(self, run, tmp_path):
        content = samples(40)
        content[36]["png"] = picture(36)[:-40]
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        assert images.all_problems() == []
        with pytest.raises(DataError, match=r"'0036' in .*a\.tar cannot be decoded: .*\nmend the data, or go on with --on-err"):
            run(tmp_path / "f", images=images)
        assert not (tmp_path / "f").exists()

    @pytest.fixture(scope="class")
    def recorded(self, run, tmp_path_factory):
        folder = tmp_path_factory.mktemp("bad")
        return run(folder / "f", images=with_bad(folder / "tars"), on_error="record")

    def test_recorded(self, recorded):
        store = recorded
        assert len(store) == 40, "no row is dropped"
        assert store.ids == [f"{i:04}" for i in range(40)]
        assert np.flatnonzero(~store.valid).tolist() == [3, 35, 38]
        assert [(note["row"], note["id"]) for note in store.attributes["invalid"]] == [(3, "0003"), (35, "0035"), (38, "0038")]
        texts = [note["problem"] for note in store.attributes["invalid"]]
        assert all(t in p for t, p in zip(("cannot be decoded", "no label", "label but no image"), texts, strict=True))
        assert any("1.tar is empty" in problem for problem in store.attributes["problems"])
        assert str(store.path.parent) not in (store.path / "zarr.json").read_text(), "a store holds no path of a machine"
        assert store.labels[[3, 35, 38]].tolist() == [0, -1, -1]
        for name, array in store.arrays.items():
            if name.split("/")[0] in ("patch", "cls", "attention", "statistics"):
                values = array.all().astype(np.float32).reshape(40, -1)
                assert not values[~store.valid].any(), name
                assert values[store.valid].any(1).all(), name

    def test_rows_beside_recorded_ones_are_their_own(self, recorded, store):
        """Row i is image i, although the batch of its forward pass was shorter."""
        good = np.flatnonzero(recorded.valid & (np.arange(40) != 5))  # 5 is another picture there
        one, two = recorded.tokens("patch").rows(good), store.tokens("patch", 1).rows(good)
        np.testing.assert_allclose(one.astype(np.float32), two.astype(np.float32), rtol=0, atol=2e-3)

    def test_a_batch_without_a_single_good_image(self, run, tmp_path):
        content = samples(9)
        for sample in content[:8]:
            sample["png"] = b"no image"
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        store = run(tmp_path / "f", images=images, on_error="record", batch_size=4)
        assert store.valid.tolist() == [False] * 8 + [True]

    def test_no_image_at_all(self, run, tmp_path):
        images = open_images(str(write_file(tmp_path / "a.tar", b"")))
        with pytest.raises(DataError, match=r"has no readable images:\n.*is empty \(0 bytes\)"):
            run(tmp_path / "f", images=images, on_error="record")


class Killed(Exception):
    pass


def kill_after(n_images: int) -> Callable[[int], None]:
    """A progress callback that ends the run once so many images are done."""
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        if done >= n_images:
            raise Killed

    return count


class TestGoingOn:
    @pytest.mark.parametrize(("n_images", "n_written"), [(8, 0), (64, 32), (N, 64)])
    def test_killed_and_run_again_is_byte_identical(self, n_images, n_written, run, store, tmp_path):
        with pytest.raises(Killed):
            run(tmp_path / "features", blocks=(0, -1), progress=kill_after(n_images))
        assert not (tmp_path / "features").exists(), "a part is never taken for the whole"
        with pytest.raises(StoreError, match="is unfinished"):
            FeatureStore.open(tmp_path / "features")
        counts = []
        run(tmp_path / "features", blocks=(0, -1), progress=counts.append, workers=1)
        assert counts[0] == n_written, "what was written before is used"
        assert sum(counts) == N
        assert files(tmp_path / "features") == files(store.path)


def test_images_of_the_next_unit_are_decoded_meanwhile(tmp_path, monkeypatch):
    write_tar(tmp_path / "0.tar", samples(64))
    images, encoder = open_images(str(tmp_path / "0.tar")), tiny_encoder()
    seen = threading.Event()
    decode = Passes.decode

    def watched(self, row, *about):
        if row == 32:
            seen.set()
        return decode(self, row, *about)

    encode, ahead = Passes._computed, []

    def waiting(self, *given):
        ahead.append(seen.wait(10))
        return encode(self, *given)

    monkeypatch.setattr(Passes, "decode", watched)
    monkeypatch.setattr(Passes, "_computed", waiting)
    extract(encoder, images, tmp_path / "set", batch_size=32, shard_rows=32)
    assert ahead == [True, True]
