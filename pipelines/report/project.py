"""Where a project keeps what the report shows: the folders that dvc.yaml names, the images that params.yaml names."""

from pathlib import Path
from typing import Any

from pipelines.parameters.params import read_params
from pipelines.report.collect import Folders
from store import BeyondClsError

PARAMS = "params.yaml"
COMPOSED = "composed/images.csv"  # what `dvc repro` localises


def project(folder: Path, dataset: str | None = None) -> Folders:
    """The layout of `dvc repro`: probes/DATASET/ENCODER/HEAD and attention/DATASET/ENCODER of one data set, others beside it.

    Without data sets in between, as commands run by hand may leave it, probes/ENCODER/HEAD and attention/ENCODER.

    Args:
        folder: of the project.
        dataset: the one that most of the report is about; by default the first of `datasets` in params.yaml that was probed,
            or the only one.

    Raises:
        BeyondClsError: nothing was probed, that data set was not, or several were and none is chosen.
    """
    probes, attention = folder / "probes", folder / "attention"
    params = read_params(folder / PARAMS) if (folder / PARAMS).is_file() else {}
    probed = sorted({file.parents[2].name for file in probes.glob("*/*/*/metrics.json")})
    main = _main(probes, probed, params, dataset)
    compared = () if main is None else (probes, *_others(folder, params, "other_probes"))
    return Folders(
        probes=probes if main is None else probes / main,
        attention=attention if main is None else attention / main,
        studies=(folder / "studies", *_others(folder, params, "other_studies")),
        divergence=folder / "divergence",
        localisation=folder / "localisation",
        images=None if main is None else _images(folder, params, main),
        split="test",
        datasets=compared,
        localised=str(composed) if (composed := folder / COMPOSED).is_file() else None,
        dataset=main or "",
        receipts=folder / "receipts",
    )


def named_by(probes: Path) -> str:
    """The data set of a folder that holds ENCODER/HEAD, by the folder's name; empty if that is only `probes`."""
    name = probes.resolve().name
    return "" if name == "probes" else name


def _others(folder: Path, params: dict[str, Any], name: str) -> tuple[Path, ...]:
    """The folder that params.yaml names for the results of other runs, if it exists."""
    named = params.get(name)
    return (folder / str(named),) if named and (folder / str(named)).is_dir() else ()


def _main(probes: Path, probed: list[str], params: dict[str, Any], dataset: str | None) -> str | None:
    """The data set that most of the report is about; None where probes are not grouped by data set."""
    if dataset is not None and dataset not in probed:
        raise BeyondClsError(
            f"there are no probes of the data set {dataset!r} under {str(probes)!r}, expected one of: "
            f"{', '.join(probed) or 'none yet'}; run `dvc repro probe` for it first (--dataset)"
        )
    if dataset is not None:
        return dataset
    if listed := next((name for name in _listed(params) if name in probed), None):
        return listed
    if any(probes.glob("*/*/metrics.json")):
        return None
    if len(probed) > 1:
        raise BeyondClsError(
            f"there are probes of {len(probed)} data sets under {str(probes)!r} ({', '.join(probed)}), expected one that "
            f"`datasets` in {PARAMS} names; choose with --dataset"
        )
    if not probed:
        raise BeyondClsError(
            f"there are no metrics under {str(probes)!r}, expected {probes}/DATASET/ENCODER/HEAD/metrics.json; run `dvc repro "
            "probe` (or `beyondcls probe`) first, or name the folder that holds ENCODER/HEAD/metrics.json with --probes"
        )
    return probed[0]


def _images(folder: Path, params: dict[str, Any], main: str) -> str | None:
    """The images of `main`, if it is a data set of params.yaml whose images exist locally or are at an address."""
    data = str(params.get("data") or "")
    if not data or main not in _listed(params):
        return None
    if "://" in data:
        return f"{data}/{main}"
    place = folder / data / main
    return str(place) if place.exists() else None


def _listed(params: dict[str, Any]) -> list[str]:
    """Names of the data sets.

    Raises:
        BeyondClsError: `datasets` is not a list.
    """
    listed = params.get("datasets") or []
    if not isinstance(listed, list):
        raise BeyondClsError(f"datasets in {PARAMS} is {listed!r}, expected a list of names, e.g. [cifar10]")
    return [str(name) for name in listed]
