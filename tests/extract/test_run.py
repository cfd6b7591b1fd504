"""Extraction: order, completeness, bad images, going on after a kill, what is refused."""

import threading

import numpy as np
import pytest
import torch

from extract.attention import PER_BLOCK, STATISTICS
from extract.datasets import DataError, open_images
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
    folder, content = tmp_path_factory.mktemp("tars"), samples(N)
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
    return lambda out, encoder=encoder, images=images, **arguments: extract(
        encoder, images, out, **{"shard_rows": 32, "batch_size": 8, "workers": 2, **arguments}
    )


@pytest.fixture(scope="module")
def store(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "features", blocks=(0, -1))


def test_what_a_set_holds_and_says_of_itself(store, encoder, images):
    assert store.ids == [f"{i:04}" for i in range(N)]
    assert store.labels.tolist() == [i % 3 for i in range(N)]
    assert store.valid.all()
    sizes = store.array("images/size").all().tolist()
    assert sizes == [[50, 33] if i == 5 else [40, 36] for i in range(N)], "height, width"
    assert {name: (array.shape[1:], array.dtype.name) for name, array in store.arrays.items()} == {
        "images/id": ((4,), "uint8"),
        "images/digest": ((16,), "uint8"),
        "images/label": ((), "int64"),
        "images/size": ((2,), "int32"),
        "images/valid": ((), "uint8"),
        **{f"patch/block{block}/view0": ((16, 32), "float16") for block in (0, 1)},
        **{f"cls/block{block}/view0": ((32,), "float16") for block in (0, 1)},
        **{f"attention/{row}/block{block}/view0": ((2, 16), "float16") for row in ("cls", "centre") for block in (0, 1)},
        **{f"statistics/{name}/view0": ((2, 2), "float32") for name in STATISTICS},
        **{f"statistics/{name}/view0": ((2,), "float32") for name in PER_BLOCK},
        "images/crop/view0": ((4,), "float32"),
        "images/flip/view0": ((), "uint8"),
        "norm/weight": ((), "float32"),
        "norm/bias": ((), "float32"),
    }
    assert not [problem for _, _, problem in verify(store.path) if problem]
    spec = store.spec
    assert (spec.weights, spec.data, spec.n_images) == (encoder.weights, images.digest, N)
    assert (spec.blocks, spec.statistics) == ((0, 1), (*STATISTICS, *PER_BLOCK))
    assert spec.maps == ("centre/block0", "centre/block1", "cls/block0", "cls/block1")
    assert (spec.dtype, spec.point) == ("float16", "pre-norm")
    assert (store.attributes["encoder"], store.attributes["classes"]) == ("tiny", ["ape", "bee", "cat"])


def test_each_row_is_what_the_encoder_says_of_that_image(store, images, encoder):
    for row in (0, 5, 31, 32, 69):
        encoded = encoder(encoder.transform(images.image(row))[None], [0, 1], encoder.statistics, maps=[0, 1])
        expected = {f"{kind}/block{b}": values for kind in ("patch", "cls") for b, values in getattr(encoded, kind).items()}
        expected |= {f"statistics/{name}": values for name, values in encoded.statistics.items()}
        expected |= {f"attention/{name}": values for name, values in encoded.maps.items()}
        assert len(expected) == 4 + 10 + 4
        for name, values in expected.items():
            stored, tolerance = store.array(f"{name}/view0").rows([row]), 1e-5 if name.startswith("statistics") else 1e-3
            np.testing.assert_allclose(stored.astype(np.float32), values, tolerance, tolerance, err_msg=f"{row} {name}")
    tokens = store.tokens("cls").all().astype(np.float32)
    distances = np.abs(tokens[:, None] - tokens[None]).max(-1) + np.eye(N)
    assert distances.min() > 5e-3, "else the order of rows would not show"


def test_normalised_tokens_follow_from_the_norm_that_is_kept(store, encoder, images):
    weight, bias = (torch.from_numpy(store.array(f"norm/{name}").all()) for name in ("weight", "bias"))
    tokens, eps = torch.from_numpy(store.tokens("patch", 1).rows([7]).astype(np.float32)), store.attributes["norm_eps"]
    assert eps == 1e-6
    with torch.inference_mode():
        expected = encoder.model.forward_features(encoder.transform(images.image(7))[None])[:, 1:]
    torch.testing.assert_close(torch.nn.functional.layer_norm(tokens, (32,), weight, bias, eps), expected, rtol=0, atol=5e-3)


