"""Files that are damaged or lack something are named, with what is wrong and the stage that writes them."""

from pathlib import Path

import pytest

from pipelines.report.attention_heads import head_figures
from pipelines.report.collect import Examples, collect
from pipelines.report.divergences import divergences
from pipelines.report.sections import localisation
from probe.result_files import DESCRIPTION
from store import BeyondClsError
from tests.pipelines.report.everything import everything, folders
from tests.pipelines.report.written import describe

TOP1 = '{"encoder": "a", "family": "", "options": {}, "top1": %s}'
PROBE, ATTENTION, DIVERGENCE, BOXES = "probes/mae/cls", "attention/mae", "divergence/mae", "localisation/mae"
PAIRS = "from,to,mean,std,n_images,n_infinite\na,b,%s\n"
HEADS = "statistic,block,head,mean\n%s"


CASES = [
    (f"{PROBE}/description.json", "{", "is damaged", "probe"),
    (f"{PROBE}/description.json", "[]", "is damaged", "probe"),
    (f"{PROBE}/description.json", '{"encoder": "a", "family": "", "options": {}}', "has no 'top1'", "probe"),
    (f"{PROBE}/description.json", TOP1 % '{"values": [], "mean": NaN, "std": 0}', "nan is not a finite number", "probe"),
    (f"{PROBE}/description.json", TOP1 % '{"values": ["x"], "mean": 1, "std": 0}', "is damaged", "probe"),
    (f"{PROBE}/description.json", ('"family": "mask', '"family": 1, "x": "mask'), "expected a text and", "probe"),
    (f"{PROBE}/description.json", ('"random_seed": null', '"random_seed": "0"'), "random_seed '0', expected a text", "probe"),
    (f"{PROBE}/description.json", ('"random_seed": null', '"random_seed": true'), "random_seed True, expected a text", "probe"),
    (f"{PROBE}/description.json", ('"family"', '"trained"'), "has no 'family'", "probe"),
    (f"{ATTENTION}/summary.json", ('"statistics"', '"declared"'), "has no 'statistics'", "attention"),
    (f"{PROBE}/timing.json", "{", "is damaged", "probe"),
    (f"{PROBE}/timing.json", '{"device": "cpu", "threads": 1}', "has no 'metrics'", "probe"),
    (f"{ATTENTION}/statistics.csv", "statistic,block,mean,std\ncls_self,0,much,0\n", "is damaged .*much", "attention"),
    (f"{ATTENTION}/heads.csv", HEADS % "x,0,0,1\nx,1,1,1\n", "x has 2 numbers, not all finite, or not one", "attention"),
    (f"{ATTENTION}/heads.csv", HEADS % "x,0,0,nan\n", "x has 1 numbers, not all finite", "attention"),
    (f"{ATTENTION}/heads.csv", "statistic,block,mean\nx,0,1\n", "has no 'head'", "attention"),
    (f"{DIVERGENCE}/divergence.csv", "from,to\na,b\n", "has no 'mean'", "divergence"),
    (f"{DIVERGENCE}/divergence.csv", PAIRS % "nan,0,1,0", "is damaged .*'nan' is not a finite number", "divergence"),
    (f"{DIVERGENCE}/divergence.csv", PAIRS % "1,0,x,0", "is damaged", "divergence"),
    (f"{BOXES}/description.json", "{", "is damaged", "localise"),
    (f"{BOXES}/description.json", ('"max_box_acc_v2"', '"other"'), "has no 'max_box_acc_v2'", "localise"),
    (f"{BOXES}/description.json", ('"mean": 20.0', '"mean": NaN'), "is not a finite number", "localise"),
    (f"{BOXES}/boxes.json", ('"flips": [', '"flips": [false, '), "8 entries, expected one for each of 7 images", "localise"),
    (f"{BOXES}/boxes.json", ('"crops": [[0, 0, 40', '"crops": [[0, 40'), "not enough values to unpack", "localise"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    everything(folder)
    return folder


@pytest.mark.parametrize(("name", "damage", "message", "stage"), CASES)
def test_it_is_named_with_the_remedy(
    root: Path, request: pytest.FixtureRequest, name: str, damage: str | tuple[str, str], message: str, stage: str
) -> None:
    file = root / name
    before = file.read_text() if file.exists() else None
    request.addfinalizer(lambda: file.unlink() if before is None else file.write_text(before))
    if isinstance(damage, tuple):
        assert damage[0] in (before or "")
    text = damage if isinstance(damage, str) else (before or "").replace(*damage, 1)
    metrics = next(file.parent.glob("[ml]*.json"), file)  # metrics.json, localisation.json
    describe(metrics, text) if file.name == DESCRIPTION else file.write_text(text)
    with pytest.raises(BeyondClsError, match=f"{message}.*`beyondcls {stage}`") as caught:
        read_all(root)
    shown = file.with_name({"timing.json": "metrics.json", "statistics.csv": "summary.json"}.get(file.name, file.name))
    shown = metrics if file.name == DESCRIPTION else shown
    assert str(caught.value).startswith(f"{shown} or a table beside it ")


def read_all(root: Path) -> None:
    """What the page reads when inputs are collected, and when sections are built."""
    inputs = collect(folders(root), Examples(0))
    divergences(inputs)
    localisation.section(inputs)
    head_figures(inputs)
