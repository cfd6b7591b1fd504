"""The benchmark beside other ways: they do the same study, and tables show what was measured."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import peer_ways, peers
from benchmarks.footprint import Footprint
from benchmarks.peer_tables import TITLES, accuracies, ahead_from, costs
from benchmarks.peer_ways import WAYS, Bench, Cost, Line, whole
from benchmarks.plain_data import Cache
from benchmarks.plain_study import HeadRun, train
from benchmarks.study import HEADS, Study, write_images
from pipelines import cli
from probe.saved import load_probe
from store import BeyondClsError

EPOCHS = 2
LOOPED = ("average", "abmilp")
MARKERS = "before\n<!-- generated: peers, quickstart-mae -->\nold\n<!-- end of peers, quickstart-mae -->\nafter\n"


def in_this_process(command: list[str], environment: object = None) -> Footprint:
    """As `footprint`, without a process: importing torch takes longer than everything else here."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr("sys.argv", command[2:])
        if command[1] == "-m":
            import_module(command[2]).main()
            return Footprint(8.0, 4.0, 10**6, json.loads(out.getvalue().splitlines()[-1]))
        try:
            cli.run()
            status = None
        except SystemExit as ended:
            status = ended.code
    assert not status, out.getvalue()
    return Footprint(8.0, 4.0, 10**6, {})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("peers")
    assert write_images(folder / "images", 40, 20) == (40, 20)
    study = Study("quickstart-mae", str(folder / "images"), seeds=(0, 1), epochs=EPOCHS, batch_size=16)
    return Bench(study, folder / "scratch", EPOCHS, EPOCHS)


@pytest.fixture(scope="module")
def measured(bench: Bench) -> dict[str, Cost]:
    """What each way takes, all in one folder; where the encoder is in the loop, with fewer heads and epochs."""
    bench.folder.mkdir()
    fewer = replace(bench, study=replace(bench.study, heads=LOOPED), alone_epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_ways, "footprint", in_this_process)
        encoders_in_front = (peer_ways.by_loop, peer_ways.by_script)
        return {name: cost for way in WAYS for name, cost in way(fewer if way in encoders_in_front else bench).items()}


@pytest.mark.parametrize("head", HEADS)
def test_a_plain_loop_takes_the_steps_of_the_program(head: str, bench: Bench, measured: dict[str, Cost]) -> None:
    """From tokens that are equal but for the rounding of one forward pass or the other."""
    study = replace(bench.study, heads=(head,))
    batches = Cache(study, bench.folder / "features.h5", "train", ("cls", "patch"), shuffled=True)
    runs = [HeadRun(study, head, seed, batches) for seed in study.seeds]
    train(runs, batches, study.recipe, EPOCHS)
    for seed, run in zip(study.seeds, runs, strict=True):
        ours = load_probe(bench.folder / f"probes/{head}/trained/seed{seed}")
        theirs = run.head.classify[1].weight
        torch.testing.assert_close(theirs, ours.classifier.weight, atol=2e-4, rtol=0)
        torch.testing.assert_close(run.head.classify[0].running_mean, ours.norm.running_mean, atol=2e-3, rtol=0)


def test_accuracies_agree_where_the_recipe_is_the_same(measured: dict[str, Cost]) -> None:
    """Of 20 test images one may fall on the other side."""
    ours = measured["commands"].top1
    assert list(ours) == list(HEADS)
    for name, heads in (("python", HEADS), ("loop-together", LOOPED), ("h5-together", HEADS)):
        assert tuple(measured[name].top1) == heads
        for head in heads:
            assert measured[name].top1[head] == pytest.approx(ours[head], abs=5.01), (name, head)
    for head in HEADS:  # alone, from one seed
        assert measured["h5"].top1[head] == measured["h5-together"].top1[head][:1]
    assert set(measured["sklearn"].top1) == {"cls", "average"}
    assert measured["loop"].top1 == measured["script"].top1 == {}  # not trained to the end


