"""Where a file of one's own holds an encoder: under which keys, behind which prefix, and what else is there."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from extract.encoders.weights import (
    CLASSIFIER,
    POSITIONS,
    SELECTED,
    WRAPPERS,
    WRAPPING,
    group_names,
    learnt_side,
    prefixes_in,
    shorten,
    with_plain_names,
)
from store import BeyondClsError

DEPTH = 4  # keys above a dictionary of tensors
# Of several networks that fit, the one that papers evaluate: words in keys and prefixes, and their order. What has none of
# these words comes between teachers and students; running averages of a network come after it.
ORDER = {"online": 0, "teacher": 1, "target": 1, "student": 3, "context": 3}
NO_WORD = 2
AVERAGES = {"ema", "momentum", "average", "averaged", "swa", "shadow", "k"}  # `encoder_k` of MoCo
# Parts of trainings that no token passes through on its way to the last block: names begin with them, and may go on.
BESIDE = re.compile(
    r"(head|heads|fc|classifier|mask_token|masked_embed|decoder(_\w+)?|(proj|projection|pred|lm|mlm|dino|ibot|mim)_head"
    r"|projector|predictor|prototypes)(\.|$)"
)


@dataclass(frozen=True, eq=False)
class Network:
    """Tensors of a file behind a common prefix.

    Attributes:
        keys: of the dictionaries that they are in, from the top.
        prefix: of their names.
        tensors: all of the last dictionary, by names without `WRAPPING`.
    """

    keys: tuple[str, ...]
    prefix: str
    tensors: Mapping[str, Tensor]

    def __str__(self) -> str:
        """As options that choose it."""
        return f"--checkpoint-key {shlex.quote('/'.join(self.keys))} --checkpoint-prefix {shlex.quote(self.prefix)}"

    @property
    def place(self) -> str:
        """The same; empty for names as they are, at the top or in one of `WRAPPERS`."""
        return "" if not self.prefix and self.keys in ((), *((name,) for name in WRAPPERS)) else str(self)

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors behind the prefix, by names without it."""
        return {n.removeprefix(self.prefix): value for n, value in self.tensors.items() if n.startswith(self.prefix)}

    @property
    def order(self) -> tuple[bool, int]:
        """The first of several is the one to take."""
        words = set(re.split(r"[^a-z]+", "/".join((*self.keys, self.prefix)).lower()))
        return bool(words & AVERAGES), min((ORDER[word] for word in words & ORDER.keys()), default=NO_WORD)

    def n_fitting(self, expected: Mapping[str, Tensor]) -> int:
        """How many of the expected tensors it has, with their shapes or with positions for another size of images."""
        shapes = {name: value.shape for name, value in self.state.items()}
        return sum(n in shapes and (n.endswith(POSITIONS) or shapes[n] == value.shape) for n, value in expected.items())

    def equals(self, other: "Network", expected: Mapping[str, Tensor]) -> bool:
        """Whether the expected tensors have the same values in both."""
        pairs = ((self.tensors[f"{self.prefix}{n}"], other.tensors[f"{other.prefix}{n}"]) for n in expected)
        return all(ours.shape == theirs.shape and torch.equal(ours, theirs) for ours, theirs in pairs)


@dataclass(frozen=True)
class FoundEncoder:
    """An encoder in a file.

    Attributes:
        state: its tensors, and further ones that nobody has decided to leave out.
        place: where they are; empty where that needs no mention.
        notes: what was chosen, and what is left out.
        side: of the images that its positions are for, in pixels, if it is another than the model's.
    """

    state: dict[str, Tensor]
    place: str = ""
    notes: tuple[str, ...] = ()
    side: int | None = None


def find(content: Mapping[str, Any], model: nn.Module, key: str | None, prefix: str | None) -> FoundEncoder:
    """The tensors of a model, wherever they are in a file.

    Where no part of the file has all of them, those of the part that has most, for the message of what is missing.

    Args:
        content: of the file.
        model: whose names and shapes are looked for; its values don't matter.
        key: of the dictionary with the tensors, "a/b" for one in another; any by default.
        prefix: of the names; any by default.
    """
    expected = model.state_dict()
    networks = [
        Network(place.keys, one, place.tensors)
        for place in _networks_at(content, key, prefix)
        for one in dict.fromkeys([*prefixes_in(place.tensors, expected), prefix or ""])
    ]
    possible = [network for network in networks if prefix in (None, network.prefix)]
    whole = [network for network in networks if network.n_fitting(expected) == len(expected)]
    if not (fitting := [network for network in possible if network in whole]):
        nearest = max(possible, key=lambda network: (network.n_fitting(expected), len(network.tensors)))
        is_alike = prefix is not None or 2 * nearest.n_fitting(expected) >= len(expected)
        return FoundEncoder((nearest if is_alike else replace(nearest, prefix="")).state, nearest.place if is_alike else "")
    chosen = _choose_network(content, fitting, expected)
    state, beside = _own_state(chosen, [network for network in whole if network is not chosen], expected)
    differing = [str(network) for network in fitting if network is not chosen and not network.equals(chosen, expected)]
    notes = (
        chosen.place and f"its tensors are those of {chosen.place}",
        differing and f"also there, and not taken: {shorten(differing)}",
        beside and f"left out: {shorten(group_names(beside, (network.prefix for network in whole)), 10)}",
    )
    return FoundEncoder(state, chosen.place, tuple(note for note in notes if note), learnt_side(model, state))


