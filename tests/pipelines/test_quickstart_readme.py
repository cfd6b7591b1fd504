"""The figures of the pages are those of the metrics that are kept, and its words follow them."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.report.collect import Inputs
from pipelines.report.measured import Probe
from quickstart import statements
from quickstart.keep import kept
from quickstart.readme import KEPT, PAGES, blocks, regenerated
from quickstart.statements import FINE_TUNED, MAE, MOCO, STATEMENTS
from store import BeyondClsError

ROOT = Path(__file__).resolve().parents[2]


def swapped(inputs: Inputs, encoder: str = MOCO) -> Inputs:
    """The same numbers, those of the MAE and of another encoder exchanged."""
    other = {MAE: encoder, encoder: MAE}
    probes = {
        (encoder, head): Probe(inputs.probes[other.get(encoder, encoder), head], pretraining=probe.pretraining)
        for (encoder, head), probe in inputs.probes.items()
        if (other.get(encoder, encoder), head) in inputs.probes
    }
    return replace(inputs, probes=probes, attention={other.get(e, e): a for e, a in inputs.attention.items()})


@pytest.fixture(scope="module")
def full() -> Inputs:
    return kept(ROOT / "quickstart/full", KEPT["quickstart/full"])


def test_pages_are_of_what_is_kept() -> None:
    generated = blocks(ROOT)
    assert sorted(name for names in PAGES.values() for name in names) == sorted(generated)
    for page, names in PAGES.items():
        text = (ROOT / page).read_text()
        wanted = regenerated(page, text, {name: generated[name] for name in names})
        assert text == wanted, "run `python -m quickstart.readme`, and commit the pages"


def test_only_text_between_markers_is_rewritten() -> None:
    text = "1.0\n<!-- generated: a -->\nold\nlines\n<!-- end of a -->\n2.0\n"
    assert regenerated("page.md", text, {"a": "new"}) == text.replace("old\nlines", "new")
    with pytest.raises(BeyondClsError, match=r"no `<!-- end of a -->` behind `<!-- generated: a -->`; write it"):
        regenerated("page.md", text.replace("<!-- end of a -->", ""), {"a": "new"})
    with pytest.raises(BeyondClsError, match=r"page\.md has blocks \['a'\], expected each once of \['b'\]"):
        regenerated("page.md", text, {"b": "new"})


def test_verdicts_follow_the_statistics(full: Inputs) -> None:
    by_text = {statement.text: statement.measure for statement in STATEMENTS}
    for words, encoder in (("MoCo", MOCO), ("fine-tun", FINE_TUNED)):
        measures = [measure for text, measure in by_text.items() if words in text]
        assert len(measures) >= 2
        assert all(measure(full)[1] != measure(swapped(full, encoder))[1] for measure in measures)
    rows = statements.table(full).splitlines()[2:]
    assert [row.endswith("| yes |") for row in rows] == [measure(full)[1] for measure in by_text.values()]