class TestChoices:
    def test_batch_size_changes_nothing_but_rounding(self, run, store, tmp_path):
        other = run(tmp_path / "f", blocks=(0, -1), batch_size=13, workers=1, shard_rows=64)
        assert (other.ids, other.spec.key) == (store.ids, store.spec.key)
        for name, array in store.arrays.items():
            one, two = array.all().astype(np.float64), other.array(name).all().astype(np.float64)
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-3, err_msg=name)

    def test_blocks_are_counted_from_0_once_each(self, encoder, images, store):
        assert Request.resolve(encoder, images, blocks=(-1, 1, -2, 0)).spec.key == store.spec.key

    def test_last_block_by_default_no_statistics_and_progress_counts_every_image(self, run, tmp_path):
        counts = []
        for _ in range(2):
            other = run(tmp_path / "f", progress=counts.append, statistics=(), maps=False)
            assert {name.split("/")[0] for name in other.arrays} == {"images", "patch", "cls", "norm"}
            assert (other.spec.blocks, other.spec.statistics, other.spec.maps) == ((1,), (), ())
        assert sum(counts) == 2 * N

    def test_without_cls(self, run, tmp_path):
        encoder = tiny_encoder(class_token=False, global_pool="avg")
        store = run(tmp_path / "f", encoder=encoder)
        assert {name for name in store.arrays if not name.startswith("images/")} == {
            "patch/block1/view0",
            "attention/centre/block1/view0",
            *(f"statistics/patch_{name}/view0" for name in ("self", "self_raw", "patch_entropy", "norm_ratio")),
        }
        assert store.attributes["norm_eps"] is None
        with pytest.raises(BeyondClsError, match=r"no cls_self; it can have: patch_self, patch_patch_entropy"):
            run(tmp_path / "g", encoder=encoder, statistics=("cls_self",))
        names = ["patch_self", "cls_self", "cls_norm_ratio"]  # a list for several encoders
        assert possible_statistics(encoder, names) == ["patch_self"]
        assert possible_statistics(encoder, None) is None
        with pytest.raises(BeyondClsError, match="did you mean 'cls_self'"):
            possible_statistics(encoder, ["cls_slef"])
        with pytest.raises(BeyondClsError, match="statistics is 'cls_self', expected a list"):
            possible_statistics(encoder, "cls_self")


class TestRefused:
    @pytest.mark.parametrize(
        ("part", "change", "message"),
        [
            ("weight", lambda x: x.mul_(1e7), r"reaches .*, beyond the range of float16 \(±65504\)"),
            ("bias", lambda x: x.fill_(torch.nan), "its weights or its input"),
        ],
    )
    def test_values_that_cannot_be_stored(self, part, change, message, run, tmp_path):
        model = tiny_encoder().model
        change(getattr(model.blocks[-1].mlp.fc2, part).data)
        with pytest.raises(BeyondClsError, match=rf"patch/block1/view0.*{message}"):
            run(tmp_path / "f", encoder=Encoder("broken", model, {}))
        assert not (tmp_path / "f").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"dtype": "float61"}, "unknown dtype 'float61'; did you mean 'float16'"),
            ({"blocks": (-3,)}, "there is no block -3: the encoder has blocks 0 to 1"),
            ({"blocks": (2,), "vectors": "only"}, "there is no block 2"),
            ({"blocks": ()}, "no block was asked for; give at least one"),
            *(({"shard_rows": n}, f"shard_rows is {n}, expected a multiple of 32") for n in (48, 0)),
            ({"vectors": "al"}, "unknown value of vectors 'al'; did you mean 'all'"),
            ({"drop_path": 0.1}, "views is 1"),
            *(({"views": 2, "drop_path": rate}, "drop_path is") for rate in (1, -0.1, float("nan"), "0.1", True)),
            ({"views": 0}, "views is 0"),
            ({"truths": "segmentatoin"}, "did you mean 'segmentation'"),
            *(({"task_id": i, "n_tasks": 2}, f"task_id is {i}, expected 0 to 1") for i in (2, -1)),
            ({"existing": "repair", "n_tasks": 2}, "one process repairs a feature set"),
        ],
        ids=str,
    )
    def test_arguments(self, arguments, message, run, tmp_path):
        with pytest.raises(BeyondClsError, match=message):
            run(tmp_path / "f", **arguments)
        assert not list(tmp_path.iterdir())

    def test_place_of_another_feature_set(self, run, store):
        before = files(store.path)
        for change, differ in (({"encoder": tiny_encoder(1)}, "weights, architecture"), ({"blocks": (0,)}, "blocks, maps")):
            with pytest.raises(StoreError, match=f"a feature set with key {store.spec.key}, ") as caught:
                run(store.path, **{"blocks": (0, -1), **change})
            assert f"({differ} differ)" in str(caught.value)
            assert ("--extend" in str(caught.value)) == ("maps" in differ)
        assert files(store.path) == before

    def test_place_of_other_files(self, run, tmp_path):
        write_file(tmp_path / "f" / "thesis.tex", b"years of work")
        with pytest.raises(StoreError, match=r"f already holds files \(thesis\.tex\); give another --out"):
            run(tmp_path / "f")
        assert files(tmp_path) == {"f/thesis.tex": b"years of work"}


