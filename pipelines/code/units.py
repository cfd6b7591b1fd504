"""The units that have digests: a program, or those of its entries in params.yaml that use different code."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.code.closure import Project
from pipelines.code.registries import Used
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

Params = Mapping[str, Any]


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


def _units_of_extraction(params: Params, project: Project) -> Iterator[CodeUnit]:
    """Units of each encoder; and of each reader of images, on which those that use it depend."""
    for name, entry in section(params, "encoders").items():
        model = str(mapping(name, entry).get("model") or name)
        files = tuple(filter(None, (file_of(model),)))
        yield CodeUnit(
            f"extract/{name}", ("pipelines.extract", *files), {ENCODERS: {model}, READERS: (), **_statistics(params)}
        )
    for form in sorted({*project.keys(*READERS), *(p.name for p in project.declared("datasets") if NAME.fullmatch(p.name))}):
        yield CodeUnit(f"readers/{form}", (READERS[0],), {READERS: {form}})


def _units_of_probing(params: Params) -> Iterator[CodeUnit]:
    """Units of each head and of each study."""
    common = section(params, "probe")
    for name in GROUPS:
        for head, entry in section(params, name).items():
            yield _unit_of_heads(f"heads/{head}", "pipelines.probing.training", {head: entry}, [common])
    for name in PLACES:
        for study in section(params, name):
            entry = section(params, name, study)
            yield _unit_of_heads(f"studies/{study}", "pipelines.probing.training", section(entry, "heads"), [common, entry])


def _unit_of_entries(name: str, entries: str, params: Params) -> CodeUnit:
    """The unit of a stage with the heads that entries of its section name."""
    named = {str(mapping(entry, values).get("head")) for entry, values in section(params, entries).items()}
    heads = {head: values for group in GROUPS for head, values in section(params, group).items() if head in named}
    return _unit_of_heads(name, f"pipelines.{name}", heads, [section(params, "probe")])


def _unit_of_heads(file: str, module: str, heads: Params, common: Collection[Params]) -> CodeUnit:
    """The unit of some heads by name; `common`: parameters of all of them."""
    entries = {name: mapping(name, entry) for name, entry in heads.items()}
    aggregators = {str(entry.get("aggregator", name)) for name, entry in entries.items()}
    protocol_parameters = [layer.get("protocol") for layer in (*common, *entries.values())]
    protocols = {str(p.get("name") if isinstance(p, Mapping) else p) for p in protocol_parameters if p is not None}
    files = sorted({custom for name in aggregators if (custom := file_of(name))})
    return CodeUnit(file, (module, *files), {AGGREGATORS: aggregators, PROTOCOLS: protocols} if heads else {})


def _statistics(params: Params) -> Used:
    """Statistics that `extract` lists; all if it has no list."""
    names = section(params, "extract").get("statistics")
    return {registry: set(map(str, names)) for registry in STATISTICS} if isinstance(names, list | tuple) else {}


def units(params: Params, project: Project) -> Iterator[CodeUnit]:
    """All units that stages depend on, except readers of their data sets (reader.py).

    Raises:
        BeyondClsError: sections of the parameter file are not mappings.
    """
    yield from _units_of_extraction(params, project)
    yield from _units_of_probing(params)
    yield CodeUnit("attention", ("pipelines.attention",), _statistics(params))
    yield _unit_of_entries("localise", "localised", params)
    yield _unit_of_entries("score", "scores", params)
    yield CodeUnit("blocks", ("pipelines.blocks",), {PROTOCOLS: {"knn"}})
    yield CodeUnit("compose", ("pipelines.quickstart.compose",), {READERS: ()})
    yield CodeUnit("compose-dense", ("pipelines.quickstart.objects",), {READERS: ()})
    yield CodeUnit("detect", ("pipelines.detect",), {AGGREGATORS: (), PROTOCOLS: ()})
    yield CodeUnit("divergence", ("pipelines.divergence",), {})
    for name in ("correspond", "depth", "few-shot", "geometry", "norms", "retrieve", "similarity", "track"):
        yield CodeUnit(name, (f"pipelines.{name.replace('-', '_')}",), {AGGREGATORS: (), PROTOCOLS: (), READERS: ()})
    yield CodeUnit("params", ("pipelines.parameters.recipes",), {AGGREGATORS: (), PROTOCOLS: ()})
    yield CodeUnit("report", ("pipelines.report.command",), {READERS: ()})
    yield CodeUnit("segment", ("pipelines.segment",), {AGGREGATORS: (), PROTOCOLS: ()})
