"""The report's section on localisation: its tables, what it says, and damaged files."""

from pathlib import Path

from pipelines.report.collect import Examples, Folders, Inputs
from pipelines.report.content import Section, Text
from pipelines.report.sections.localisation import CONSTANT, NOT_ALIKE, OTHER_FRAME, OUTSIDE, WEIGHT, section
from tests.pipelines.report.everything import over_seeds
from tests.pipelines.report.everything import score_map as entry
from tests.pipelines.report.everything import score_maps as maps
from tests.pipelines.report.everything import write_localisation as write
from tests.pipelines.report.written import shown as cells
from tests.pipelines.report.written import tables, words

CROP = {"words": "central crop, in 224 x 224 pixels; 12.3 % of the boxes' area lies outside of it", "official": False}


MAPS = ("cls", "best_cls_head", "head_abmilp", "centre")


def built(root: Path) -> Section:
    result = section(Inputs({}, folders=Folders(localisation=root), examples=Examples(0)))
    assert result is not None
    return result


def test_a_row_for_each_encoder_and_the_best_in_bold(tmp_path):
    write(tmp_path, "a-twin", maps(abmilp=(20, 20, 20)))
    write(tmp_path, "mae", maps())
    result = built(tmp_path)
    assert result.anchor == "localisation"
    summary = tables(result)["localisation"]
    assert [column.name for column in summary.columns] == ["encoder"] + [
        f"{name}_{measure}" for measure in ("max_box_acc_v2", "max_box_acc") for name in MAPS
    ]
    mae, random = summary.rows
    numbers = ["20.0", "30.0", "46.0 ± 2.0", "34.5", "10.0", "15.0", "23.0 ± 1.0", "17.2"]
    assert cells(summary)[0] == ["mae", *numbers]
    assert [cell.best for cell in mae.cells] == [False] * 3 + [True] + [False] * 3 + [True, False]
    assert (mae.cells[3].value, mae.cells[3].std) == (46, 2)
    assert [cell.best for cell in random.cells] == [False] * 4 + [True] + [False] * 3 + [True]
    assert (random.cells[0].tag, random.muted) == ("random twin", True)


def test_every_map_at_every_iou(tmp_path):
    write(tmp_path, "mae", maps())
    every = tables(built(tmp_path))["localisation-maps"]
    assert [column.title for column in every.columns][2:] == ["MaxBoxAccV2", "IoU 0.3", "IoU 0.5", "IoU 0.7", "MaxBoxAcc"]
    shown = cells(every)
    assert shown[0] == ["mae", "[cls], mean", "20.0", "30.0", "20.0", "10.0", "10.0"]
    assert shown[2][1] == "[cls], attention head 1"
    assert shown[3] == ["mae", "AbMILP", "46.0 ± 2.0", "56.0 ± 2.0", "46.0 ± 2.0", "36.0 ± 2.0", "23.0 ± 1.0"]
    assert [row.cells[2].best for row in every.rows] == [False, False, False, True, False]


def test_the_weight_on_objects_is_beside_their_area(tmp_path):
    """Where no view shows any there are dashes, and no columns where all lack it."""
    weighed = [
        {**one, "on_objects": {"share": over_seeds(*shares), "chance": 21.5, "gain": over_seeds(1.0)}}
        for one, shares in zip(maps(), ([30], [40], [35], [50, 52, 54], [25]), strict=True)
    ]
    write(tmp_path, "mae", weighed)
    write(tmp_path, "unseen", maps())
    by_name = tables(built(tmp_path))
    summary, every = by_name["localisation"], by_name["localisation-maps"]
    assert [column.name for column in summary.columns][-5:] == [*(f"{name}_on_objects" for name in MAPS), "area_of_objects"]
    assert summary.columns[-3].title == "AbMILP, weight on the object"
    assert [row[-5:] for row in cells(summary)] == [["30.0", "40.0", "52.0 ± 2.0", "25.0", "21.5"], ["–"] * 5]
    assert [cell.best for cell in summary.rows[0].cells[-5:]] == [False, False, True, False, False]
    assert [column.title for column in every.columns][-2:] == ["weight on the object", "area of the object"]
    assert [row[-2:] for row in cells(every)][2:6] == [["35.0", "21.5"], ["52.0 ± 2.0", "21.5"], ["25.0", "21.5"], ["–", "–"]]
    assert summary.note.endswith(WEIGHT)
    (tmp_path / "mae/localisation.json").unlink()
    assert "area_of_objects" not in [column.name for column in tables(built(tmp_path))["localisation"].columns]