def select_tensors(content: Mapping[str, Any], key: str | None, prefix: str | None) -> dict[str, Any]:
    """The content of a file with the tensors that a key and a prefix select, for converters of the registry to take."""
    return {**content, SELECTED: min(_networks_at(content, key, prefix), key=lambda network: network.order).state}


def averages_in(content: Mapping[str, Any]) -> list[str]:
    """Running averages stored with the weights, as options that choose them."""
    return [str(network) for network in _dictionaries(content) if network.order[0]]


def wrapping_in(content: Mapping[str, Any]) -> list[str]:
    """Those of `WRAPPING` that are in names of tensors."""
    names = [f".{name}." for network in _dictionaries(content) for name in network.tensors]
    return [part for part in WRAPPING if any(f".{part}." in name for name in names)]


def _dictionaries(content: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[Network]:
    """Dictionaries in the content of a file that hold tensors, by names as they are there."""
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if tensors:
        yield Network(keys, "", tensors)
    for name, part in content.items():
        if isinstance(name, str) and isinstance(part, dict) and len(keys) < DEPTH:
            yield from _dictionaries(part, (*keys, name))


def _networks_at(content: Mapping[str, Any], key: str | None, prefix: str | None) -> list[Network]:
    """Dictionaries of tensors at a key that have names with a prefix, as networks with that prefix."""
    every = [Network(raw.keys, prefix or "", with_plain_names(raw.tensors)) for raw in _dictionaries(content)]
    if not every:
        raise BeyondClsError(f"the checkpoint holds no dictionary of tensors; it holds {shorten(content) or 'nothing'}")
    at_key = [network for network in every if key in (None, "/".join(network.keys))]
    if not at_key:
        there = shorten("/".join(network.keys) for network in every)
        raise BeyondClsError(f"--checkpoint-key is {key!r}, expected one that holds tensors: {there}")
    behind = [network for network in at_key if network.state]
    if not behind:
        names = shorten(group_names(name for network in at_key for name in network.tensors))
        raise BeyondClsError(f"--checkpoint-prefix is {prefix!r}, but no name begins with it; there are {names}")
    return behind


def _choose_network(content: Mapping[str, Any], networks: list[Network], expected: Mapping[str, Tensor]) -> Network:
    """The network to take of those that fit: one that needs no search, or the first in order."""
    usual = next(((name,) for name in WRAPPERS if isinstance(content.get(name), dict)), ())
    for network in networks:
        if network.keys == usual and not network.prefix and not network.tensors.keys() - {*expected, *CLASSIFIER}:
            return network
    order = min(network.order for network in networks)
    first, *others = (network for network in networks if network.order == order)
    differing = [network for network in others if not first.equals(network, expected)]
    if differing:
        raise BeyondClsError(
            f"{len(differing) + 1} of its networks fit, and no name says which to take; give one of: "
            f"{'; '.join(map(str, (first, *differing)))}"
        )
    return first


def _own_state(network: Network, others: list[Network], expected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The state of a network, and names of tensors in its dictionary that are left out.

    Those are of other modules, as they have another prefix, or of parts `BESIDE` the encoder. Tensors of the other networks are
    in neither.
    """
    prefixes = {other.prefix for other in others if other.keys == network.keys}
    theirs = tuple(prefix for prefix in prefixes if len(prefix) > len(network.prefix))
    of_others = {f"{prefix}{name}" for prefix in prefixes if prefix not in theirs for name in expected}
    state, beside = {}, []
    for full, value in network.tensors.items():
        name = full.removeprefix(network.prefix)
        if full in of_others or full.startswith(theirs):
            continue
        if not full.startswith(network.prefix):
            beside.append(full)
        elif name not in expected and BESIDE.match(name):
            beside.append(name)
        else:
            state[name] = value
    return state, beside