class TestBadImages:
    @pytest.fixture(scope="class")
    def bad(self, tmp_path_factory):
        """40 images; 3 is cut, 35 has no label, 38 no image, and the tar behind them is empty."""
        folder, content = tmp_path_factory.mktemp("bad") / "tars", samples(40)
        content[3]["png"] = picture(3)[:-40]
        del content[35]["cls"], content[38]["png"]
        write_tar(folder / "0.tar", content)
        write_file(folder / "1.tar", b"")
        return open_images(str(folder))

    def test_all_that_is_seen_beforehand_is_named_before_anything_is_computed(self, bad, run, tmp_path):
        with pytest.raises(DataError) as caught:
            run(tmp_path / "f", images=bad)
        tar, unlabelled, without, remedy = str(caught.value).splitlines()
        assert "1.tar is empty (0 bytes)" in tar
        assert (unlabelled[:10], without[:10]) == ("'0035' in ", "'0038' in ")
        assert "--on-error record" in remedy
        content = [{"__key__": str(i), "png": picture(i)} for i in range(12)]
        many = write_tar(tmp_path / "a.tar", [*content, {"__key__": "last", "png": picture(12), "cls": "0"}])
        with pytest.raises(DataError, match=r"(?s)'9' in .*\n\(12 problems in all\)"):
            run(tmp_path / "f", images=open_images(str(many)))
        assert not (tmp_path / "f").exists()

    def test_image_that_cannot_be_decoded_stops_the_run(self, run, tmp_path):
        content = samples(40)
        content[36]["png"] = picture(36)[:-40]
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        assert images.all_problems() == []
        with pytest.raises(DataError, match=r"'0036' in .*a\.tar cannot be decoded: .*\n.* --on-error record"):
            run(tmp_path / "f", images=images)
        assert not (tmp_path / "f").exists()

    def test_recorded(self, bad, run, store, tmp_path):
        """No row is dropped, and row i is image i, although the batch of its forward pass was shorter."""
        recorded = run(tmp_path / "f", images=bad, on_error="record")
        assert recorded.ids == [f"{i:04}" for i in range(40)]
        assert np.flatnonzero(~recorded.valid).tolist() == [3, 35, 38]
        notes = recorded.attributes["invalid"]
        assert [(note["row"], note["id"]) for note in notes] == [(3, "0003"), (35, "0035"), (38, "0038")]
        texts = ("cannot be decoded", "no label", "label but no image")
        assert all(text in note["problem"] for text, note in zip(texts, notes, strict=True))
        assert any("1.tar is empty" in problem for problem in recorded.attributes["problems"])
        described = (recorded.path / "zarr.json").read_text()
        assert str(bad.samples[0].file.parent) not in described, "a store holds no path of a machine"
        assert recorded.labels[[3, 35, 38]].tolist() == [0, -1, -1]
        for name, array in recorded.arrays.items():
            if name.split("/")[0] in ("patch", "cls", "attention", "statistics"):
                values = array.all().astype(np.float32).reshape(40, -1)
                assert not values[~recorded.valid].any(), name
                assert values[recorded.valid].any(1).all(), name
        good = np.flatnonzero(recorded.valid & (np.arange(40) != 5))  # 5 is another picture there
        one, two = recorded.tokens("patch").rows(good), store.tokens("patch", 1).rows(good)
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)

    def test_a_batch_without_a_single_good_image_and_no_image_at_all(self, run, tmp_path):
        content = samples(9)
        for sample in content[:8]:
            sample["png"] = b"no image"
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        store = run(tmp_path / "f", images=images, on_error="record", batch_size=4)
        assert store.valid.tolist() == [False] * 8 + [True]
        images = open_images(str(write_file(tmp_path / "b.tar", b"")))
        with pytest.raises(DataError, match=r"has no readable images:\n.*is empty \(0 bytes\)"):
            run(tmp_path / "g", images=images, on_error="record")


@pytest.mark.parametrize(("n_images", "n_written"), [(8, 0), (N, 64)])
def test_killed_and_run_again_is_byte_identical(n_images, n_written, run, store, tmp_path):
    done, counts = [], []

    def kill(n: int) -> None:
        done.append(n)
        if sum(done) >= n_images:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "features", blocks=(0, -1), progress=kill)
    assert not (tmp_path / "features").exists(), "a part is never taken for the whole"
    with pytest.raises(StoreError, match="is unfinished"):
        FeatureStore.open(tmp_path / "features")
    run(tmp_path / "features", blocks=(0, -1), progress=counts.append, workers=1)
    assert counts[0] == n_written, "what was written before is used"
    assert sum(counts) == N
    assert files(tmp_path / "features") == files(store.path)


def test_images_of_the_next_unit_are_decoded_meanwhile(forty, tmp_path, monkeypatch):
    begun, ahead = threading.Event(), []
    decode, encode = Passes.decode, Passes._computed

    def watched(self, row, *about):
        if row == 32:
            begun.set()
        return decode(self, row, *about)

    def waiting(self, *given):
        ahead.append(begun.wait(10))
        return encode(self, *given)

    monkeypatch.setattr(Passes, "decode", watched)
    monkeypatch.setattr(Passes, "_computed", waiting)
    extract(tiny_encoder(), forty, tmp_path / "set", batch_size=32, shard_rows=32)
    assert ahead == [True, True]
