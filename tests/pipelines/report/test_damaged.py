"""Files that are damaged or lack something are named, with what is wrong and the stage that writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.report.collect import Examples, Inputs, collect
from pipelines.report.sections import detection, few_shot, geometry, localisation, segmentation
from pipelines.report.sections.by_block import by_block
from pipelines.report.sections.selection import divergences
from pipelines.report.sections.statistics import head_figures
from probe.result_files import DESCRIPTION
from store import BeyondClsError
from tests.pipelines.report.everything import EVIL, everything, folders
from tests.pipelines.report.written import describe

TOP1 = '{"encoder": "a", "family": "", "options": {}, "top1": %s}'
PROBE, ATTENTION, DIVERGENCE, BOXES = "probes/mae/cls", "attention/mae", "divergence/mae", "localisation/mae"
SEGMENTED, DETECTED = "segmentation/one/mae", "detection/one/mae"
FIRST = f"segmentation/one/{EVIL}"  # whose true maps are shown
PAIRS = "from,to,mean,std,n_images,n_infinite\na,b,%s\n"
HEADS = "statistic,block,head,mean\n%s"


CASES = [
    (f"{PROBE}/description.json", "{", "is damaged", "probe"),
    (f"{PROBE}/description.json", '{"encoder": "a", "family": "", "options": {}}', "has no 'top1'", "probe"),
    (f"{PROBE}/description.json", TOP1 % '{"values": [], "mean": NaN, "std": 0}', "nan is not a finite number", "probe"),
    (f"{PROBE}/description.json", TOP1 % '{"values": [null], "mean": 1, "std": 0}', "is damaged", "probe"),
    (f"{PROBE}/description.json", ('"family": "mask', '"family": 1, "x": "mask'), "expected a text and", "probe"),
    (f"{PROBE}/description.json", ('"random_seed": null', '"random_seed": "0"'), "random_seed '0', expected a text", "probe"),
    (f"{PROBE}/description.json", ('"family"', '"trained"'), "has no 'family'", "probe"),
    (f"{ATTENTION}/summary.json", ('"statistics"', '"declared"'), "has no 'statistics'", "attention"),
    (f"{PROBE}/timing.json", '{"device": "cpu", "threads": 1}', "has no 'metrics'", "probe"),
    (f"{ATTENTION}/statistics.csv", "statistic,block,mean,std\ncls_self,0,much,0\n", "is damaged .*much", "attention"),
    (f"{ATTENTION}/heads.csv", HEADS % "x,0,0,1\nx,1,1,1\n", "x has 2 numbers, not all finite, or not one", "attention"),
    (f"{ATTENTION}/heads.csv", HEADS % "x,0,0,nan\n", "x has 1 numbers, not all finite", "attention"),
    (f"{DIVERGENCE}/divergence.csv", PAIRS % "nan,0,1,0", "is damaged .*'nan' is not a finite number", "divergence"),
    (f"{BOXES}/description.json", ('"max_box_acc_v2"', '"other"'), "has no 'max_box_acc_v2'", "localise"),
    (f"{BOXES}/description.json", ('"mean": 20.0', '"mean": null'), "max_box_acc_v2 is no number over seeds", "localise"),
    (f"{BOXES}/boxes.json", ('"flips": [', '"flips": [false, '), "8 entries, expected one for each of 7 images", "localise"),
    (f"{BOXES}/boxes.json", ('"crops": [[0, 0, 40', '"crops": [[0, 40'), "not enough values to unpack", "localise"),
    (f"{SEGMENTED}/description.json", '{"protocols": {}, "notes": []}', "has no 'data'", "segment"),
    (f"{SEGMENTED}/description.json", ('"protocols": {', '"protocols": {}, "x": {'), "no protocol has a measure", "segment"),
    (f"{SEGMENTED}/description.json", ('"miou_grid"', '"miou_../x"'), "miou_../x is at no resolution", "segment"),
    (f"{SEGMENTED}/description.json", ('"n_test": 7', '"n_test": "x"'), "is damaged", "segment"),
    (f"{SEGMENTED}/per_class.csv", "class\nroad\n", "has no 'n_training_patches'", "segment"),
    (f"{SEGMENTED}/maps/images.json", ('"unseen"', '"other"'), "has no 'unseen'", "segment --save-maps 6"),
    (f"{FIRST}/maps/truth/000.png", "no picture", "is damaged", "segment"),
    (f"{FIRST}/maps/images.json", ('"sky", ', ""), "class 2, expected one of 2", "segment"),
    ("blocks/mae/description.json", ('"mean": 40.0', '"mean": null'), "top1 of block 0 is no number", "blocks"),
    ("similarity/all/description.json", ('"vector"', '"kind"'), "has no 'vector'", "similarity"),
    ("norms/mae/description.json", ('"share"', '"part"'), "has no 'share'", "norms"),
    ("few_shot/mae/description.json", ('"vector"', '"part"'), "has no 'vector'", "few-shot"),
    (f"correspondence/{EVIL}/mae/description.json", ('"chance"', '"part"'), "has no 'chance'", "correspond"),
    (f"retrieval/{EVIL}/mae/description.json", ('"protocol"', '"part"'), "has no 'protocol'", "retrieve"),
    ("depth/one depth/mae/description.json", ('"missing"', '"part"'), "has no 'missing'", "depth"),
    (f"{DETECTED}/description.json", ('"ap50"', '"ap40"'), "has no 'ap50'", "detect"),
    (f"{DETECTED}/examples.json", ('"label": 2', '"label": 3'), "class 3, expected one of 3", "detect"),
    (f"{DETECTED}/examples.json", ('"size": [8, 8]', '"size": [8, 9]'), "they are of 64 pixels, expected 72", "detect"),
    (f"{DETECTED}/examples.json", ('"box": [2, 2, 6, 6]', '"box": [2, 2, 6]'), "not enough values to unpack", "detect"),
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
    before = file.read_bytes() if file.exists() else None
    metrics = next(file.parent.glob("[ml]*.json"), file)  # metrics.json, localisation.json
    digest = metrics.read_bytes() if metrics.exists() else b""
    request.addfinalizer(lambda: file.unlink() if before is None else (metrics.write_bytes(digest), file.write_bytes(before)))
    if isinstance(damage, tuple):
        assert damage[0] in (before or b"").decode()
    text = damage if isinstance(damage, str) else (before or b"").decode().replace(*damage, 1)
    describe(metrics, text) if file.name == DESCRIPTION else file.write_text(text)
    with pytest.raises(BeyondClsError, match=f"{message}.*`beyondcls {stage}`") as caught:
        READ[stage.split()[0]](root)
    shown = file.with_name({"timing.json": "metrics.json", "statistics.csv": "summary.json"}.get(file.name, file.name))
    shown = metrics if file.name == DESCRIPTION else shown
    shown = file.parent / "linear/000.png" if "class 2" in message else shown
    assert str(caught.value).startswith(f"{shown} or a table next to it ")


def inputs(root: Path, n: int = 0) -> Inputs:
    return collect(folders(root), Examples(n))


# What the page reads when inputs are collected, and when sections are built.
READ: dict[str, Callable[[Path], object]] = {
    "probe": inputs,
    "attention": lambda root: head_figures(inputs(root)),
    "divergence": lambda root: divergences(inputs(root)),
    "localise": lambda root: localisation.section(inputs(root, 1)),
    "blocks": lambda root: by_block(inputs(root)),
    "similarity": lambda root: geometry.section(inputs(root)),
    "norms": lambda root: geometry.section(inputs(root)),
    "few-shot": lambda root: few_shot.section(inputs(root)),
    "retrieve": lambda root: few_shot.section(inputs(root)),
    "correspond": lambda root: few_shot.section(inputs(root)),
    "segment": lambda root: segmentation.section(inputs(root, 1)),
    "depth": inputs,
    "detect": lambda root: detection.section(inputs(root, 1)),
}
