"""What turns a JPEG into the encoder's view fastest, and how far its pixels are from those of Pillow, which is the default.

    python -m benchmarks.decoding [--quick] [--images 200] [--sides 500x375,2560x1600] [--rounds 7] [--files FOLDER]

Ways: `pillow`, `torch` and `draft`, the values of --cut, as extraction takes them; `copied`, as pillow, with the copy that
Pillow makes of an image that is RGB already; `decoded`, as torch, but decoded by Pillow, as where simplejpeg is missing;
`torchcodec`, if it is installed, decodes, and torch cuts. Each begins with the bytes in memory and ends with view 0
(224 pixels, bicubic), on 1 and on 2 threads. Images are made here, with the spectrum of photographs: as many as asked for of
the first sides, a tenth of them of others; or FOLDER has them.

Ratios are medians over interleaved rounds. `torch_2_threads`: seconds of Pillow / seconds of torch. `torch_cpu`: likewise in
seconds of a core, on one thread, which other work on the machine hardly changes. `torch_equal_pixels`: the share of the view's
values that are Pillow's; how far the others are is printed. Of other sides than the first, names end with them. What is not
installed is named, and has no ratio. The last line is JSON.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features

from benchmarks.timing import conclude
from extract.datasets.pixels import Pixels, Raster
from extract.transform import CUTS, Views
from pipelines.process.device import keep_freed_memory

CONFIG = {
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.875,
    "crop_mode": "center",
}
SIDES, QUALITY = ((500, 375), (2560, 1600)), 90
THREADS = (1, 2)
PACKAGES = ("torchcodec",)  # peers
VIEWS = {cut: Views(CONFIG, cut) for cut in CUTS}


def by_extraction(cut: str) -> Callable[[bytes], Any]:
    views = VIEWS[cut]
    pixels = Pixels(least=views.least)
    decode = pixels.picture if views.is_by_torch else pixels.decoded
    return lambda content: views.evaluation(decode(content))


def decoded(content: bytes) -> Any:
    return VIEWS["torch"].evaluation(Pixels().decoded(content))


def copied(content: bytes) -> Any:
    return VIEWS["pillow"].evaluation(Image.open(io.BytesIO(content)).convert("RGB"))


def torchcodec(content: bytes) -> Any:
    from torchcodec.decoders import decode_jpeg  # type: ignore[import-not-found, unused-ignore]

    pixels: Any = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return VIEWS["torch"].evaluation(Raster(pixels.permute(1, 2, 0).numpy()))


WAYS: dict[str, Callable[[bytes], Any]] = {
    **{cut: by_extraction(cut) for cut in CUTS},
    "copied": copied,
    "decoded": decoded,
    "torchcodec": torchcodec,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 images, three rounds: under a minute, and no evidence")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sides", default=",".join(f"{width}x{height}" for width, height in SIDES))
    parser.add_argument("--files", type=Path, help="folder of JPEGs to decode, instead of images made here")
    given = parser.parse_args(arguments)
    n, rounds = (min(40, given.images), min(3, given.rounds)) if given.quick else (given.images, given.rounds)
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(1)  # as where images are decoded in processes; threads of ours share the images
    print(versions())
    ways = [name for name in WAYS if name not in PACKAGES or find_spec(name)]
    for name in sorted({*PACKAGES, "simplejpeg"}):
        if not find_spec(name):
            print(f"{name} is missing: pip install {name}")
    if given.files:
        ratios = compared(stored(given.files, n), ways, rounds)
    else:
        ratios = dict[str, float]()
        for i, sides in enumerate(given.sides.split(",")):
            width, height = map(int, sides.split("x"))
            contents = [photograph(seed, (width, height)) for seed in range(n if i == 0 else max(1, n // 10))]
            ratios |= {f"{name}_{sides}" if i else name: ratio for name, ratio in compared(contents, ways, rounds).items()}
    conclude(ratios, n >= 200 and rounds >= 3, digits=4)


def compared(contents: Sequence[bytes], ways: Sequence[str], rounds: int) -> dict[str, float]:
    print(f"{len(contents)} JPEGs of {sum(map(len, contents)) / len(contents) / 1000:.0f} kB")
    others, ratios = [way for way in ways if way != "pillow"], dict[str, float]()
    for threads in THREADS:
        wall, cpu = timed(contents, ways, rounds, threads)
        ratios |= {f"{way}_{threads}_threads": quotient(wall, way) for way in others}
        if threads == 1:
            ratios |= {f"{way}_cpu": quotient(cpu, way) for way in others}
    return ratios | {f"{way}_equal_pixels": equal_pixels(contents, way) for way in others}


def timed(
    contents: Sequence[bytes], ways: Sequence[str], rounds: int, threads: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each round, and seconds of a core, by way."""
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    with ThreadPoolExecutor(threads) as pool:
        for number in range(-1, rounds):  # the first is not counted: codecs are loaded
            for way in ways if number % 2 else ways[::-1]:
                began = time.perf_counter(), time.process_time()
                for _ in pool.map(WAYS[way], contents):
                    pass
                if number >= 0:
                    wall[way].append(time.perf_counter() - began[0])
                    cpu[way].append(time.process_time() - began[1])
    for way in ways:
        taken = [1000 * statistics.median(seconds[way]) / len(contents) for seconds in (wall, cpu)]
        print(f"{way:12} {threads} threads {taken[0]:8.2f} ms an image, {taken[1]:8.2f} ms of a core")
    return wall, cpu


def quotient(seconds: Mapping[str, Sequence[float]], way: str) -> float:
    return statistics.median(map(truediv, seconds["pillow"], seconds[way]))


def equal_pixels(contents: Sequence[bytes], way: str) -> float:
    """The share of values that are Pillow's, 0…1; those of views of another size are not."""
    shares, differences = [], []
    for content in contents:
        theirs, ours = (np.asarray(WAYS[name](content)).astype(int) for name in (way, "pillow"))
        if theirs.shape != ours.shape:
            shares.append(0.0)
            continue
        differences.append(np.abs(theirs - ours))
        shares.append(float((differences[-1] == 0).mean()))
    if differences:
        mean, largest = np.mean([one.mean() for one in differences]), max(one.max() for one in differences)
        print(f"{way:12} values differ by {mean:.3f} of 255 on average, {largest} at most")
    return statistics.mean(shares)


def photograph(seed: int, sides: tuple[int, int] = SIDES[0]) -> bytes:
    """A JPEG (width, height) whose amplitudes fall with frequency as those of photographs do (1/f), in every colour."""
    width, height = sides
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    grey = np.fft.irfft2(np.fft.rfft2(generator.standard_normal((height, width))) / frequency, (height, width))
    colour = np.fft.irfft2(np.fft.rfft2(generator.standard_normal((3, height, width))) / frequency**1.5, (height, width))
    values = grey / grey.std() + 0.3 * colour / colour.std()
    file = io.BytesIO()
    pixels = (128 + 50 * values).clip(0, 255).astype(np.uint8)
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(file, "jpeg", quality=QUALITY)
    return file.getvalue()


def stored(folder: Path, n: int) -> list[bytes]:
    """The first JPEGs below a folder."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"{folder} has no .jpg or .jpeg file; leave out --files, and images are made here")
    return [file.read_bytes() for file in files[:n]]


def versions() -> str:
    import PIL

    turbo, instructions = features.version_feature("libjpeg_turbo") or "none", torch.backends.cpu.get_cpu_capability()
    return f"Pillow {PIL.__version__} (libjpeg-turbo {turbo}), torch {torch.__version__} ({instructions})"


if __name__ == "__main__":
    main()
