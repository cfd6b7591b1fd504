"""Heads to train, from the parameter file and the command line."""

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.parameters.layers import Layer, common_layers, resolve, values_of
from pipelines.parameters.options import check_values, flag_of, select_options
from pipelines.parameters.params import check_name, check_names, named_values, section, without_none
from pipelines.parameters.training import CHECKED, DRAWS, OF_A_HEAD, OF_A_PROTOCOL, OF_A_RECIPE, OF_A_RUN, SHARED, draws_images
from store import BeyondClsError

if TYPE_CHECKING:
    from probe.grid import HeadPlan


ANY = ("cls", "patch", "registers", "average", "pooled", "attention")
# Section of params.yaml -> kinds of features that its heads may read: the dependencies of its stages in dvc.yaml, which DVC has
# to know before anything runs. All else is small beside patch tokens, so only heads without these have a group of their own.
GROUPS = {"cls_heads": ("cls",), "heads": ANY, "own_heads": ANY}


@dataclass(frozen=True)
class AskedHead:
    """A head as `--head` names it: `[NAME=]HEAD[:option=value,…]`.

    Attributes:
        name: an aggregator, FILE.py:CLASS, or a name in the parameter file.
        folder: of its results: NAME; else that of the aggregator with the options, `ap-heads12`.
        own: options of the aggregator and parameters of its training, which win over all others.
    """

    name: str
    folder: str
    own: Mapping[str, Any]

    @classmethod
    def from_text(cls, text: str) -> "AskedHead":
        """A head from the value of `--head`.

        Raises:
            BeyondClsError: an option without a value, or what cannot be the name of a folder.
        """
        first, _, rest = text.partition(":")
        folder, has_folder, name = first.rpartition("=")
        aggregator = name
        if name.endswith(".py"):
            aggregator, _, rest = rest.partition(":")
            name = f"{name}:{aggregator}"
        pairs = _split(rest) if rest else []
        own = named_values(f"--head {text}", pairs)
        if not has_folder:
            folder = "-".join([aggregator, *map(_in_folder, pairs)])
        check_name("a head", folder)
        return cls(name, folder, own)


def _split(text: str) -> list[str]:
    """Parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _in_folder(pair: str) -> str:
    """An option in the name of a folder: `heads12` of `heads=12`, `blocks3-5` of `blocks=[3,5]`, `activation-relu`."""
    name, _, value = pair.partition("=")
    shown = re.sub(r"[^\w.+-]+", "-", value.strip("[]{}"))
    return f"{name}-{shown}" if shown[:1].isalpha() else f"{name}{shown}"


def plans_and_run(
    names: Sequence[str],
    params: Mapping[str, Any] | None,
    command_line: Mapping[str, Any],
    options: Mapping[str, Any],
    layers: Sequence[Layer] | None = None,
) -> tuple[dict[str, "HeadPlan"], dict[str, Any]]:
    """Plans by name, and parameters of the whole run: the command line wins over a head's entry, which wins over `layers`.

    Where each seed draws its own images (`draws_images`), it has its own order of them, and there are five by default.

    Args:
        names: of heads, as `AskedHead` has them; in `params`, if there is such a file.
        command_line: parameters on the command line.
        options: of the aggregators, also on the command line.
        layers: parameters of all heads; by default `probe` alone.

    Raises:
        BeyondClsError: unknown names, invalid values, or values that exclude each other.
    """
    common = common_layers(params or {}) if layers is None else layers
    of_neighbours = select_options(command_line, OF_A_PROTOCOL)
    given = {name: value for name, value in command_line.items() if name not in of_neighbours} | dict(options)
    values: dict[str, dict[str, Any]] = {}
    orders = [command_line.get("order")]
    for folder, text in folders_of(names).items():
        head = AskedHead.from_text(text)
        entry = {"aggregator": head.name, **_entry_of(head.name, params)}
        if shared := select_options(head.own, OF_A_RUN):
            flags = " and ".join(map(flag_of, shared))
            raise BeyondClsError(f"--head {text} gives {', '.join(shared)}, which all heads of a command share; give {flags}")
        if len(names) > 1 and (of_run := select_options(entry, OF_A_RUN)):
            given_there = f"heads.{head.name} gives {', '.join(of_run)}"
            raise BeyondClsError(f"{given_there}, which all heads of a command share; run it alone, or move it to probe")
        _check_options(f"heads.{head.name}", entry["aggregator"], entry, ("aggregator", *SHARED))
        _check_options("--option", entry["aggregator"], options, ())
        check_values(f"--head {head.name}:", head.own, CHECKED)
        _check_options(f"--head {head.name}", entry["aggregator"], head.own, (*OF_A_RECIPE, *OF_A_HEAD))
        nearer = [Layer(f"heads.{head.name}", entry), Layer("the command line", given), Layer(f"--head {text}", head.own)]
        values[folder] = values_of(resolve([*common, *nearer]))
        orders.append(entry.get("order"))
    run = {name: value for name, value in next(iter(values.values())).items() if name in OF_A_RUN and value is not None}
    if own_draws := draws_images(run):
        if "shared" in orders:
            remedy = "leave it out, or give --subset-seed 0, and all seeds learn from one draw"
            raise BeyondClsError(f"order is shared, but each seed draws its own images of --k-shot or --percent; {remedy}")
        values = {name: {"seeds": DRAWS, **of_head} for name, of_head in values.items()}
    plans = {name: _plan(of_head, of_neighbours) for name, of_head in values.items()}
    if own_draws:  # no two seeds have one pass
        plans = {name: replace(plan, recipe=replace(plan.recipe, order="own")) for name, plan in plans.items()}
    if not all(any(hasattr(plan.closed, name) for plan in plans.values()) for name in of_neighbours):
        flag = flag_of(next(iter(of_neighbours)))
        raise BeyondClsError(f"{flag} is an option of --protocol knn, which no head here has; add that, or leave it out")
    return plans, run


def folders_of(names: Sequence[str]) -> dict[str, str]:
    """Heads as they were given, by the names of their folders.

    Raises:
        BeyondClsError: two heads have one folder, or a name cannot be that of a folder.
    """
    folders: dict[str, str] = {}
    for name in names:
        folder = AskedHead.from_text(name).folder
        if name in folders.values():
            raise BeyondClsError(f"--head {name} was given twice; under another name, --head NAME={name}, it can be repeated")
        if folder in folders:
            raise BeyondClsError(f"two heads are named {folder!r}; give one of them another name, --head NAME={name}")
        folders[folder] = name
    return folders


def shared_group(text: str, params: Mapping[str, Any]) -> str | None:
    """The section of the parameter file with whose other heads a head can train side by side, as they need the same arrays.

    None for one that must have a run of its own, or whose own code may fail.
    """
    from probe.aggregators import is_custom

    name = AskedHead.from_text(text).name
    entry = _entry_of(name, params)
    if is_custom(entry.get("aggregator", name)) or select_options(entry, OF_A_RUN):
        return None
    return next((group for group in GROUPS if name in (params.get(group) or {})), None)


def _entry_of(name: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entry of a head in the parameter file."""
    from probe.aggregators import is_custom

    heads = heads_of(params or {})
    # Aggregators without a parameter file, and custom ones, need no entry.
    entered = params is not None and (not is_custom(name) or name in heads)
    entry = section({"heads": heads}, "heads", name) if entered else {}
    check_values(f"heads.{name}.", entry, CHECKED)
    return entry


