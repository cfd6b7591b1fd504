from pathlib import Path

import pytest

from pipelines.report.collect import Inputs
from pipelines.report.content import Text
from pipelines.report.sections.open_questions import NOT_MEASURED, QUESTIONS, section
from tests.pipelines.report.written import attention_of, inputs, studied, tables

BRANCHES = (
    studied("m<i>ae", "abmilp", 50.0),
    studied("m<i>ae", "x4", 56.0, branches=4),
    studied("m<i>ae", "x8", 54.0, branches=8),
    studied("dino", "abmilp", 45.0),
)


def answers(read: Inputs, name: str) -> list[list[str]]:
    """Labels and points of a table of contrasts."""
    table = tables(section(read))[name]
    n = [column.name for column in table.columns].index("points") + 1
    return [[cell.text for cell in row.cells[:n]] for row in table.rows]


def test_nothing_without_any_of_it():
    abmilp = studied("mae", "abmilp", 50.0)
    assert section(inputs("other", abmilp, main=(abmilp,))) is None


def test_every_question_says_how_it_is_measured_and_what_was_not():
    result = section(inputs("branches", *BRANCHES))
    assert result is not None
    commands = [block.items[0] for block in result.blocks if isinstance(block, Text) and block.items]
    assert len(commands) == len(QUESTIONS) == 5
    assert all(command.startswith("beyondcls probe ") for command in commands)
    assert sum(block == Text(NOT_MEASURED) for block in result.blocks) == 4


def test_branches():
    read = inputs("branches", *BRANCHES)
    result = section(read)
    gained = [["m<i>ae", "4 − 1", "+6.0 ± 0.7"], ["m<i>ae", "8 − 1", "+4.0 ± 0.7"]]
    assert answers(read, "branches-gains") == gained  # of DINO there is one number of branches
    assert [row.cells[2].value for row in tables(result)["branches"].rows] == [1, 1, 4, 8]
    assert section(inputs("branches", BRANCHES[0], BRANCHES[3])) is None  # one number each


def test_blocks():
    others = [studied("mae", "three", 47.0, blocks=[3]), studied("mae", "both", 51.5, blocks=[3, 5])]
    heads = [studied("mae", "abmilp", 50.0), *others]
    read = inputs("blocks", *heads)
    gained = {("mae", "three, 3", "−3.0 ± 0.7"), ("mae", "both, 3, 5", "+1.5 ± 0.7")}
    assert set(map(tuple, answers(read, "blocks-gains"))) == gained
    assert {row.cells[2].text for row in tables(section(read))["blocks"].rows} == {"the probed one", "3", "3, 5"}
    assert section(inputs("blocks", *heads[1:])) is None


@pytest.mark.parametrize("inside", [True, False], ids=["AbMILP of the study", "AbMILP trained elsewhere"])
def test_what_has_a_section_of_its_own(inside):
    selected, abmilp = studied("mae", "pca", 48.0, "pca", parameters=0, entropy=1.0), studied("mae", "abmilp", 50.0)
    read = inputs("selection", selected, *([abmilp] if inside else []), main=() if inside else (abmilp,))
    for one, named in ((read, "Choosing patches without training"), (inputs("variants", abmilp), "Variants of AbMILP")):
        result = section(one)
        assert result is not None
        assert any(isinstance(block, Text) and named in block.text for block in result.blocks)
    assert section(inputs("selection", selected)) is None


def test_feature_maps():
    heads = tuple(studied(e, h, top1, h) for e in ("convnext", "mae") for h, top1 in (("abmilp", 52.0), ("average", 50.0)))
    attention = attention_of("convnext", {}), attention_of("mae", {"cls_self": ((0.1, 0.1),)}, Path("map.npy"))
    read = inputs("other", main=heads, attention=attention)
    assert answers(read, "feature-maps-gains") == [["convnext", "+2.0 ± 0.7"]]
    assert section(inputs("other", main=heads[2:], attention=attention)) is None
