"""A small study of heads by this program, and by what else people use: the same encoder, images, recipe, seeds, batches.

    python -m benchmarks.peers [--quick] [--heads cls average abmilp ep] [--epochs 10] [--repeats 1] [--whole]
        [--encoder quickstart-mae] [--n 5000] [--out docs/peers.md] [--scratch FOLDER]

Each head is trained from three seeds: heads x 3 head-runs. Ways, each in processes of its own, whose imports count:
`commands`: `beyondcls extract` twice and `beyondcls probe`, with their defaults; `python`: the same functions in one script.
`loop`: a plain PyTorch training loop with the frozen encoder in front, a run for each head and seed; `loop-together`: all of
them on one forward pass. `script`: as MAE's main_linprobe does it ([cls], random crops, LARS). `sklearn`: LogisticRegression on
cached [cls] and average patches (.npy). `h5`, `h5-together`: as `loop`, over patch tokens in an HDF5 file, by a DataLoader.

A cost is fixed + head-runs x what one adds. Of `loop`, `h5` and `script` two epochs of one seed of each head are trained, and
multiplied; likewise `loop-together` and `h5-together`, but for the first round, which trains them to the end (--whole: all
are, in every round). Ratios are medians over interleaved rounds of seconds of the way / seconds of `commands`, for the study,
and for 30 times as many head-runs (`…_x30`). With random weights (an --encoder of timm, as vit_small_patch16_224 --n 128, 224
pixels wide) one epoch is multiplied, and accuracies are left out. --out writes the tables between their markers on a page.
With --quick 60 images, the last head, two epochs: under a minute, and no evidence. The last line is JSON.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peer_tables import OURS, Round, page_with, tables
from benchmarks.peer_ways import WAYS, Bench, Cost
from benchmarks.study import HEADS, Study, write_images
from benchmarks.timing import conclude

BATCH, TIMED_EPOCHS, WORKERS = 256, 2, 2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, and no evidence")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1, help="rounds")
    parser.add_argument("--whole", action="store_true", help="train all epochs of what is multiplied otherwise; slow")
    parser.add_argument("--encoder", default="quickstart-mae", help="or a ViT of timm, with random weights")
    parser.add_argument("--n", type=int, help="training images, a fifth as many test images; all by default")
    parser.add_argument("--out", type=Path, help="page with markers, between which the tables are written")
    parser.add_argument("--scratch", type=Path, help="folder on the disk in question; a temporary one by default")
    given = parser.parse_args(arguments)
    heads, epochs, n, repeats, workers = tuple(given.heads), given.epochs, given.n, given.repeats, WORKERS
    if given.quick:
        heads, epochs, n, repeats, workers = heads[-1:], 2, 60, 1, 0
    if given.out:
        page_with(given.out, given.encoder, "")  # or its markers would be missed in the end
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-peers-", dir=given.scratch)).resolve()
    try:
        counts = write_images(folder / "images", n, None if n is None else n // 5)
        batch_size = min(BATCH, counts[0] // 2)
        study = Study(given.encoder, str(folder / "images"), heads, epochs=epochs, batch_size=batch_size, workers=workers)
        rounds = measure(study, folder, repeats, given.whole)
    finally:
        shutil.rmtree(folder)
    text = tables(study, counts, rounds, given.quick)
    print(text)
    if given.out:
        given.out.write_text(page_with(given.out, study.encoder, text), encoding="utf-8")
    conclude(ratios(study, rounds), not given.quick)


def measure(study: Study, folder: Path, repeats: int, to_the_end: bool = False) -> list[Round]:
    """Interleaved rounds of all ways."""
    rounds: list[Round] = []
    for number in range(repeats):
        alone = study.epochs if to_the_end else min(TIMED_EPOCHS if study.is_trained else 1, study.epochs)
        together = study.epochs if number == 0 and study.is_trained else alone
        costs: dict[str, Cost] = {}
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                costs |= way(Bench(study, Path(scratch), alone, together))
        said = (f"{name} {cost.seconds.at(study.n_runs):.1f}" for name, cost in costs.items())
        print(f"round {number}, seconds: {', '.join(said)}", flush=True)
        rounds.append(costs)
    return rounds


def ratios(study: Study, rounds: Sequence[Round]) -> dict[str, float]:
    """Seconds of each way / seconds of ours, for the study and for 30 times as many head-runs."""
    over: dict[str, float] = {}
    for times, ending in ((1, ""), (30, "_x30")):
        n = times * study.n_runs
        for name in rounds[0]:
            if name != OURS:
                quotients = [costs[name].seconds.at(n) / costs[OURS].seconds.at(n) for costs in rounds]
                over[f"{name}_vs_{OURS}{ending}"] = statistics.median(quotients)
    return over


if __name__ == "__main__":
    main()
