"""What grows with the number of images, other than computing: 128,000 rows against 1.28 million, as many as ImageNet has.

    python -m benchmarks.growth [--quick] [--rows 128000 1280000]

WebDataset tars of 1,280 images each (25 bytes an image, ids and labels as ImageNet's) are indexed and digested; a set of tiny
tokens (4 of 16 channels) is claimed, written and published unit by unit, 1,024 rows each, as by one of several tasks, but
no encoder runs; it is opened, read for an epoch in shuffled order, streamed; its receipt is written and compared with it;
every shard is verified; `dvc push` sends the receipt. Each number of rows has a process of its own; memory is the peak of
the process during a step. The last line is JSON: seconds at the larger number over those at the smaller, for as many rows.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import ROOT, conclude

IN_A_TAR, IN_A_UNIT, N_CLASSES = 1280, 1024, 1000
IMAGE = b"P6 2 2 255\n" + bytes(12)
TINY = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 1}
Measure = Callable[[str], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,560 against 25,600 rows: under a minute, and no evidence")
    parser.add_argument("--rows", type=int, nargs=2, default=(128_000, 1_280_000), metavar=("FEWER", "MORE"))
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        with tempfile.TemporaryDirectory(prefix="beyondcls-growth-", dir=ROOT) as scratch:
            print(json.dumps(steps(Path(scratch), given.only)))
        return
    fewer, more = (2_560, 25_600) if given.quick else given.rows
    measured = [alone(n) for n in (fewer, more)]
    print(f"{'':10} {fewer:>10,} rows          {more:>10,} rows           for as many rows")
    ratios = {}
    for step, small in measured[0].items():
        large = measured[1][step]
        ratios[step] = round(large["seconds"] / small["seconds"] * fewer / more, 3)
        shown = (f"{one['seconds']:9.2f} s {one['megabytes']:7,.0f} MB" for one in (small, large))
        print(f"{step:10} {'   '.join(shown)}   {ratios[step]:.2f}")
    conclude(ratios, more >= 1_000_000)


def alone(n: int) -> dict[str, dict[str, float]]:
    """What `steps` measures, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--only", str(n)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{n} rows failed:\n{done.stderr[-2000:]}")
    result: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def steps(folder: Path, n: int) -> dict[str, dict[str, float]]:
    """Seconds and peak megabytes of each step."""
    from extract.datasets import open_images
    from store import FeatureStore
    from store.format.reader import verify
    from store.loading.loader import Loader
    from store.moving.receipt import Receipt

    taken: dict[str, dict[str, float]] = {}

    @contextmanager
    def measure(step: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        began = time.perf_counter()
        yield
        taken[step] = {"seconds": time.perf_counter() - began, "megabytes": peak_kilobytes() / 1000}

    write_tars(folder / "images", n)
    with measure("index"):
        images = open_images(str(folder / "images"))
    with measure("digest"):
        assert images.digest
    write(folder / "set", images, measure)
    del images
    with measure("open"):
        store = FeatureStore.open(folder / "set")
    with measure("epoch"):
        loader = Loader({"patch": store.tokens("patch")}, store.labels, placement="stream", batch_size=4096)
        assert sum(len(batch["label"]) for batch in loader.epoch()) == n
    with measure("receipt"):
        Receipt.from_store(store).write(folder / "set.json")
        Receipt.read(folder / "set.json").check(store, whole=True)
    with measure("verify"):
        assert not [problem for *_, problem in verify(folder / "set") if problem]
    prepare_dvc(folder)
    with measure("push"):
        dvc(folder / "project", ("push", "-q"))
    return taken


def write_tars(folder: Path, n: int) -> None:
    folder.mkdir()
    padded = IMAGE + bytes(512 - len(IMAGE))
    for first in range(0, n, IN_A_TAR):
        with (folder / f"train-{first // IN_A_TAR:06d}.tar").open("wb") as tar:
            for i in range(first, min(first + IN_A_TAR, n)):
                label = str(i * 7919 % N_CLASSES)
                for extension, content in (("ppm", padded), ("cls", label.encode() + bytes(512 - len(label)))):
                    member = tarfile.TarInfo(f"n{int(label):08d}_{i}.{extension}")
                    member.size = len(IMAGE) if extension == "ppm" else len(label)
                    tar.write(member.tobuf(tarfile.USTAR_FORMAT) + content)
            tar.write(bytes(1024))


def write(out: Path, images: Any, measure: Measure) -> None:
    """A set of zeros and of what is known of the images, by the steps that a task of several takes; no image is decoded."""
    from extract.encoders import load_encoder
    from extract.layouts import annotations_of, is_annotation
    from extract.requests import Request
    from extract.writing import Settings, attributes_of
    from store import FeatureWriter

    encoder = load_encoder("vit_tiny_patch16_224", random_seed=0, arguments=TINY)
    request = Request.resolve(encoder, images, shard_rows=IN_A_UNIT)
    with measure("describe"):
        attributes, layouts = attributes_of(request, Settings()), request.layouts()
    with measure("write"), FeatureWriter(out, request.spec, layouts, request.constants) as writer:
        for unit in writer.missing_units():
            assert writer.claim(unit)
            rows = range(*layouts[0].rows(unit))
            empty = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in layouts if not is_annotation(a.name)}
            writer.write_unit(unit, empty | annotations_of(images, encoder, rows, layouts), ())
        writer.finish(attributes)


def prepare_dvc(folder: Path) -> None:
    (folder / "project").mkdir()
    (folder / "set.json").rename(folder / "project/set.json")
    subprocess.run(["git", "init", "-q"], cwd=folder / "project", check=True)
    remote = ("remote", "add", "-q", "-d", "other", str(folder / "remote"))
    dvc(folder / "project", ("init", "-q"), remote, ("add", "-q", "set.json"))


def dvc(folder: Path, *commands: Sequence[str]) -> None:
    """One after the other in one process, whose imports take longer than they."""
    program = "import json, sys; from dvc.cli import main; sys.exit(any(main(command) for command in json.loads(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", program, json.dumps(commands)], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def peak_kilobytes() -> int:
    """The most memory of this process since the peak last began."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
