"""The figures of the pages are those of the metrics that are kept, and its words follow them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.measured import Probe
from quickstart import statements
from quickstart.keep import kept
from quickstart.readme import KEPT, PAGES, blocks, regenerated, table
from quickstart.statements import FINE_TUNED, MAE, MOCO, STATEMENTS
from store import BeyondClsError
from tests.pipelines.report.written import write_correct, write_probe

ROOT = Path(__file__).resolve().parents[2]
N = 400


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


@pytest.fixture
def small(tmp_path: Path) -> Inputs:
    """Two heads of each encoder, known image by image."""
    for encoder, rates in ((MAE, (0.6, 0.7)), (MOCO, (0.5, 0.52)), ("quickstart-random", (0.3, 0.31))):
        for head, rate in zip(("cls", "abmilp"), rates, strict=True):
            correct = (np.arange(N) + 0.5) / N < rate + np.array([[-0.005], [0], [0.005]])
            write_correct(write_probe(tmp_path, encoder, head, 1.0), correct)
    return collect(Folders(tmp_path, tmp_path / "none"))


def test_pages_are_of_what_is_kept() -> None:
    generated = blocks(ROOT)
    assert sorted(name for names in PAGES.values() for name in names) == sorted(generated)
    for page, names in PAGES.items():
        text = (ROOT / page).read_text()
        wanted = regenerated(page, text, {name: generated[name] for name in names})
        assert text == wanted, "run `python -m quickstart.readme`, and commit the pages"


def test_only_text_between_markers_is_rewritten() -> None:
    text = "1.0\n<!-- generated: a -->\nold\nlines\n<!-- end of a -->\n2.0\n\n<!-- generated: b -->\n<!-- end of b -->\n"
    with pytest.raises(BeyondClsError, match=r"no `<!-- end of b -->` behind `<!-- generated: b -->`; write it"):
        regenerated("page.md", text.replace("\n<!-- end of b -->", ""), {"a": "new", "b": ""})
    text = text.replace("<!-- end of b", "x\n<!-- end of b")
    assert regenerated("page.md", text, {"a": "new", "b": "y"}) == (
        "1.0\n<!-- generated: a -->\nnew\n<!-- end of a -->\n2.0\n\n<!-- generated: b -->\ny\n<!-- end of b -->\n"
    )
    with pytest.raises(BeyondClsError, match=r"page\.md has blocks \['a', 'b'\], expected each once of \['a'\]"):
        regenerated("page.md", text, {"a": "new"})


def test_the_table_has_the_fine_tuned_encoder_where_it_was_probed(full: Inputs, small: Inputs) -> None:
    called = [line.split(" | ")[0] for line in table(full, {}, 2).splitlines()[2:]]
    assert called[:2] == ["| masked autoencoding (MAE)", "| the same, fine-tuned on labels through [cls]"]
    assert len(called) == 4
    assert "fine-tuned" not in table(small, {}, 2)


def test_the_table_has_gains_with_intervals(small: Inputs) -> None:
    lines = table(small, {MAE: "46 epochs"}, 1).splitlines()
    assert lines[0] == "| encoder | [cls] | AbMILP | AbMILP − [cls] | of [cls]’s errors |"
    assert lines[2].startswith("| masked autoencoding (MAE, 46 epochs) | 60.0 ± 0.5 | **70.0 ± 0.5** | +10.0 [7.")
    assert "| 25.0 % [18." in lines[2]
    bare = replace(small, probes={key: Probe(probe, correct=None) for key, probe in small.probes.items()})
    assert table(bare, {}, 1).splitlines()[4] == "| random twin | 30.0 ± 0.5 | **31.0 ± 0.5** | +1.0 | 1.4 % |"


def test_verdicts_follow_the_statistics(full: Inputs) -> None:
    by_text = {statement.text: statement.measure for statement in STATEMENTS}
    for words, encoder in (("MoCo", MOCO), ("fine-tun", FINE_TUNED)):
        measures = [measure for text, measure in by_text.items() if words in text]
        assert len(measures) >= 2
        assert all(measure(full)[1] != measure(swapped(full, encoder))[1] for measure in measures)
    rows = statements.table(full).splitlines()[2:]
    assert [row.endswith("| yes |") for row in rows] == [measure(full)[1] for measure in by_text.values()]


def test_a_choice_of_patches_that_reaches_abmilp_is_named(full: Inputs) -> None:
    probes = dict(full.probes)
    probes[MAE, "pca"] = probes[MAE, "ap-12"]
    (measure,) = (statement.measure for statement in STATEMENTS if "choice of patches" in statement.text)
    shown, agrees = measure(replace(full, probes=probes))
    assert shown.startswith("pca on quickstart-mae: +")
    assert (agrees, measure(full)[1]) == (False, True)
