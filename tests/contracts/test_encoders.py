"""What every encoder of the registry must do with the files that its authors publish.

Files are written by what the entry declares of them (`PUBLISHED`), never by its converter. What is loaded is
compared with a plain float64 computation on the authors' names (tests/extract/encoders/reference.py).
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from beyondcls.testing.checking import run
from beyondcls.testing.encoders import CHECKS, Made
from extract.encoders import ENCODERS, Encoder, Pretrained
from extract.encoders.encoder import input_of
from extract.encoders.pretrained import AS_FOUND, JOINT, LABELS, MASKED, listing_of
from extract.encoders.search import Network
from extract.encoders.weights import CLASSIFIER, load_strictly
from store import BeyondClsError
from tests.extract.encoders.official import (
    Content,
    assert_equal,
    computed,
    kept,
    loaded,
    made,
    placed,
    random_images,
    takes,
    values_of,
    written,
    zeros_of,
)
from tests.extract.encoders.published import PUBLISHED, Published, Vit

Key = tuple[str, int]  # of an entry, and which of its files
KEYS = [(name, index) for name, files in PUBLISHED.items() for index in range(len(files))]
FILES = [pytest.param(key, id=f"{key[0]}-file{key[1]}") for key in KEYS]


def of(key: Key) -> tuple[Pretrained, Published]:
    return ENCODERS[key[0]], PUBLISHED[key[0]][key[1]]


def kind_of(key: Key) -> tuple[object, ...]:
    """What files of one training that differ in size alone have in common: these are loaded by the same code."""
    entry, file = of(key)
    sizes = {"width": 0, "depth": 0, "heads": 0, "patch": 0, "side": 0, "learnt_at": None, "hidden": None}
    kind = replace(file, **sizes) if isinstance(file, Vit) else file.smaller()
    model = re.sub(r"_(tiny|small|base|large|huge|giant)|\d+", "", entry.model)
    return repr((kind, entry.convert)), model, entry.arguments_of, entry.make, entry.family, entry.seed


KINDS = {kind_of(key): pytest.param(key, id=f"{key[0]}-file{key[1]}") for key in reversed(KEYS)}  # the first of each


@cache
def full(key: Key) -> Content:
    return written(of(key)[1], values=zeros_of)


@cache
def is_taken(name: str, key: Key) -> bool:
    """Whether a file of one entry is loaded under the name of another; those of another size never are."""
    file = of(key)[1]
    return any(theirs.output == file.output for theirs in PUBLISHED[name]) and takes(name, full(key))


@pytest.mark.parametrize("name", ENCODERS)
class TestEntry:
    def test_says_where_from_and_how_it_was_trained(self, name: str) -> None:
        assert PUBLISHED.get(name), f"declare the files of {name}: (Vit(…),), tests/extract/encoders/published.py"
        entry = ENCODERS[name]
        assert re.match(r"https://|see https://|timm/\w+\.\w+$|quickstart/encoders/[\w-]+\.safetensors$|random$", entry.weights)
        assert entry.licence
        assert entry.family in ("", MASKED, JOINT, LABELS)
        if entry.family == LABELS:
            assert any(part.endswith(CLASSIFIER) for file in PUBLISHED[name] for part in file.dropped), "declare its classifier"

    def test_says_what_it_sees(self, name: str) -> None:
        """All of it: what timm knows is of other weights of the same architecture."""
        entry = ENCODERS[name]
        assert {"mean", "std", "crop_pct", "interpolation"} <= entry.transform.keys()
        seen = input_of(made(entry), entry.transform)
        assert seen["input_size"] == (3, PUBLISHED[name][0].side, PUBLISHED[name][0].side)
        assert all(len(seen[part]) == 3 and all(0 < x < 1 for x in seen[part]) for part in ("mean", "std"))
        assert 0 < seen["crop_pct"] <= 1

    def test_is_as_large_as_its_file(self, name: str) -> None:
        entry = ENCODERS[name]
        file, model = PUBLISHED[name][0], made(entry)
        listing = listing_of(replace(entry, make=lambda *_, **__: model))  # made once
        roles = {part.role: part.shape for part in file.tensors().values()}
        assert (listing.n_blocks, listing.n_patches, listing.width) == file.output
        assert (listing.has_cls, listing.n_registers) == ("cls" in roles, roles.get("registers", (1, 0))[1])
        assert listing.attends == bool(file.heads)
        assert heads_of(model) == ({file.heads} if file.heads else set())
        assert eps_of(model) == {file.eps}
        assert listing.block == entry.block % listing.n_blocks
        assert bool(listing.cls_caution) == (file.pooled and listing.has_cls)

    def test_files_of_others(self, name: str) -> None:
        """One that says how it was trained is loaded under no other name; any other at most with a word on it."""
        pairs = [(taker, key) for key in KEYS for taker in ENCODERS if name in (taker, key[0]) and key[0] != taker]
        for taker, key in pairs:
            entry, file = ENCODERS[taker], of(key)[1]
            if file in PUBLISHED[taker] or entry.seed is not None or not is_taken(taker, key):
                continue
            assert not file.tells, f"{key[0]} is loaded as {taker}"
            assert not entry.is_confirmed_by(full(key)), f"{key[0]} is loaded as {taker} without a word: give its `signs`"
            assert file.heads in [theirs.heads for theirs in PUBLISHED[taker]], f"{taker} has other attention heads"


# Architectures under which users load files of their own; larger ones have the same names.
OWN = sorted(
    {
        ENCODERS[name].model
        for name, files in PUBLISHED.items()
        if files[0].output[2] == 384 and timm.is_model(ENCODERS[name].model)
    }
)


@pytest.mark.parametrize("model", [*OWN, "beit_base_patch16_224"])
def test_files_under_an_architecture_of_timm(model: str) -> None:
    """From where their authors have the encoder, and for the same computation; or refused; or a note says what may differ."""
    plain = Pretrained(model, "", "")
    own = replace(plain, make=lambda _, **arguments: made(plain, **arguments))
    width = made(plain).num_features
    for key in (key for key in KEYS if of(key)[1].output[2] == width):
        file = of(key)[1]
        try:
            network, _, found = own.search(full(key), {}, AS_FOUND, ENCODERS)
        except BeyondClsError:
            continue
        if kept(found.state) == kept(network.state_dict()):
            *keys, prefix = file.at.split("/")
            assert found.place in ("", str(Network(tuple(keys), prefix, {})))
            assert eps_of(network) == {file.eps}
            is_same = heads_of(network) == ({file.heads} if file.heads else set())
            assert is_same != any(f"could be of {key[0]}" in note for note in found.notes)


@pytest.mark.parametrize("key", FILES)
class TestFullSize:
    def test_names_and_shapes(self, key: Key) -> None:
        entry, _ = of(key)
        state, arguments = entry.read(full(key))
        assert kept(state) == kept(made(entry, **arguments).state_dict())

    def test_tells_how_it_was_trained(self, key: Key) -> None:
        entry, file = of(key)
        assert entry.is_confirmed_by(full(key)) == (file.tells or entry.seed is not None)


def eps_of(model: nn.Module) -> set[float | None]:
    return {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)}


def heads_of(model: nn.Module) -> set[int]:
    """Of those modules that say it, by either name."""
    return {getattr(m, name) for m in model.modules() for name in ("num_heads", "n_heads") if hasattr(m, name)}


@dataclass
class Small:
    """A file of few and narrow blocks, and what was loaded from it.

    Attributes:
        entry, file: what is declared.
        state: the encoder's tensors, under the authors' names.
    """

    entry: Pretrained
    file: Any
    state: dict[str, Tensor]
    encoder: Encoder

    def is_same(self, content: Content) -> bool:
        """Whether the content makes the encoder that was loaded."""
        state, arguments = self.entry.read(content)
        ours = self.encoder.model.state_dict()
        same = kept(state) == kept(ours) and all(torch.equal(state[name], value) for name, value in ours.items())
        return same and arguments == self.entry.read(written(self.file, self.state))[1]

    def assert_refused(self, content: Content, *names: str) -> None:
        """With a message that has one of these names, or of those that it goes by in the model."""
        differing = {*names}
        try:
            state, model = self.entry.read(content)[0], self.encoder.model
            differing |= dict(kept(state).items() ^ kept(model.state_dict()).items()).keys()
            load_strictly(model, state, "the file")
        except BeyondClsError as error:
            message = str(error)
        else:
            pytest.fail(f"a file is loaded that differs in {names}")
        assert any(name in message for name in differing), f"{names}: {message}"


@pytest.fixture(scope="module", params=reversed(KINDS.values()))
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    name, (entry, whole) = request.param[0], of(request.param)
    file, arguments = whole.smaller()
    state = values_of(file.tensors())
    encoder = loaded(name, written(file, state), tmp_path_factory.mktemp("file"), **arguments)
    return Small(entry, file, state, encoder)


class TestSmall:
    def test_keeps_the_contract_of_all_encoders(self, small: Small) -> None:
        run(CHECKS, Made(small.encoder, lambda: small.encoder))

    def test_tokens_maps_and_statistics(self, small: Small) -> None:
        images = random_images(small.file.side)
        assert small.encoder.config["input_size"] == images.shape[1:]
        assert_equal(small.encoder, images, computed(small.file, small.state, images))

    def test_norm(self, small: Small) -> None:
        """That of the tokens; one behind pooling is loaded, and does nothing to them."""
        norm = {
            part.role[5:]: small.state[name] for name, part in small.file.tensors().items() if part.role.startswith("norm.")
        }
        weights, eps = small.encoder.norm()
        if small.file.pooled or not norm:
            assert (weights, eps) == ({}, small.file.eps if getattr(small.file, "rms", False) else None)
        else:
            assert eps == small.file.eps
            assert weights.keys() == norm.keys()
            assert all(torch.equal(weights[part], value) for part, value in norm.items())

    def test_what_is_dropped_changes_nothing(self, small: Small) -> None:
        """Neither with other values nor without it, unless it shows that the file was fine-tuned."""
        assert small.is_same(written(small.file, small.state, seed=8))
        try:
            same = small.is_same(written(small.file, small.state, dropped=False))
        except BeyondClsError:
            same = small.entry.family == LABELS
        assert same

    def test_half_precision(self, small: Small) -> None:
        half = {name: value.bfloat16() for name, value in small.state.items()}
        exact = {name: value.float() for name, value in half.items()}
        given, expected = (small.entry.read(written(small.file, state))[0] for state in (half, exact))
        assert all(torch.equal(given[name].float(), expected[name]) for name in kept(expected))

    def test_missing_tensor(self, small: Small) -> None:
        for name in small.state:
            state = {other: value for other, value in small.state.items() if other != name}
            small.assert_refused(written(small.file, state), name)

    def test_tensor_of_another_shape(self, small: Small) -> None:
        for name, value in small.state.items():
            small.assert_refused(written(small.file, {**small.state, name: torch.cat([value, value])}), name)

    def test_tensor_too_many(self, small: Small) -> None:
        """In every layer: nothing is dropped but what is declared."""
        for layer in {name.rpartition(".")[0] for name in small.state}:
            name = f"{layer}.unknown".removeprefix(".")
            small.assert_refused(written(small.file, {**small.state, name: torch.ones(1)}), name)

    def test_classifier(self, small: Small) -> None:
        classifier = {"head.weight": torch.ones(3, small.file.output[2]), "head.bias": torch.ones(3)}
        content = placed(written(small.file, small.state), small.file.at, classifier)
        if (
            small.entry.family == LABELS
            or small.entry.seed is not None
            or any(name.startswith(f"{small.file.at}head.") for name in small.file.dropped)
        ):
            assert small.is_same(content)
            return
        with pytest.raises(BeyondClsError, match=r"has a classifier \(head\.weight, head\.bias\), .* trained on labels"):
            small.entry.read(content)
