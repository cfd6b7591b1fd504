from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect, subset
from store import BeyondClsError
from tests.pipelines.report.written import write_all, write_attention


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    paths = write_all(tmp_path)
    write_attention(paths["attention"], "seen", "d")
    inputs = collect(Folders(paths["probes"], paths["attention"]))
    groups = {"one": inputs.probes, "other": {("random", "cls"): inputs.probes["random", "cls"]}}
    return replace(inputs, studies=groups, datasets=groups)


def test_keeps_what_is_of_these_encoders(inputs: Inputs):
    mae = subset(inputs, ["mae"])
    assert mae.encoders == ["mae"]
    assert set(mae.probes) == {("mae", head) for head in ("cls", "average", "abmilp")}
    assert set(mae.studies) == set(mae.datasets) == {"one"}
    assert subset(inputs, ["random", "mae"]).encoders == ["mae", "random"]
    assert mae.folders == inputs.folders


def test_unknown_encoders_are_named_with_the_remedy(inputs: Inputs):
    with pytest.raises(BeyondClsError, match=r"unknown encoder 'mea'; did you mean 'mae'\? known: mae, seen, random"):
        subset(inputs, ["mae", "mea"])


def test_encoders_without_probes_are_no_report(inputs: Inputs):
    with pytest.raises(BeyondClsError, match="no head was probed on seen, expected one at least; run `beyondcls probe`"):
        subset(inputs, ["seen"])