def heads_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of heads in the parameter file, by name, from all groups.

    Raises:
        BeyondClsError: two groups have heads of one name.
    """
    heads: dict[str, Any] = {}
    for name in GROUPS:
        section_heads = section(params, name)
        if twice := next((head for head in section_heads if head in heads), None):
            raise BeyondClsError(f"head {twice!r} is in {name} and in another section; give one of the two another name")
        heads |= section_heads
    return heads


def _plan(values: Mapping[str, Any], of_neighbours: Mapping[str, Any]) -> "HeadPlan":
    """The plan of a head from all that was given for it; options of k-NN on the command line win over its protocol's."""
    from probe.closed import make_closed
    from probe.grid import HeadPlan, HeadSpec
    from probe.recipe import PRESET_INITS, make_recipe

    options = {name: value for name, value in values.items() if name not in ("aggregator", *SHARED)}
    of_spec = {name: values.get(name) for name in ("normalisation", "final_norm", "init")}
    of_spec["init"] = of_spec["init"] or PRESET_INITS.get(values.get("preset") or "")
    recipe = {n: v for n, v in values.items() if n in OF_A_RECIPE and (v is not None or n == "rows_at_once")}
    grid = {n: tuple(values[n]) for n in ("seeds", "base_lrs", "weight_decays") if values.get(n) is not None}
    closed = None
    if (protocol := values.get("protocol")) is not None:  # a name, or a mapping of it and its options
        settings = dict(protocol) if isinstance(protocol, Mapping) else {"name": protocol}
        name = str(settings.pop("name", ""))
        closed = make_closed(name, **{**settings, **(of_neighbours if name == "knn" else {})})
    spec = HeadSpec(values["aggregator"], options, **without_none(**of_spec))
    return HeadPlan(spec, make_recipe(values.get("preset"), **recipe), **grid, closed=closed)


def _check_options(where: str, aggregator: Any, options: Mapping[str, Any], parameters: Collection[str]) -> None:
    """Refuse options, given somewhere, that nothing reads; `parameters` may be there, too."""
    from probe.aggregators import AGGREGATORS

    if not isinstance(aggregator, str):
        raise BeyondClsError(f"{where}.aggregator is {aggregator!r}, expected a name such as abmilp")
    known = AGGREGATORS.get(aggregator)  # of custom ones it is unknown here what they take
    takes = [n for n in options if n not in ("aggregator", *SHARED)] if known is None else inspect.signature(known).parameters
    check_names(where, options, [*(n for n in takes if n not in ("dim", "n_patches")), "top_k", *parameters])