def test_epochs_that_were_not_trained_last_as_long() -> None:
    epochs = [{"seconds": 9.0, "cpu_s": 3.0}, {"seconds": 2.0, "cpu_s": 1.0}, {"seconds": 4.0, "cpu_s": 1.0}]
    assert whole(Footprint(20.0, 10.0, 0, {"epochs": epochs}), 13) == (20 + 10 * 3, 10 + 10 * 1)
    assert whole(Footprint(20.0, 10.0, 0, {"epochs": epochs}), 3) == (20, 10)


def test_where_two_costs_cross() -> None:
    once, each = Line.through(12, 36.0, 84.0), Line(0.0, 3.0)  # 12 + 2 n, 3 n
    assert (once.fixed, once.per_run) == (12, 2)
    assert Line.through(12, 36.0, 35.0) == Line(36.0, 0.0)
    assert ahead_from(once, each) == 13  # at 12 both cost 36
    assert ahead_from(each, once) is None
    assert ahead_from(Line(1.0, 2.0), Line(2.0, 2.0)) == 1
    assert ahead_from(each, each) is None
    assert ahead_from(Line(5.5, 1.0), Line(5.0, 2.0)) == 1


@pytest.fixture
def rounds() -> list[dict[str, Cost]]:
    """Two, the second of which takes twice as long."""
    first = {
        name: Cost(Line(10.0 * k, 2.0 + k), Line(k, 1.0), 10**8 * k, 10**6, {"cls": [50.0, 52.0]} if k != 3 else {})
        for k, name in enumerate(TITLES, 1)
    }
    twice = lambda line: Line(2 * line.fixed, 2 * line.per_run)  # noqa: E731
    return [first, {name: replace(cost, seconds=twice(cost.seconds)) for name, cost in first.items()}]


def test_tables_show_what_was_measured(bench: Bench, rounds: list[dict[str, Cost]]) -> None:
    study = replace(bench.study, heads=("cls",), seeds=(0, 1))  # 2 head-runs
    rows = costs(study, rounds).splitlines()
    cells = {row.split(" | ")[0].removeprefix("| "): row.rstrip(" |").split(" | ")[1:] for row in rows[2:]}
    assert list(cells) == list(TITLES.values())
    assert cells[TITLES["commands"]][:8] == ["15 s", "4.5 s", "24 s", "42 s", "4.8 min", "3.0 s", "100.0 MB", "1.0 MB"]
    assert cells[TITLES["loop"]][:3] == ["45 s", "7.5 s", "60 s"]
    assert cells[TITLES["loop"]][-1] == "1"  # this program is ahead from the first head-run on
    shown = accuracies(study, rounds[0])
    assert "| [cls] | 51.0 ± 1.4 | 51.0 ± 1.4 | 51.0 ± 1.4 |" in shown
    assert TITLES["loop"] not in shown


def test_the_command_writes_its_tables_between_markers(rounds, tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKERS)
    monkeypatch.setattr(peers, "measure", lambda *_: rounds)
    peers.main(["--quick", "--heads", "cls", "--out", str(page), "--scratch", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    text = page.read_text()
    assert text.startswith("before\n<!-- generated: peers, quickstart-mae -->\nSmall sizes")
    assert text.endswith("<!-- end of peers, quickstart-mae -->\nafter\n")
    assert all(line in said for line in text.splitlines()[2:-2])
    ratios = json.loads(said[-1])
    assert ratios["loop_vs_commands"] == pytest.approx((30 + 3 * 5) / (10 + 3 * 3), abs=0.01)
    assert ratios["loop_vs_commands_x30"] == pytest.approx((30 + 90 * 5) / (10 + 90 * 3), abs=0.01)
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]


def test_a_page_without_markers_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(BeyondClsError, match="there is no page"):
        peers.main(["--out", str(page)])
    page.write_text("text\n")
    with pytest.raises(BeyondClsError, match="peers, quickstart-mae"):
        peers.main(["--out", str(page)])
