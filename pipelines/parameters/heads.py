"""Heads to train, from the parameter file and the command line."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from pipelines.parameters.groups import GROUPS
from pipelines.parameters.options import Option, Table, flag_of
from pipelines.parameters.params import check_names, from_yaml, integers, numbers, section

if TYPE_CHECKING:
    from probe.grid import HeadPlan

# Parameters of training, as the command line and params.yaml have them: fields of `probe.recipe.Recipe`, …
OF_A_RECIPE = {
    "epochs": Option(int, "passes over the training images", "90"),
    "batch_size": Option(int, "images of an optimiser step", "1024"),
    "rows_at_once": Option(int, "images computed at once", "a batch"),
    "optimiser": Option(str, "lars, sgd or adamw", "sgd"),
    "base_lr": Option(float, "learning rate of a batch of 256, scaled linearly", "0.1"),
    "momentum": Option(float, "of sgd and lars; beta 1 of adamw", "0.9"),
    "weight_decay": Option(float, "λ of the optimiser", "0"),
    "warmup_epochs": Option(int, "in which the learning rate rises, before half a cosine to zero", "10"),
    "order": Option(str, "of the images: shared by all seeds, or own, one pass for each", "shared"),
    "drop_last": Option(bool, "leave out the images after an epoch's last whole batch", flags="--drop-last/--no-drop-last"),
}
# … further parameters of a single head, …
OF_A_HEAD = {
    "preset": Option(
        str,
        "the paper's mae-lars, mae-lars-large, small-sgd; ep-lars of the efficient probing benchmark; or adamw, ours. Replaces "
        "the recipe in params.yaml",
    ),
    "seeds": Option(str, "with commas", "0,1,2", read=integers),
    "base_lrs": Option(str, "with commas: the best on held-out training images is taken, e.g. 0.01,0.03,0.1", read=numbers),
    "weight_decays": Option(str, "likewise", read=numbers),
    "normalisation": Option(str, "before the classifier: batch or none", "batch"),
    "final_norm": Option(bool, "apply the encoder's last LayerNorm to the tokens first", flags="--final-norm/--no-final-norm"),
    "init": Option(str, "start of the classifier: normal, N(0, 0.01²), or uniform, as torch's", "normal"),
    "protocol": Option(str, "logistic, knn or ridge instead of gradient steps, for aggregators without parameters"),
}
# … and those of a whole run, which all heads of a command share.
OF_A_RUN = {
    "block": Option(int, "block whose tokens are read", "the deepest stored"),
    "views": Option(
        int, "stored views of the training images to use, from view 0 on; 1 is the evaluation crop", "all", least=1
    ),
    "mix_evaluation_view": Option(
        bool,
        "show the evaluation crop beside the random ones, if there are any",
        "crops alone",
        flags="--mix-evaluation-view/--crops-alone",
    ),
    "held_out": Option(float, "share of the training images to select on", "0.1"),
    "k_shot": Option(int, "train on this many images of each class"),
    "percent": Option(float, "train on this percentage of the images, stratified"),
    "ids": Option(str, "train on the images that this file lists, one id or file name a line, e.g. the list of ImageNet 1 %"),
    "subset_seed": Option(int, "of --k-shot and --percent", "0"),
    "placement": Option(str, "of the features: device, memory, stream, or auto: the first that fits", "auto"),
}
# Of these, one excludes the other.
ALTERNATIVES = (
    ("base_lr", "base_lrs"),
    ("weight_decay", "weight_decays"),
    ("k_shot", "percent"),
    ("k_shot", "ids"),
    ("percent", "ids"),
)
TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a name"),
    bool: ((bool,), "true or false"),
}


def plans_and_run(
    names: Sequence[str], params: Mapping[str, Any] | None, command_line: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, "HeadPlan"], dict[str, Any]]:
    """Plans by name, and parameters of the whole run: the command line wins over a head's entry, which wins over `probe`.

    Args:
        names: of heads; in `params`, if there is such a file.
        command_line: parameters on the command line.
        options: of the aggregators, also on the command line.

    Raises:
        BeyondClsError: unknown names, invalid values, or values that exclude each other.
    """
    from probe.aggregators import is_custom
    from store import BeyondClsError

    heads = heads_of(params or {})
    if twice := next((name for name in names if list(names).count(name) > 1), None):
        raise BeyondClsError(f"--head {twice} was given twice; under another name in params.yaml a head may be repeated")
    common = section(params or {}, "probe")
    check_names("probe", common, shared_parameters())
    layers_of_run, plans = [common], {}
    for name in names:
        # Aggregators without a parameter file, and custom ones, need no entry.
        entered = params is not None and (not is_custom(name) or name in heads)
        entry = section({"heads": heads}, "heads", name) if entered else {}
        of_run = {parameter: entry.pop(parameter) for parameter in OF_A_RUN if parameter in entry}
        if of_run and len(names) > 1:
            raise BeyondClsError(
                f"heads.{name} gives {', '.join(of_run)}, which all heads of a command share; run it alone, or move it to probe"
            )
        layers_of_run.append(of_run)
        folder = name.rpartition(":")[2] if is_custom(name) else name
        if folder in plans:
            raise BeyondClsError(f"two heads are named {folder!r}; give one of them another name under heads in params.yaml")
        plans[folder] = plan_of(name, entry, common, command_line, options)
    run = layered(*layers_of_run, command_line)
    _check_types("", run, OF_A_RUN)
    return plans, {name: run[name] for name in OF_A_RUN if run.get(name) is not None}


def heads_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of heads in the parameter file, by name, from all groups.

    Raises:
        BeyondClsError: two groups have heads of one name.
    """
    from store import BeyondClsError

    heads: dict[str, Any] = {}
    for name in GROUPS:
        section_heads = section(params, name)
        if twice := next((head for head in section_heads if head in heads), None):
            raise BeyondClsError(f"head {twice!r} is in {name} and in another section; give one of the two another name")
        heads |= section_heads
    return heads


