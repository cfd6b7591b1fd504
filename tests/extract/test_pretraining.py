"""What is known of an encoder's training, by its name, its weights or its user, and what its feature sets say of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from extract.datasets import open_images
from extract.encoders import Encoder, known_pretraining, load_encoder
from extract.requests import Request
from extract.run import confirm
from extract.writing import Settings
from store import FeatureStore
from store.format.pretraining import JOINT, LABELS, MASKED, NAMES, UNKNOWN, UNTRAINED, Pretraining
from tests.extract.extracting import extract
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files

DRAWN = Pretraining(random_seed=0)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("quickstart-mocov3", Pretraining(JOINT)),
        ("quickstart-mae-ft", Pretraining(LABELS)),
        ("quickstart-random", DRAWN),
        ("simmim-ft-b16", Pretraining(LABELS)),
        ("vit_base_patch16_224.mae", Pretraining(MASKED)),  # timm's, with weights of the registry
        ("vit_base_patch16_224.dino", Pretraining(JOINT)),
        ("vit_small_patch14_dinov2.lvd142m", UNKNOWN),  # of both kinds
        ("vit_base_patch16_224.orig_in21k", UNKNOWN),
        ("vit_tiny_patch16_224.mae", UNKNOWN),  # timm has no such tag
        ("my-random-mae", UNKNOWN),
    ],
)
def test_the_registry_knows_its_names_and_its_weights_under_names_of_timm(name, known):
    assert known_pretraining(name) == known


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of the quickstart's architecture."""
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(load_encoder("quickstart-random", arguments={"depth": 1}).model.state_dict(), file)
    return file


@pytest.mark.parametrize(
    ("name", "options", "pretraining"),
    [
        ("quickstart-random", {}, DRAWN),
        ("quickstart-random", {"checkpoint": True}, DRAWN),  # its weights from a file, as in params.yaml
        ("quickstart-mae", {"checkpoint": True}, Pretraining(MASKED)),
        ("quickstart-mae", {"random_seed": 3}, Pretraining(random_seed=3)),
        ("mine", {"model": "quickstart-mae", "checkpoint": True}, Pretraining(MASKED)),
        ("mine", {"model": "quickstart-random", "checkpoint": True}, UNKNOWN),  # may have been trained since
        ("mine", {"model": "quickstart-mae", "checkpoint": True, "family": JOINT}, Pretraining(JOINT)),
        ("mine", {"model": "quickstart-mae", "checkpoint": True, "family": UNTRAINED}, Pretraining(UNTRAINED)),
        ("mine", {"model": "quickstart-mae", "random_seed": 3, "family": UNTRAINED}, Pretraining(UNTRAINED, 3)),
    ],
)
def test_an_encoder_is_what_its_name_its_seed_or_the_user_says(name, options, pretraining, weights):
    given = options | ({"checkpoint": weights} if "checkpoint" in options else {})
    loaded = load_encoder(name, arguments={"depth": 1}, **given).pretraining
    assert loaded == pretraining
    assert loaded.is_untrained == (pretraining in (DRAWN, Pretraining(random_seed=3)) or UNTRAINED in pretraining.family)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return open_images(str(write_tar(tmp_path_factory.mktemp("tars") / "0.tar", samples(5))))


@pytest.fixture
def warned():
    return []


Run = Callable[..., FeatureStore]


@pytest.fixture
def run(images, tmp_path, warned):
    """Extracts what is known of an encoder by its name and its training."""
    model = tiny_encoder().model

    def run(pretraining=UNKNOWN, name="mine", out=None, **options):
        encoder = Encoder(name, model, {}, pretraining=pretraining)
        store = extract(encoder, images, out or tmp_path / "f", warn=warned.append, **options)
        return store

    return run


def shards(store: FeatureStore) -> dict[str, bytes]:
    """All but the group's zarr.json."""
    return {name: content for name, content in files(Path(store.where)).items() if name != "zarr.json"}


def test_a_set_says_it_and_has_the_key_and_the_arrays_that_it_has_without(run, tmp_path):
    one, other = run(), run(Pretraining(MASKED, 3), out=tmp_path / "other")
    assert [one.attributes[name] for name in NAMES] == ["", None]
    assert [other.attributes[name] for name in NAMES] == [MASKED, 3]
    assert one.spec.key == other.spec.key
    assert shards(one) == shards(other)


def test_what_is_known_by_now_is_written_down_by_an_update_and_nothing_is_computed(run, warned, monkeypatch):
    before = run()
    content, key = shards(before), before.spec.key
    stays = run(Pretraining(JOINT))
    assert stays.attributes["family"] == ""
    assert len(warned) == 1
    assert warned[0].startswith(f"{before.where} records this training of its encoder: not known, or several; now it is: joint")
    assert warned[0].endswith("It stays as it is; --update writes this down")
    monkeypatch.setattr("extract.writing.Units.compute", lambda self, units: (unit for unit in units if units is None))
    after = run(Pretraining(JOINT), existing="update")
    assert after.attributes["family"] == JOINT
    assert (after.spec.key, shards(after)) == (key, content)


def test_a_set_that_others_may_use_stays_as_it_is(run, warned, images):
    store = run()
    encoder = Encoder("mine", tiny_encoder().model, {}, pretraining=DRAWN)
    assert confirm(Request.resolve(encoder, images), store, Settings(warn=warned.append)) is store
    assert len(warned) == 1
    assert warned[0].endswith("now it is: random weights, seed 0. It stays as it is, for others may use it")
