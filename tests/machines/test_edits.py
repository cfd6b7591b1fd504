"""The table in docs/pipeline.md of what an edit costs is what DVC does."""

import shutil
from pathlib import Path

import pytest

from pipelines.doctor.dvc_reads import NOWHERE
from tests.machines import project
from tests.machines.edits import BEGIN, EDITS, END, PAGE, Bench, Observed, table
from tests.machines.project import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("edits"))


@pytest.fixture(scope="module")
def observed(bench) -> dict[str, Observed]:
    return bench.all()


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


def test_the_report_is_written_where_a_section_is_empty(bench, tmp_path):
    """Or not there, as in files of earlier versions; and no stage writes its folder."""
    machine = bench.first.copy(tmp_path / "a")
    folders = {"studies": "studies", "divergence": "divergence", "localised": "localisation"}
    project.edit(machine.repo, lambda params: params.update({section: {} for section in folders}))
    project.edit(machine.repo, lambda params: [params.pop(section) for section in ("divergence", "by_block", "tables")])
    project.edit(machine.repo, lambda params: params.update(other_probes=NOWHERE, other_studies=NOWHERE))
    for folder in folders.values():
        shutil.rmtree(machine.repo / folder)
    assert project.without_code(machine.repro("report")) == {"report"}
