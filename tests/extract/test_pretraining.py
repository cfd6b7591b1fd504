"""What is known of an encoder's training, by its name, its weights or its user, and what its feature sets say of it."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from extract.encoders import Encoder, known_pretraining, load_encoder
from extract.requests import Request
from extract.run import confirm
from extract.writing import Settings
from store.format.pretraining import JOINT, LABELS, MASKED, NAMES, UNKNOWN, UNTRAINED, Pretraining
from tests.extract.extracting import extract
from tests.extract.tiny import tiny_encoder
from tests.folders import files

DRAWN = Pretraining(random_seed=0)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("quickstart-mocov3", Pretraining(JOINT)),
        ("quickstart-random", DRAWN),
        ("simmim-ft-b16", Pretraining(LABELS)),
        ("vit_base_patch16_224.mae", Pretraining(MASKED)),  # timm's, with weights of the registry
        ("vit_small_patch14_dinov2.lvd142m", UNKNOWN),  # of both kinds
        ("vit_tiny_patch16_224.mae", UNKNOWN),  # timm has no such tag
        ("my-random-mae", UNKNOWN),
    ],
)
def test_the_registry_knows_its_names_and_its_weights_under_names_of_timm(name, known):
    assert known_pretraining(name) == known


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
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
        ("mine", {"model": "quickstart-mae", "checkpoint": True, "family": UNTRAINED}, Pretraining(UNTRAINED)),
        ("mine", {"model": "quickstart-mae", "random_seed": 3, "family": UNTRAINED}, Pretraining(UNTRAINED, 3)),
    ],
)
def test_an_encoder_is_what_its_name_its_seed_or_the_user_says(name, options, pretraining, weights):
    given = options | ({"checkpoint": weights} if "checkpoint" in options else {})
    loaded = load_encoder(name, arguments={"depth": 1}, **given).pretraining
    assert loaded == pretraining
    assert loaded.is_untrained == (pretraining in (DRAWN, Pretraining(random_seed=3)) or UNTRAINED in pretraining.family)


@pytest.fixture
def known_as(forty, tmp_path):
    """Extracts what is known of an encoder by its training; the set, its shards, and warnings."""
    model = tiny_encoder().model

    def known_as(pretraining, name="f", **options):
        encoder, warned = Encoder("mine", model, {}, pretraining=pretraining), []
        store = extract(encoder, forty, tmp_path / name, warn=warned.append, statistics=(), maps=False, **options)
        return store, {n: content for n, content in files(Path(store.where)).items() if n != "zarr.json"}, warned

    return known_as


def test_a_set_says_it_and_has_the_key_and_the_arrays_that_it_has_without(known_as):
    (one, shards, _), (other, same, _) = known_as(UNKNOWN), known_as(Pretraining(MASKED, 3), "other")
    assert [[store.attributes[name] for name in NAMES] for store in (one, other)] == [["", None], [MASKED, 3]]
    assert (one.spec.key, shards) == (other.spec.key, same)


def test_what_is_known_by_now_is_written_down_by_an_update_and_nothing_is_computed(known_as, forty, monkeypatch):
    before, shards, _ = known_as(UNKNOWN)
    stays, _, (warning,) = known_as(Pretraining(JOINT))
    assert stays.attributes["family"] == ""
    assert "now it is: joint" in warning
    assert "--update" in warning
    warned, drawn = [], Encoder("mine", tiny_encoder().model, {}, pretraining=DRAWN)
    request = Request.resolve(drawn, forty, statistics=(), maps=False)
    assert confirm(request, before, Settings(warn=warned.append)) is before
    assert ["now it is: random weights, seed 0" in one for one in warned] == [True]
    monkeypatch.setattr("extract.writing.Units.compute", lambda self, units: (unit for unit in units if units is None))
    after, same, _ = known_as(Pretraining(JOINT), existing="update")
    assert after.attributes["family"] == JOINT
    assert (after.spec.key, same) == (before.spec.key, shards)