def test_maps_against_others(tmp_path):
    write(tmp_path, "down", maps(cls=50, abmilp=(40, 41)))
    write(tmp_path, "up", maps())
    table = tables(built(tmp_path))["localisation-differences"]
    assert cells(table) == [
        ["down", "−9.5 ± 0.7", "+6.0 ± 0.7", "+15.5", "[cls], mean", "50.0"],
        ["up", "+26.0 ± 2.0", "+11.5 ± 2.0", "−14.5", "AbMILP", "46.0 ± 2.0"],
    ]


def test_differences_have_intervals_where_images_were_left_out(tmp_path):
    """Groups of images move all maps of all encoders by as much, but the baseline."""
    for encoder in ("mae", "a-twin"):
        moved = maps(cls=20 if encoder == "mae" else 10)
        for one, more in zip(moved, (1, 1, 1, 1, 0), strict=True):
            v2 = one["max_box_acc_v2"]
            v2["without"] = [v2["mean"] + more * d for d in (-0.2, 0.2, 0.1, -0.1)]
        write(tmp_path, encoder, moved)
    table = tables(built(tmp_path))["localisation-differences"]
    intervals = {c.name.removesuffix("_interval"): i for i, c in enumerate(table.columns) if c.name.endswith("_interval")}
    assert list(intervals) == ["abmilp_against_cls", "abmilp_against_centre", "cls_against_centre", "best_map_against_twin"]
    of_mae = cells(table)[0]
    assert of_mae[intervals["cls_against_centre"]] == "−15.4 to −13.6", "of images alone: t with 3 degrees of freedom"
    of_seeds = of_mae[intervals["abmilp_against_cls"]]
    assert of_seeds == "21.0 to 31.0", "of three seeds alone, as images move both: 26 ± 4.303 · 2 / √3"
    assert cells(table)[1][intervals["best_map_against_twin"]] == "–"


def test_trained_encoders_stand_against_what_an_untrained_one_finds(tmp_path):
    write(tmp_path, "mae", maps())
    write(tmp_path, "weak", maps(abmilp=(21, 21)))
    write(tmp_path, "a-twin", maps(heads=(21, 22), abmilp=(20, 20), centre=50))
    write(tmp_path, "random", maps(heads=(33, 40), abmilp=(20, 20)))
    table = tables(built(tmp_path))["localisation-differences"]
    assert table.columns[-1].title == "− best of random"
    assert [row[-1] for row in cells(table)] == ["+6.0 ± 2.0", "−10.0", "–", "–"]


def notices(result: Section) -> dict[str, tuple[str, ...]]:
    return {text.text: text.items for text in result.blocks if isinstance(text, Text) and text.kind == "notice"}


def test_warns_of_what_makes_numbers_odd(tmp_path):
    write(tmp_path, "a", [*maps(), entry("probe", "ap", 3, n_flat=1000)], n_images_outside=7)
    write(tmp_path, "b", maps(), size=64)
    expected = {NOT_ALIKE: (), OUTSIDE: ("a: 7 images",), CONSTANT: ("a, ap: 1,000 images",)}
    assert notices(built(tmp_path)) == expected


def test_the_frame_is_below_the_table_and_noticed_where_published_numbers_are_not_of_it(tmp_path):
    write(tmp_path, "mae", maps())
    write(tmp_path, "moco", maps(), frame=CROP)
    result = built(tmp_path)
    whole = "whole image, squashed to 224 x 224 pixels; 1,000 images: mae"
    assert words(result, "note")[1:] == [whole, f"{CROP['words']}; 1,000 images: moco"]
    assert notices(result) == {OTHER_FRAME: ("moco",)}
