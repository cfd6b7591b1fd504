"""The table in docs/pipeline.md of what an edit costs is what DVC does."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import project
from tests.machines.edits import BEGIN, EDITS, END, PACKAGES, PAGE, Bench, Observed, table
from tests.machines.project import ROOT
from tests.machines.served import commands_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("edits")
    with commands_in(folder / "served", packages=PACKAGES) as served:
        yield Bench(folder, served)


@pytest.fixture(scope="module")
def observed(bench) -> dict[str, Observed]:
    return bench.all([edit for edit in EDITS if not edit.like])


def test_the_page_says_what_was_observed(observed):
    text = Path(ROOT / PAGE).read_text()
    on_page = text.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0].splitlines()
    assert [line.split(" | ")[0] for line in on_page[2:]] == [f"| {edit.name}" for edit in EDITS]
    shown = [line for line in on_page if not line.startswith(tuple(f"| {edit.name} |" for edit in EDITS if edit.like))]
    assert shown == table(observed), (
        f"{PAGE} should have, between {BEGIN} and {END}, what `python -m tests.machines.edits` says"
    )


def test_what_is_like_another_edit_is_like_one_that_is_observed(observed):
    assert {edit.like for edit in EDITS if edit.like} <= observed.keys()


def test_code_that_is_not_used_runs_nothing(observed):
    unused = [edit.name for edit in EDITS if edit.unused]
    assert len(unused) == 7
    assert not any(observed[name].ran for name in unused)


def test_the_report_is_written_where_a_section_is_empty(bench, observed):
    """Or not there, as in files of earlier versions; and no stage writes its folder. What was observed is up to date."""
    machine = bench.machine
    folders = {"studies": "studies", "divergence": "divergence", "localised": "localisation"}
    project.edit(machine.repo, lambda params: params.update({section: {} for section in folders}))
    project.edit(machine.repo, lambda params: [params.pop(section) for section in ("divergence", "by_block", "whole")])
    project.edit(machine.repo, lambda params: params.update(other_probes="code/readers", other_studies="code/readers"))
    for folder in folders.values():
        shutil.rmtree(machine.repo / folder)
    assert project.without_code(machine.repro("report")) == {"report"}
