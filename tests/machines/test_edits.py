"""The table in docs/pipeline.md of what an edit costs is what DVC does."""

from pathlib import Path

import pytest

from tests.machines.edits import BEGIN, EDITS, END, PAGE, Bench, Observed, table
from tests.machines.project import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def observed(tmp_path_factory) -> dict[str, Observed]:
    return Bench(tmp_path_factory.mktemp("edits")).all()


def test_the_page_says_what_was_observed(observed):
    text = Path(ROOT / PAGE).read_text()
    on_page = text.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]
    assert on_page == table(observed), f"{PAGE} should have, between {BEGIN} and {END}:\n{table(observed)}"


def test_nothing_edited_runs_nothing(observed):
    assert not observed["nothing"].ran
    assert not observed["nothing"].fetched


def test_only_what_changes_features_extracts(observed):
    extracting = {
        edit.name for edit in EDITS if any(stage.startswith(("extract@", "extract-")) for stage in observed[edit.name].ran)
    }
    assert extracting == {edit.name for edit in EDITS if edit.extracts}


def test_code_that_is_not_used_runs_nothing(observed):
    unused = [edit.name for edit in EDITS if edit.unused]
    assert len(unused) == 5
    assert not any(observed[name].ran for name in (*unused, "the code: comments, docstrings, formatting"))
