"""The report's section on localisation: its tables, what it says, and damaged files."""

import json
from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs
from pipelines.report.content import Section, Table, Text
from pipelines.report.published.table_8 import TABLE_8
from pipelines.report.sections.localisation import section
from store import BeyondClsError


def over_seeds(*values: float) -> dict[str, object]:
    mean = sum(values) / len(values)
    std = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": mean, "std": std, "values": list(values), "thresholds": [0.1] * len(values)}


def entry(source: str, name: str, *v2: float, n_flat: int = 0) -> dict[str, object]:
    by_iou = {iou: over_seeds(*(v + apart for v in v2)) for iou, apart in (("0.3", 10), ("0.5", 0), ("0.7", -10))}
    measures = {"max_box_acc_v2": over_seeds(*v2), "by_iou": by_iou, "max_box_acc": over_seeds(*(v / 2 for v in v2))}
    return {"source": source, "name": name, "seeds": [], "n_flat": [n_flat] * len(v2), **measures}


def write(root: Path, encoder: str, maps: list[dict[str, object]], **others: object) -> Path:
    content = {"encoder": encoder, "data": "d", "n_images": 1000, "n_images_outside": 0, "size": 224, "maps": maps, **others}
    (root / encoder).mkdir(parents=True)
    file = root / encoder / "localisation.json"
    file.write_text(json.dumps(content))
    return file


def maps(cls: float = 20, heads: tuple[float, ...] = (30, 25), abmilp: tuple[float, ...] = (44, 46, 48), centre: float = 34.5):
    single = [entry("attention", f"cls-head-{i}", value) for i, value in enumerate(heads)]
    return [
        entry("attention", "cls", cls),
        *single,
        entry("probe", "abmilp", *abmilp),
        entry("baseline", "centre", centre),
    ]


def built(root: Path) -> Section:
    found = section(Inputs({}, folders=Folders(localisation=root)))
    assert found is not None
    return found


def table(found: Section, name: str) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table) and block.name == name)


def texts(found: Section, kind: str) -> list[str]:
    return [block.text for block in found.blocks if isinstance(block, Text) and block.kind == kind]


def test_nothing_localised_is_no_section(tmp_path):
    assert section(Inputs({}, folders=Folders(localisation=tmp_path / "none"))) is None


def test_a_row_for_each_encoder_and_the_best_in_bold(tmp_path):
    write(tmp_path, "a-random", maps(abmilp=(20, 20, 20)))
    write(tmp_path, "mae", maps())
    found = built(tmp_path)
    assert found.anchor == "localisation"
    summary = table(found, "localisation")
    assert [column.name for column in summary.columns] == [
        "encoder",
        *("cls_max_box_acc_v2", "best_cls_head_max_box_acc_v2", "head_abmilp_max_box_acc_v2", "centre_max_box_acc_v2"),
        *("cls_max_box_acc", "best_cls_head_max_box_acc", "head_abmilp_max_box_acc", "centre_max_box_acc"),
    ]
    mae, random = summary.rows
    assert [cell.text for cell in mae.cells] == [
        "mae",
        "20.0",
        "30.0",
        "46.0 ± 2.0",
        "34.5",
        "10.0",
        "15.0",
        "23.0 ± 1.0",
        "17.2",
    ]
    assert [cell.best for cell in mae.cells] == [False] * 3 + [True] + [False] * 3 + [True, False]
    assert (mae.cells[3].value, mae.cells[3].std) == (46, 2)
    assert [cell.best for cell in random.cells] == [False] * 4 + [True] + [False] * 3 + [True]
    assert (random.cells[0].tag, random.muted) == ("random twin", True)


def test_every_map_at_every_iou(tmp_path):
    write(tmp_path, "mae", maps())
    every = table(built(tmp_path), "localisation-maps")
    assert [column.title for column in every.columns][2:] == ["MaxBoxAccV2", "IoU 0.3", "IoU 0.5", "IoU 0.7", "MaxBoxAcc"]
    shown = [[cell.text for cell in row.cells] for row in every.rows]
    assert shown[0] == ["mae", "[cls], mean", "20.0", "30.0", "20.0", "10.0", "10.0"]
    assert shown[2][1] == "[cls], attention head 1"
    assert shown[3] == ["mae", "AbMILP", "46.0 ± 2.0", "56.0 ± 2.0", "46.0 ± 2.0", "36.0 ± 2.0", "23.0 ± 1.0"]
    assert [row.cells[2].best for row in every.rows] == [False, False, False, True, False]


