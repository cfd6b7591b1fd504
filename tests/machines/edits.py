"""What each kind of edit costs, observed: which stages `dvc repro` runs, and what another machine fetches.

    python -m tests.machines.edits    # prints the table of docs/pipeline.md

Everything is run by DVC: one edit after the other is made in a clone with all stages of dvc.yaml, and `dvc repro` says what it
runs. Only what a stage computes is replaced by a digest of its input (stand_in.py), so that an edit takes seconds. That the
real commands behave so is tested by test_two_machines.py and tests/pipelines/test_dvc.py, and by the former that another
machine fetches what the probe depends on. Digests of code are real. Tests leave out edits that are `like` another one.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machines import pipeline, project
from tests.machines.machine import DATA
from tests.machines.objects import Locked, kind_of
from tests.machines.served import DVC, commands_in

PACKAGES = (*DVC, "typer", "rich", "torch", "zarr")  # that commands import, where nothing is computed
PAGE = "docs/pipeline.md"
BEGIN, END = "<!-- edits -->", "<!-- end of edits -->"
# What the table calls what stages do.
CALLED = {
    "extract": "extraction",
    "compose": "composition",
    "extract-composed": "extraction",
    "extract-whole": "extraction",
    "compose-dense": "composition",
    "extract-dense": "extraction",
    "probe-cls": "probes",
    "probe": "probes",
    "probe-own": "probes",
    "study": "studies",
    "extract-blocks": "extraction",
    "study-blocks": "studies",
    "attention": "attention statistics",
    "divergence": "divergences",
    "geometry": "geometry",
    "score": "scores",
    "correspond": "correspondence",
    "retrieve": "retrieval",
    "track": "tracking",
    "depth": "depth",
    "localise": "localisation",
    "segment": "segmentation",
    "detect": "detection",
    "report": "report",
}


KINDS = ("receipts", "zarr.json", "images", "cls", "patch", "registers", "average", "pooled", "statistics", "attention", "norm")


ABMILP = project.probe_stage("abmilp")


@dataclass(frozen=True)
class Edit:
    """One kind of edit.

    Attributes:
        name: in the table.
        change: makes it in a clone.
        probe: the stage that another machine then wants.
        unused: it concerns nothing that a stage depends on. Such edits are made all at once: if together they run
            nothing, neither does any of them alone.
        like: name of an edit that takes the same way through DVC, by another entry or file.
    """

    name: str
    change: Callable[[Path], object]
    probe: str = ABMILP
    unused: bool = False
    like: str = ""


def of_params(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda repo: project.edit(repo, change)


def of_head(group: str, name: str) -> Callable[[Path], object]:
    return of_params(lambda params: params[group][name].update(base_lrs=[1]))


def more_images(repo: Path) -> None:
    (repo / DATA / project.DATASET / "train/001.tar").write_text("more photographs\n")


def another_data_set(repo: Path) -> None:
    shutil.copytree(repo / DATA / project.DATASET, repo / DATA / "another")
    project.edit(repo, lambda p: p["datasets"].append("another"))


def appended(file: str, text: str = "ANOTHER = 1") -> Callable[[Path], object]:
    """A line at the end of a file."""

    def change(repo: Path) -> None:
        with (repo / file).open("a") as written:
            written.write(f"\n{text}\n")

    return change


def another_torch(repo: Path) -> None:
    """Pretend that another version is installed on the machine of this clone."""
    (site,) = (repo.parent / "venv/lib").glob("python*/site-packages")
    for link in site.glob("torch-*.dist-info"):
        link.unlink()  # a link
    (site / "torch-99.0.dist-info").mkdir()
    (site / "torch-99.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n")


def comments(repo: Path) -> None:
    """One in every file of the code."""
    for folder in ("extract", "heads", "pipelines", "probe", "store"):
        for file in (repo / folder).rglob("*.py"):
            appended(file.relative_to(repo).as_posix(), "# in passing")(repo)


def new_entry(leaf: str, content: str, registry: str, opening: str, line: str, import_line: str) -> Callable[[Path], object]:
    """A new file, and its line in a registry.

    Args:
        opening: how the dictionary begins; its entry is put behind it.
    """

    def change(repo: Path) -> None:
        (repo / leaf).write_text(content)
        text = (repo / registry).read_text()
        assert opening in text
        (repo / registry).write_text(text.replace(opening, f"{import_line}\n{opening}{line}"))

    return change


NEW_ENCODERS = new_entry(
    "extract/encoders/another.py",
    "from extract.encoders.masked import ENCODERS\n\nENCODERS = {'another': ENCODERS['mae-b16']}\n",
    "extract/encoders/__init__.py",
    'ENCODERS = Registry[Any]("encoders", _check_factory, timm.is_model) | {\n',
    "    **another.ENCODERS,\n",
    "from extract.encoders import another",
)
NEW_STATISTIC = new_entry(
    "extract/attention/another.py",
    "def another(attention):\n    return attention.z[..., 0]\n",
    "extract/attention/__init__.py",
    'STATISTICS = Registry[Callable[[Attention], Tensor]]("statistics", declared_by, _is_per_block) | {\n',
    '    "another": another,\n',
    "from extract.attention.another import another",
)

PARAMETER, WEIGHTS, TRAINER = "a parameter of `abmilp`", "the weights of an encoder", "the trainer of heads"
EDITS = (
    Edit("nothing", lambda repo: None, unused=True),
    Edit("a parameter of a head that reads [cls]", of_head("cls_heads", "cls"), project.probe_stage("cls")),
    Edit(
        "a parameter of another head under `heads`", of_head("heads", "average"), project.probe_stage("average"), like=PARAMETER
    ),
    Edit(PARAMETER, of_head("heads", "abmilp")),
    Edit(
        "a new head under `heads`",
        of_params(lambda p: p["heads"].update(new={})),
        project.probe_stage("new"),
        like=PARAMETER,
    ),
    Edit("the file of a head of your own", appended("heads/mine.py"), project.probe_stage("mine"), like=PARAMETER),
    Edit("a head of a study", of_params(lambda p: p["studies"]["selection"]["heads"].update(pca={}))),
    Edit("`images` of an entry of `geometry`", of_params(lambda p: p["geometry"]["mae"].update(images=5000))),
    Edit("an entry of `scores`", of_params(lambda p: p["scores"]["cls"].update(test="another"))),
    Edit("the searches of `retrieval`", appended("searches.csv", "query,image")),
    Edit("`probe`: epochs, seeds, …", of_params(lambda p: p["probe"].update(epochs=3)), like=TRAINER),
    Edit(WEIGHTS, of_params(lambda p: p["encoders"][project.MAE].update(weights="0"))),
    Edit(
        "a new encoder under `encoders`",
        of_params(lambda p: p["encoders"].update(new={})),
        project.probe_stage("abmilp", "new"),
        like=WEIGHTS,
    ),
    Edit("`extract`: views, drop_path, blocks, dtype, …", of_params(lambda p: p["extract"].update(views=2)), like=WEIGHTS),
    Edit("images added to a data set, or changed", more_images),
    Edit(
        "a new data set under `datasets`",
        another_data_set,
        ABMILP.replace(project.DATASET, "another"),
        like=WEIGHTS,
    ),
    Edit("the code: comments, docstrings, formatting", comments, unused=True),
    Edit("a new file of encoders in `extract/encoders`", NEW_ENCODERS, unused=True),
    Edit("the file of an encoder that is used", appended("extract/encoders/joint.py")),
    Edit("a new attention statistic that is not asked for", NEW_STATISTIC, unused=True),
    Edit("a reader of data sets that is not used", appended("extract/datasets/coco.py"), unused=True),
    Edit("an aggregator that no head uses", appended("probe/aggregators/cross_attention.py"), unused=True),
    Edit("another version of torch or timm", another_torch, unused=True),
    Edit(TRAINER, appended("probe/train.py")),
    Edit("the trainer of detectors", appended("probe/detection/training.py"), like=TRAINER),
    Edit("the report", appended("pipelines/report/sections/cost.py")),
)


@dataclass(frozen=True)
class Observed:
    """What an edit leads to.

    Attributes:
        ran: stages that `dvc repro` ran where the images are, except those that digest the code.
        known: all stages after the edit, except those.
        fetched: kinds of arrays that another machine fetches to train the head.
    """

    ran: frozenset[str]
    known: frozenset[str]
    fetched: frozenset[str]


class Bench:
    """A finished pipeline, which is edited again and again; `served`: its commands (served.py)."""

    def __init__(self, folder: Path, served: Path):
        self.machine = project.machine_a(folder / "a", project.origin(folder, pipeline.without_computing), served)
        assert self.machine.repro()

    def all(self, edits: Sequence[Edit] = EDITS) -> dict[str, Observed]:
        """What each edit leads to, by name, after those before it."""
        together = [edit for edit in edits if edit.unused]
        unused = self.edited(Edit("what is not used", lambda repo: [edit.change(repo) for edit in together]))
        return {edit.name: unused if edit.unused else self.edited(edit) for edit in edits}

    def edited(self, edit: Edit) -> Observed:
        edit.change(self.machine.repo)
        ran = project.without_code(self.machine.repro())
        locked = Locked.read(self.machine.repo)
        kinds = {kind_of(path) for below in ("features", "receipts") for path in locked.deps(edit.probe, below)}
        known = project.without_code(locked.stages)
        return Observed(frozenset(ran), frozenset(known), frozenset(kinds if edit.probe in ran else ()))


def in_words(ran: frozenset[str], known: frozenset[str]) -> str:
    """`its probes; all divergences; the report`."""
    if not ran or ran == known:
        return "everything" if ran else "nothing"
    by_article: dict[str, list[str]] = {"its": [], "all": [], "the": []}
    for called in dict.fromkeys(CALLED.values()):
        names = tuple(f"{stage}@" for stage, name in CALLED.items() if name == called)
        known_stages = {stage for stage in known if f"{stage}@".startswith(names)}
        if ran_stages := known_stages & ran:
            by_article["the" if len(known_stages) == 1 else "all" if ran_stages == known_stages else "its"].append(called)
    return "; ".join(f"{which} {', '.join(called)}" for which, called in by_article.items() if called)


def table(observed: Mapping[str, Observed]) -> list[str]:
    """Lines of those edits that were observed."""
    lines = ["| Edit | What `dvc repro` runs | What another machine fetches to train a head then |", "|---|---|---|"]
    for name, seen in observed.items():
        arrays = sorted(seen.fetched - {"receipts"}, key=KINDS.index)  # which go with all of them, and are small
        kinds = ", ".join(f"`{kind}`" for kind in arrays) or "nothing"
        lines.append(f"| {name} | {in_words(seen.ran, seen.known)} | {kinds} |")
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as name, commands_in(Path(name, "served"), packages=PACKAGES) as served:
        print(*table(Bench(Path(name), served).all()), sep="\n")


if __name__ == "__main__":
    main()
