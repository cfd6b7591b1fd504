"""Results for notebooks: what tables/results.csv holds of trained heads, as values; and all numbers as one long table."""

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.report.collect import Folders, collect_probes
from pipelines.report.results import TrainedHead, results, table
from pipelines.report.rows import long, results_in
from store import BeyondClsError
from store.shown import html_rows

if TYPE_CHECKING:
    import pandas
    import pyarrow

SHOWN = ("dataset", "study", "encoder", "head", "metric", "mean", "std", "n_seeds")  # columns of the table in a notebook
Folder = str | os.PathLike[str]


def read_results(
    probes: Folder | None = None,
    *,
    datasets: Iterable[Folder] = (),
    studies: Iterable[Folder] = (),
    dataset: str = "",
    receipts: Folder | None = None,
) -> "Results":
    """Every head that was trained, as tables/results.csv of `beyondcls report` lists them.

        read_results("probes/cifar10").to_pandas().sort_values("mean")

    Args:
        probes: PROBES/ENCODER/HEAD, heads of one data set.
        datasets: folders of DATA/ENCODER/HEAD, such as "probes".
        studies: folders of STUDY/ENCODER/HEAD, such as "studies/cifar10".
        dataset: the name of the data set of `probes`.
        receipts: of feature sets, to tell apart copies with one key.

    Raises:
        BeyondClsError: no results in these folders, or a file that is damaged.
    """
    folders = Folders(
        probes=_path(probes),
        datasets=tuple(map(Path, datasets)),
        studies=tuple(map(Path, studies)),
        dataset=dataset,
        receipts=_path(receipts),
    )
    rows = results(collect_probes(folders))
    if not rows:
        named = [str(folder) for folder in (probes, *folders.datasets, *folders.studies) if folder is not None]
        raise BeyondClsError(
            f"there are no results in {', '.join(named) or 'no folder'}; give PROBES/ENCODER/HEAD, as `beyondcls probe` writes "
            "them, by probes; or folders with one more folder between, by datasets or studies"
        )
    return Results(rows)


class Results(list[TrainedHead]):
    """Results of heads, a row each, in the order of the report; in a notebook shown as a table."""

    def __repr__(self) -> str:
        return f"Results({len(self)} head{'s' * (len(self) != 1)})"

    def _repr_html_(self) -> str:
        columns = [self.columns[name] for name in SHOWN]
        shown = (
            [f"{v:.2f}" if isinstance(v, float) else "" if v is None else v for v in row] for row in zip(*columns, strict=True)
        )
        return html_rows(repr(self), SHOWN, shown)

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Values by column: numbers, truths, texts; JSON for options, grids and what else has parts; None for nothing."""
        return {name: _unify_types(values) for name, values in table(self).items()}

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each head, a column for each of `columns`.

        Raises:
            BeyondClsError: pandas is not installed.
        """
        return _import_package("pandas", "to_pandas").DataFrame(self.columns)

    def to_arrow(self) -> "pyarrow.Table":
        """A row for each head, a column for each of `columns`.

        Raises:
            BeyondClsError: pyarrow is not installed.
        """
        return _import_package("pyarrow", "to_arrow").table(self.columns)


def read_rows(folder: Folder = ".") -> "pandas.DataFrame":
    """Every number that was measured, with what it was measured of: one long table, with a row for each seed.

        read_rows().query("metric == 'top1'").pivot_table("value", "encoder", "head")

    Columns: kind (the folder of a project: probes, studies, scores, segmentation, depth, detection, localisation, blocks,
    geometry, similarity, norms, few_shot, correspondence, retrieval, tracking), dataset, study, split (test, or training),
    encoder, family, block, head (of a dense task its protocol, box or mask, or map; else the vector, or both that are
    compared), options and recipe (JSON), seed, metric, value (percent; entropies and losses in nats, depths in metres, angles
    in degrees, what geometry and norms measure as docs/geometry.md says), n (images) and folder.

    Args:
        folder: of a project, of probes, or of one head.

    Raises:
        BeyondClsError: there are no results, a file is damaged, or pandas is not installed.
    """
    table = _import_package("pandas", "read_rows").DataFrame(long(results_in(Path(folder)).values()))
    return table.astype(dict.fromkeys(("block", "seed", "n"), "Int64"))


def _import_package(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise BeyondClsError(
            f"{method} needs {error.name}, which is not installed here; pip install 'beyondcls[notebook]'"
        ) from error


def _path(folder: Folder | None) -> Path | None:
    return None if folder is None else Path(folder)


def _unify_types(values: list[Any]) -> list[Any]:
    """The values as they are if all are numbers, truths or texts; else all as texts."""
    types = {type(value) for value in values if value is not None}
    return values if len(types) < 2 or types == {int, float} else [None if value is None else str(value) for value in values]