def test_says_what_the_numbers_show(tmp_path):
    write(tmp_path, "down", maps(cls=50, abmilp=(40, 41)))
    write(tmp_path, "up", maps())
    (said,) = texts(built(tmp_path), "finding")
    assert said == (
        "In points of MaxBoxAccV2: on down, AbMILP's weights stand at −9.5 ± 0.7 against the mean [cls] map and +6.0 ± 0.7 "
        "against the centre baseline, the mean [cls] map at +15.5 against that baseline; on up, AbMILP's weights stand at "
        "+26.0 ± 2.0 against the mean [cls] map and +11.5 ± 2.0 against the centre baseline, the mean [cls] map at −14.5 "
        "against that baseline."
    )


def test_trained_encoders_stand_against_what_an_untrained_one_finds(tmp_path):
    write(tmp_path, "mae", maps())
    write(tmp_path, "weak", maps(abmilp=(21, 21)))
    write(tmp_path, "a-random", maps(heads=(21, 22), abmilp=(20, 20), centre=50))
    write(tmp_path, "random", maps(heads=(33, 40), abmilp=(20, 20)))
    assert texts(built(tmp_path), "finding")[1] == (
        "random was never trained, and its best map ([cls], attention head 1) still finds 40.0: so much stands out in the "
        "images by itself. Against that, the best map of mae (AbMILP) stands at +6.0 ± 2.0, that of weak "
        "([cls], attention head 0) at −10.0."
    )


def test_maps_that_are_missing_leave_dashes(tmp_path):
    write(tmp_path, "mae", maps())
    write(tmp_path, "no-cls", [entry("probe", "ep", 30, 31), entry("baseline", "centre", 34)])
    found = built(tmp_path)
    rows = {row.cells[0].text: [cell.text for cell in row.cells] for row in table(found, "localisation").rows}
    assert rows["no-cls"][1:6] == ["–", "–", "–", "30.5 ± 0.7", "34.0"]
    assert rows["mae"][4] == "–"
    assert "no-cls" not in texts(found, "finding")[0]
    (tmp_path / "mae/localisation.json").unlink()
    assert texts(built(tmp_path), "finding") == [
        "Neither AbMILP nor [cls] attention was localised, so they cannot be compared."
    ]


def test_the_published_table_stands_apart(tmp_path):
    write(tmp_path, "mae", maps())
    published = table(built(tmp_path), "published-table-8")
    assert "arXiv:2412.03215v2, Table 8" in published.published
    assert [[cell.text for cell in row.cells] for row in published.rows] == [
        ["MAE", "ViT-B", "53.3", "59.4"],
        ["BEiT-v2", "ViT-B", "44.3", "65.1"],
    ]
    assert all(row.abmilp > row.cls for row in TABLE_8)


def test_warns_of_what_makes_numbers_odd(tmp_path):
    write(tmp_path, "a", [*maps(), entry("probe", "ap", 3, n_flat=1000)], n_images_outside=7)
    write(tmp_path, "b", maps(), size=64)
    assert texts(built(tmp_path), "notice") == [
        "Not all encoders were localised on the same images at the same size; rows are not comparable.",
        "The crop of a shows nothing of the objects of 7 images: not found.",
        "Maps of a that are constant point nowhere: ap (1,000 images).",
    ]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:50], "is damaged"),
        (lambda text: text.replace('"max_box_acc_v2"', '"other"'), "has no 'max_box_acc_v2'; run `beyondcls localise`"),
        (lambda text: text.replace('"mean": 20.0', '"mean": NaN', 1), "is no finite number"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, said):
    file = write(tmp_path, "mae", maps())
    file.write_text(damage(file.read_text()))
    with pytest.raises(BeyondClsError, match=said) as caught:
        built(tmp_path)
    assert str(file) in str(caught.value)
