"""Where a project keeps what the report shows: the folders that dvc.yaml names, the images that params.yaml names."""

from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import datasets_of, images_of, is_missing
from pipelines.parameters.params import primary_of, read_params
from pipelines.report.collect import Folders
from pipelines.report.galleries.images import describe_test_images, of_params
from pipelines.report.kinds import OF_SETS
from store import BeyondClsError
from store.user_code import file_of

PARAMS = "params.yaml"
OF_ENCODERS = ("attention", "blocks", "geometry", "similarity", "norms", "few_shot")  # folders that hold DATASET/ENCODER
COMPOSED = "composed"  # photographs with known boxes, by data set


def project(folder: Path, dataset: str | None = None) -> Folders:
    """The layout of `dvc repro`: probes/DATASET/ENCODER/HEAD, attention/, blocks/, … DATASET/ENCODER of one data set.

    Others are next to it. Without data sets in between, as commands run by hand may leave it, probes/ENCODER/HEAD and so on.

    Args:
        folder: of the project.
        dataset: the one that most of the report is about; by default the first of `datasets` in params.yaml that was probed,
            or the only one.

    Raises:
        BeyondClsError: nothing was probed, that data set was not, or several were and none is chosen.
    """
    probes = folder / "probes"
    params = read_params(folder / PARAMS) if (folder / PARAMS).is_file() else {}
    probed = sorted({file.parents[2].name for file in probes.glob("*/*/*/metrics.json")})
    main = _main_dataset(probes, probed, params, dataset)
    of_main: dict[str, Any] = {name: folder / name if main is None else folder / name / main for name in OF_ENCODERS}
    of_all: dict[str, Any] = {kind: folder / kind for kind in ("scores", *OF_SETS)}
    compared = () if main is None else (probes, *_other_results(folder, params, "other_probes"))
    return Folders(
        probes=probes if main is None else probes / main,
        **of_main,
        studies=(_dataset_folder(folder / "studies", main), *_other_results(folder, params, "other_studies")),
        divergence=_dataset_folder(folder / "divergence", main),
        localisation=_dataset_folder(folder / "localisation", main),
        **_test_images(folder, params, main),
        datasets=compared,
        localised=_localised_images(folder, main),
        **of_all,
        dataset=main or "",
        receipts=folder / "receipts",
        dense_images=of_params(folder, params),
        primary=primary_of(params),
    )


def named_by(probes: Path) -> str:
    """The data set of a folder that holds ENCODER/HEAD, by the folder's name; empty if that is only `probes`."""
    name = probes.resolve().name
    return "" if name == "probes" else name


def _dataset_folder(folder: Path, main: str | None) -> Path:
    """Where results on `main` are: in a folder of its name; without one in `folder` itself."""
    return folder / main if main is not None and (folder / main).is_dir() else folder


def _localised_images(folder: Path, main: str | None) -> str | None:
    """The images that were localised, if they are composed ones."""
    files = (folder / COMPOSED / str(main) / "images.csv", folder / COMPOSED / "images.csv")
    return next((str(file) for file in files if file.is_file()), None)


def _other_results(folder: Path, params: dict[str, Any], name: str) -> tuple[Path, ...]:
    """The folder that params.yaml names for the results of other runs, if it exists."""
    named = params.get(name)
    return (folder / str(named),) if named and (folder / str(named)).is_dir() else ()


def _main_dataset(probes: Path, probed: list[str], params: dict[str, Any], dataset: str | None) -> str | None:
    """The data set that most of the report is about; None where probes are not grouped by data set."""
    if dataset is not None and dataset not in probed:
        raise BeyondClsError(
            f"there are no probes of the data set {dataset!r} under {str(probes)!r}, expected one of: "
            f"{', '.join(probed) or 'none yet'}; run `dvc repro probe` for it first (--dataset)"
        )
    if dataset is not None:
        return dataset
    if listed := next((name for name in datasets_of(params) if name in probed), None):
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


def _test_images(folder: Path, params: dict[str, Any], main: str | None) -> dict[str, Any]:
    """The test images of `main`, and how they are opened: `images`, `split`, `form`, `classes` and `pixels` of Folders.

    No images unless `main` is a data set of params.yaml whose images exist locally or are at an address.
    """
    if main is None or main not in datasets_of(params):
        return {"split": "test"}
    values, place = datasets_of(params)[main], images_of(params, main, "test")["data"] if params.get("data") else None
    if place is not None and (":" not in place or file_of(place)):
        place = str(folder / place)
    return {
        "images": None if place is None or is_missing(place) else place,
        **describe_test_images(values, "test", folder),
    }
