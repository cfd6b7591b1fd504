"""The units that have digests: a program, or those of its entries in params.yaml that use different code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.code.closure import Project, Used
from pipelines.parameters.groups import PLACES
from pipelines.parameters.heads import GROUPS
from pipelines.parameters.params import mapping, section
from store.plugins import NAME
from store.user_code import file_of

FOLDERS = ("extract", "readers", "heads", "studies")  # of digests for each encoder, form of data set, head, study

ENCODERS = ("extract.encoders", "ENCODERS")
STATISTICS = (("extract.attention", "STATISTICS"), ("extract.attention", "PER_BLOCK"))
READERS = ("extract.datasets", "DATASETS")  # which one a data set needs is seen from its images
AGGREGATORS = ("probe.aggregators", "AGGREGATORS")
PROTOCOLS = ("probe.closed", "CLOSED")
NO_HEADS: Used = {AGGREGATORS: (), PROTOCOLS: ()}


@dataclass(frozen=True)
class CodeUnit:
    """The subject of one file of digests.

    Attributes:
        file: its name, without the suffix, below the folder of all.
        modules: modules that are run, and files of encoders and aggregators of the user's.
        used: entries of registries; of registries that it does not mention, all entries count.
    """

    file: str
    modules: tuple[str, ...]
    used: Used


def _unit_of_heads(file: str, module: str, heads: Mapping[str, Any], *common: Mapping[str, Any]) -> CodeUnit:
    """The unit of some heads by name; `common`: parameters of all of them."""
    entries = {name: mapping(name, entry) for name, entry in heads.items()}
    aggregators = {str(entry.get("aggregator", name)) for name, entry in entries.items()}
    protocol_parameters = [layer.get("protocol") for layer in (*common, *entries.values())]
    protocols = {str(p.get("name") if isinstance(p, Mapping) else p) for p in protocol_parameters if p is not None}
    files = sorted({custom for name in aggregators if (custom := file_of(name))})
    return CodeUnit(file, (module, *files), {AGGREGATORS: aggregators, PROTOCOLS: protocols} if heads else {})


def units(params: Mapping[str, Any], project: Project) -> Iterator[CodeUnit]:
    """All units that stages depend on, except readers of their data sets (reader.py).

    Raises:
        BeyondClsError: sections of the parameter file are not mappings.
    """
    names = section(params, "extract").get("statistics")  # without a list, all
    statistics: Used = {registry: {*map(str, names)} for registry in STATISTICS} if isinstance(names, list | tuple) else {}
    for name, entry in section(params, "encoders").items():
        model = str(mapping(name, entry).get("model") or name)
        modules = ("pipelines.extract", *filter(None, (file_of(model),)))
        yield CodeUnit(f"extract/{name}", modules, {ENCODERS: {model}, READERS: (), **statistics})
    of_packages = (plugin.name for plugin in project.declared("datasets") if NAME.fullmatch(plugin.name))
    for form in sorted({*(project.keys_of(*READERS) or ()), *of_packages}):
        yield CodeUnit(f"readers/{form}", (READERS[0],), {READERS: {form}})
    probe, training = section(params, "probe"), "pipelines.probing.training"
    heads = {head: entry for group in GROUPS for head, entry in section(params, group).items()}
    for head, entry in heads.items():
        yield _unit_of_heads(f"heads/{head}", training, {head: entry}, probe)
    for study, entry in ((study, section(params, place, study)) for place in PLACES for study in section(params, place)):
        yield _unit_of_heads(f"studies/{study}", training, section(entry, "heads"), probe, entry)
    for name, entries in (("localise", "localised"), ("score", "scores")):
        named = {str(mapping(entry, values).get("head")) for entry, values in section(params, entries).items()}
        yield _unit_of_heads(name, f"pipelines.{name}", {h: entry for h, entry in heads.items() if h in named}, probe)
    yield CodeUnit("attention", ("pipelines.attention",), statistics)
    yield CodeUnit("blocks", ("pipelines.blocks",), {PROTOCOLS: {"knn"}})
    yield CodeUnit("compose", ("pipelines.quickstart.compose",), {READERS: ()})
    yield CodeUnit("compose-dense", ("pipelines.quickstart.objects",), {READERS: ()})
    yield CodeUnit("divergence", ("pipelines.divergence",), {})
    for name in ("correspond", "depth", "few-shot", "geometry", "norms", "retrieve", "similarity", "track"):
        yield CodeUnit(name, (f"pipelines.{name.replace('-', '_')}",), {**NO_HEADS, READERS: ()})
    for name, module in (("detect", "detect"), ("segment", "segment"), ("params", "parameters.recipes")):
        yield CodeUnit(name, (f"pipelines.{module}",), NO_HEADS)
    yield CodeUnit("report", ("pipelines.report.command",), {READERS: ()})
