"""Whether somebody makes what the stages of dvc.yaml read: else `dvc repro` stops there, after hours of other stages."""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pipelines.doctor.dvc_reads import DVC_YAML
from pipelines.parameters.params import read_params, section

Values = Mapping[str, Any]  # by the names that stages interpolate
# Folder of results -> the sections of params.yaml whose stages write into it.
SECTIONS = {
    "probes": "encoders, datasets or heads",
    "studies": "studies",
    "attention": "encoders or datasets",
    "features": "encoders, datasets, dense.datasets, whole or composed",
    "receipts": "encoders, datasets, dense.datasets, whole or composed",
    "composed": "composed or composed_dense",
    "divergence": "divergence",
    "localisation": "localised",
    "blocks": "by_block",
}


def unmade(folder: Path, params: Values) -> Iterator[str]:
    """Each path that an entry of params.yaml reads, among the folders of results, which no stage makes and which is not here.

    Raises:
        BeyondClsError: dvc.yaml cannot be read.
    """
    if not (folder / DVC_YAML).is_file():
        return
    stages = section(read_params(folder / DVC_YAML), "stages")
    params = {**params, **_flat(params.get("dense"), "dense")}
    runs = [(entry, body, values) for name, stage in stages.items() for entry, body, values in _runs(name, stage, params)]
    made = {PurePosixPath(path) for _, body, values in runs for path in _paths(body, ("outs", "metrics", "plots"), values)}
    known = made | {above for path in made for above in path.parents}
    results = {path.parts[0] for path in made}
    said = set()
    for entry, body, values in runs:
        for path in map(PurePosixPath, _paths(body, ("deps",), values)):
            is_made = path in known or not made.isdisjoint(path.parents) or (folder / path).exists()
            if path.parts[0] in results and not is_made and (entry, path.parts[:2]) not in said:
                said.add((entry, path.parts[:2]))  # of a feature set, the first of its arrays
                where = SECTIONS.get(path.parts[0], "params.yaml")
                yield f"{entry} reads {path}, which no stage makes; correct it, or add what makes it to {where}"


def _runs(name: str, stage: Values, params: Values) -> Iterator[tuple[str, Values, Values]]:
    """Each run of a stage: what to call it, the stage, and the values that it interpolates."""
    if "foreach" in stage:
        group = _resolved(str(stage["foreach"]), params)
        for key, item in (group or {}).items() if isinstance(group, Mapping | None) else ():
            yield f"{str(stage['foreach'])[2:-1]}.{key}", stage["do"], {**params, "key": key, **_flat(item)}
    else:
        axes = {axis: _names(over, params) for axis, over in stage.get("matrix", {}).items()}
        for chosen in itertools.product(*axes.values()):
            item = dict(zip(axes, chosen, strict=True))
            yield "@".join(filter(None, (name, "-".join(map(str, chosen))))), stage, {**params, **_flat(item)}


def _names(over: Any, params: Values) -> list[Any]:
    values = _resolved(over, params) if isinstance(over, str) else over
    return list(values or ())


def _resolved(text: str, values: Values) -> Any:
    """The value of `${name}`; None where there is none."""
    return values.get(text.removeprefix("${").removesuffix("}"))


def _flat(item: Any, above: str = "item") -> dict[str, Any]:
    return {f"{above}.{name}": value for name, value in item.items()} if isinstance(item, Mapping) else {}


def _paths(body: Values, parts: tuple[str, ...], values: Values) -> Iterator[str]:
    """Paths of a run; those with a name that has no value are left out."""
    for path in (path for part in parts for path in body.get(part, ())):
        written = path if isinstance(path, str) else next(iter(path))
        interpolated = re.sub(r"\$\{([\w.]+)\}", lambda m: str(values.get(m[1], m[0])), written)
        if "${" not in interpolated:
            yield interpolated
