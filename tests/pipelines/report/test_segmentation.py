"""The report's section on segmentation: its tables, what it says, and its pictures."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.report.collect import Examples, Folders, Inputs, collect
from pipelines.report.content import Section
from pipelines.report.estimate import difference, of_measure
from pipelines.report.measured import Measure
from pipelines.report.sections.segmentation import section
from pipelines.report.tables import NOTHING, differences
from store import BeyondClsError
from tests.pipelines.report.everything import on_foreground, protocol, write_segmentation
from tests.pipelines.report.written import best, shown, tables, words


def collected(root: Path, **others: object) -> Inputs:
    return collect(Folders(segmentation=root, **others), Examples(2))


def built(root: Path, **others: object) -> Section:
    result = section(collected(root, **others))
    assert result is not None
    return result


def test_a_table_for_each_resolution_with_baselines_and_the_twin(tmp_path):
    write_segmentation(tmp_path / "streets", "mae", at=("original", "64"))
    write_segmentation(tmp_path / "streets", "random", {"linear": protocol(20.0, 20.5, at=("original",))})
    by_name = tables(built(tmp_path))
    others = ("settings", "classes")
    resolutions = [name.removeprefix("segmentation-streets-") for name in by_name]
    assert [name for name in resolutions if name not in others] == ["original", "64", "grid"]
    original = by_name["segmentation-streets-original"]
    measured = [f"{name}_miou_original" for name in ("knn", "linear", "most_frequent_class", "drawn_by_prior")]
    against = [f"{name}_against_twin" for name in measured[:2]]
    assert [column.name for column in original.columns] == ["encoder", *measured, "twin", *against]
    assert [column.title for column in original.columns][1:3] == ["k-NN, mIoU (original)", "linear, mIoU (original)"]
    assert shown(original) == [
        ["mae", "30.0", "40.0 ± 1.4", "2.5", "5.0", "random", "–", "+23.8 ± 1.5"],
        ["random", "–", "16.2 ± 0.4", "2.5", "5.0", "–", "–", "–"],
    ]
    assert (original.rows[1].cells[0].tag, original.rows[1].muted) == ("random twin", True)
    assert best(original, slice(1, 3)) == [[True, True], [False, False]]
    assert shown(by_name["segmentation-streets-grid"])[0][1] == "34.0"
    assert shown(by_name["segmentation-streets-64"])[1] == ["random", *["–"] * 7]


def test_the_twin_has_patches_of_the_same_grid_and_block(tmp_path):
    write_segmentation(tmp_path / "streets", "mae")
    write_segmentation(tmp_path / "streets", "a-twin", {"knn": protocol(30.0)}, block=5)
    write_segmentation(tmp_path / "streets", "b-twin", {"knn": protocol(20.0)})
    of_mae = shown(tables(built(tmp_path))["segmentation-streets-original"])[0]
    assert of_mae[-3:-1] == ["b-twin", "+14.0"]


def test_a_difference_has_a_spread_where_both_have_several_seeds_or_one_draws_nothing():
    several, one = Measure(40.0, 3.0, (37.0, 43.0)), Measure(30.0, 0.0, (30.0,))
    first, second = of_measure(several, "x", "a"), of_measure(replace(several, mean=38.0, std=4.0), "x", "b")
    assert [cell.std for cell in cells(difference(first, second))] == [5.0, None]
    single, fixed = of_measure(one, "x", "c"), of_measure(one, "x", None)
    assert [(cell.text, cell.std) for cell in cells(difference(first, single))] == [("+10.0", None), ("–", None)]
    assert cells(difference(first, fixed))[0].text == "+10.0 ± 3.0"
    assert cells(difference(fixed, first))[0].text == "−10.0 ± 3.0"
    assert cells(difference(first, None)) == (NOTHING, NOTHING)


def cells(difference):
    return tuple(column.cell(None) for column in differences("x", "X", lambda _: difference))


@pytest.mark.parametrize(("seeds", "sign"), [("seeds", None), (None, 1)])
def test_it_has_an_interval_where_images_were_left_out(seeds: str | None, sign: int | None):
    """Each of four groups of images moves the first by what it moves the second, and 0.1 more or less."""
    one, other = (
        of_measure(Measure(mean, 0.0, (mean,), tuple(mean + d for d in moves)), "x", seeds)
        for mean, moves in ((40.0, (-1.1, -2.9, 3.1, 0.9)), (38.0, (-1.0, -3.0, 3.0, 1.0)))
    )
    apart = difference(one, other)
    assert [cell.text for cell in cells(apart)] == ["+2.0", "1.4 to 2.6"]
    assert apart is not None
    assert apart.sign == sign, "a single seed shows nothing; what draws nothing has no other"


def test_data_sets_are_apart(tmp_path):
    write_segmentation(tmp_path / "streets", "mae")
    write_segmentation(tmp_path / "rooms", "random")
    found = tables(built(tmp_path))
    assert [len(table.rows) for name, table in found.items() if name.endswith("original")] == [1, 1]
    assert not any("twin" in column.name for table in found.values() for column in table.columns), "of other images"


def test_by_class_and_how_settings_were_chosen(tmp_path):
    write_segmentation(tmp_path / "streets", "mae")
    result = tables(built(tmp_path))
    assert shown(result["segmentation-streets-classes"]) == [
        *(["road", "1.0", "0", "0"], ["sky", "11.0", "100", "10"], ["car", "–", "200", "20"]),
        *(["road", "3.0", "0", "0"], ["sky", "13.0", "100", "10"], ["car", "–", "200", "20"]),
    ]
    assert [row.group for row in result["segmentation-streets-classes"].rows] == ["k-NN"] * 3 + ["linear"] * 3
    settings = ["mae", "linear", "k 3", "hold-out", "0, 1", "whole image", "2", "3", "40.0", "1.5", "7"]
    assert shown(result["segmentation-streets-settings"])[1] == settings
    assert all(result[f"segmentation-streets-{name}"].folded for name in ("classes", "settings", "grid"))


def test_weight_on_the_foreground(tmp_path):
    """Groups of images move the first two maps alike, and seeds of one by 1.4; of the third no groups were left out."""
    maps = [on_foreground("attention", "cls", 30.0), on_foreground("probe", "abmilp", 40.0, 42.0)]
    for of_map in maps:
        for name in ("share", "gain"):
            of_map[name]["without"] = [of_map[name]["mean"] * factor for factor in (0.99, 1.01, 1.02, 0.98)]
    maps.append(on_foreground("attention", "cls-head-2", 50.0))
    write_segmentation(tmp_path / "streets", "mae", foreground={"classes": ["car"], "maps": maps})
    write_segmentation(tmp_path / "streets", "dino")
    by_name = tables(built(tmp_path))
    (row,) = shown(by_name["segmentation-streets-foreground"])
    gain, against = (
        ["1.50", "2.05 ± 0.07", "1.82 to 2.28"],
        ["+21.0 ± 1.4", "+11.0 ± 1.4", "1.8 to 20.2"],
    )  # equal weights, [cls]
    assert row == ["mae", "20.0", "30.0", "41.0 ± 1.4", *gain, *against, "car", "5"]
    every = shown(by_name["segmentation-streets-foreground-maps"])
    assert every[2] == ["mae", "[cls], attention head 2", "50.0", "20.0", "2.50"]


def test_warns_of_what_makes_numbers_odd(tmp_path):
    write_segmentation(tmp_path / "streets", "mae", notes=["of both"])
    noted = {"knn": protocol(30.0, notes=["the largest k"])}
    write_segmentation(tmp_path / "streets", "dino", noted, data="others", notes=["of both"])
    not_alike, _, *notes = words(built(tmp_path), "notice")[:4]
    assert "not comparable" in not_alike
    assert notes == ["of both", "dino (k-NN): the largest k"]


def test_results_in_the_wrong_place_are_named(tmp_path):
    write_segmentation(tmp_path, "mae")
    with pytest.raises(BeyondClsError, match=r"mae/metrics.json is not where .*DATASET/ENCODER/metrics.json; move its folder"):
        collected(tmp_path)