def shared_parameters() -> list[str]:
    """Names of the parameters that all heads of a command may share: those of `probe`."""
    return [*OF_A_RECIPE, *OF_A_HEAD, *OF_A_RUN]


def plan_of(
    name: str,
    entry: Mapping[str, Any],
    common: Mapping[str, Any],
    command_line: Mapping[str, Any],
    options: Mapping[str, Any],
) -> "HeadPlan":
    """A head's plan.

    Args:
        entry: the values under its name: aggregator, its options, and parameters.
        common: parameters of all heads.
        command_line: parameters on the command line.
        options: of the aggregator, also on the command line.

    Raises:
        BeyondClsError: unknown names, or invalid values.
    """
    from probe.closed import make_closed
    from probe.grid import HeadPlan, HeadSpec
    from probe.recipe import PRESET_INITS, make_recipe
    from store import BeyondClsError

    entry_options = dict(entry)
    aggregator = entry_options.pop("aggregator", name)
    plan_parameters = (*OF_A_RECIPE, *OF_A_HEAD)
    parameters = {n: entry_options.pop(n) for n in plan_parameters if n in entry_options}
    _check_options(name, aggregator, entry_options, plan_parameters)
    merged = layered(
        *({n: v for n, v in layer.items() if n in plan_parameters} for layer in (common, parameters, command_line))
    )
    _check_types(f" of head {name!r}", merged, OF_A_RECIPE | OF_A_HEAD)
    closed, protocol = None, merged.pop("protocol", None)
    if protocol is not None:
        settings = dict(protocol) if isinstance(protocol, Mapping) else {"name": protocol}
        closed = make_closed(str(settings.pop("name", "")), **settings)
    normalisation, final_norm = merged.pop("normalisation", None) or "batch", merged.pop("final_norm", None) or False
    grid = {n: merged.pop(n) for n in ("seeds", "base_lrs", "weight_decays") if n in merged}
    for parameter, values in grid.items():
        if values is not None and not isinstance(values, list | tuple):
            raise BeyondClsError(f"{parameter} of head {name!r} is {values!r}, expected a list; give [{values}] for one")
    preset, init = merged.pop("preset", None), merged.pop("init", None)
    recipe = make_recipe(preset, **{n: v for n, v in merged.items() if v is not None or n == "rows_at_once"})
    spec = HeadSpec(
        aggregator, {**entry_options, **options}, normalisation, final_norm, init or PRESET_INITS.get(preset, "normal")
    )
    return HeadPlan(spec, recipe, **{n: tuple(values) for n, values in grid.items() if values is not None}, closed=closed)


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of all layers; the last one wins.

    A preset replaces the whole recipe of the layers before it, its grid, and where the classifier starts.

    Raises:
        BeyondClsError: a layer gives two that exclude each other.
    """
    from store import BeyondClsError

    merged: dict[str, Any] = {}
    for layer in layers:
        if layer.get("preset") is not None:
            merged = {n: v for n, v in merged.items() if n not in (*OF_A_RECIPE, "base_lrs", "weight_decays", "init")}
        for one, other in ALTERNATIVES:
            if layer.get(one) is not None and layer.get(other) is not None:
                raise BeyondClsError(
                    f"{_as_flag(one, layer)} and {_as_flag(other, layer)} exclude each other; give one of them"
                )
            for new, old in ((one, other), (other, one)):
                if layer.get(new) is not None:
                    merged.pop(old, None)
        merged |= layer
    return merged


def options_of(pairs: Sequence[str]) -> dict[str, Any]:
    """`depth=2` as {"depth": 2}; values are YAML.

    Raises:
        BeyondClsError: a pair that is not a name and a value.
    """
    from store import BeyondClsError

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            options[name] = from_yaml(value)
        except yaml.YAMLError as error:
            raise BeyondClsError(f"--option is {pair!r}, whose value is not YAML; expected e.g. blocks=[3,5]") from error
        if not equals or not name:
            raise BeyondClsError(f"--option is {pair!r}, expected name=value, e.g. depth=2")
    return options


def _as_flag(name: str, layer: Mapping[str, Any]) -> str:
    value = layer[name]
    return f"{flag_of(name)} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _check_options(name: str, aggregator: Any, options: Mapping[str, Any], parameters: Sequence[str]) -> None:
    """Refuse options that nothing reads.

    Raises:
        BeyondClsError: neither an option of the aggregator nor a parameter; suggests the nearest of both.
    """
    from probe.aggregators import AGGREGATORS
    from store import BeyondClsError

    if not isinstance(aggregator, str):
        raise BeyondClsError(f"aggregator of head {name!r} is {aggregator!r}, expected a name such as abmilp")
    if aggregator in AGGREGATORS:
        takes = [n for n in inspect.signature(AGGREGATORS[aggregator]).parameters if n not in ("dim", "n_patches")]
        check_names(f"heads.{name}", options, [*takes, "top_k", "aggregator", *parameters, *OF_A_RUN])


def _check_types(where: str, values: Mapping[str, Any], parameters: Table) -> None:
    """Refuse values of another type.

    Raises:
        BeyondClsError: a value of another type than that of its parameter.
    """
    from store import BeyondClsError

    for name, parameter in parameters.items():
        value = values.get(name)
        if value is None or parameter.read is not None or name == "protocol":  # a list, or a name with its options
            continue
        expected_types, words = TYPES[parameter.type]
        if not isinstance(value, expected_types) or (parameter.type is not bool and isinstance(value, bool)):
            raise BeyondClsError(f"{name}{where} is {value!r}, expected {words}")
