"""What decodes JPEGs fastest, and whether its pixels are those of Pillow, which extraction uses.

    python -m benchmarks.decoding [--quick] [--images 200] [--rounds 7] [--files FOLDER]

Ways: Pillow; `draft`, Pillow with its draft mode, which decodes at a half or a fourth of the size where the view needs no more;
torchvision's `decode_jpeg`; simplejpeg, if it is installed. Each begins with the bytes in memory and ends with the pixels of
view 0 (224 pixels, bicubic), cut by Pillow for all, on 1 and on 2 threads. The images are made here, 500 x 375 with the
spectrum of photographs, unless FOLDER has others.

Ratios are medians over interleaved rounds. `simplejpeg_2_threads`: seconds of Pillow / seconds of simplejpeg, from bytes to the
view. `simplejpeg_cpu`: the same in seconds of a core, on one thread, which other work on the machine hardly changes.
`simplejpeg_decoding`: likewise for decoding alone. `simplejpeg_equal_pixels`: the share of decoded values that are Pillow's.
What is not installed is named, and has no ratio. The last line is JSON.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features

from benchmarks.timing import conclude
from extract.transform import Views

CONFIG = {
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.875,
    "crop_mode": "center",
}
SIZE, QUALITY = (500, 375), 90
SHORT_SIDE = 256  # of the resized image that view 0 is cut from
THREADS = (1, 2)
OTHERS = ("draft", "torchvision", "simplejpeg")


def is_there(name: str) -> bool:
    if name == "torchvision":  # announces that it will decode no images any more
        import torchvision.io

        return hasattr(torchvision.io, "decode_jpeg")
    return name == "draft" or find_spec(name) is not None


def pillow(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


def draft(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.draft("RGB", (SHORT_SIDE, SHORT_SIDE))
    return image.convert("RGB")


def torchvision(content: bytes) -> Image.Image:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.functional import to_pil_image

    return to_pil_image(decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB))


def simplejpeg(content: bytes) -> Image.Image:
    from simplejpeg import decode_jpeg  # type: ignore[import-not-found, unused-ignore]

    return Image.fromarray(decode_jpeg(content, colorspace="RGB"))


DECODERS: dict[str, Callable[[bytes], Image.Image]] = {
    "pillow": pillow,
    "draft": draft,
    "torchvision": torchvision,
    "simplejpeg": simplejpeg,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 images, three rounds: under a minute, and no evidence")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=Path, help="folder of JPEGs to decode, instead of images made here")
    given = parser.parse_args(arguments)
    n, rounds = (min(40, given.images), min(3, given.rounds)) if given.quick else (given.images, given.rounds)
    contents = stored(given.files, n) if given.files else [photograph(seed) for seed in range(n)]
    names = [name for name in OTHERS if is_there(name)]
    print(f"{len(contents)} JPEGs of {sum(map(len, contents)) / len(contents) / 1000:.0f} kB; {versions()}")
    for name in sorted({*OTHERS} - {*names}):
        print(f"{name} is missing: pip install {name}" if name == "simplejpeg" else f"this {name} decodes no JPEGs")
    ratios: dict[str, float] = {}
    for threads in THREADS:
        wall, cpu = compared(contents, names, rounds, threads, cut)
        ratios |= {f"{name}_{threads}_threads": ratio for name, ratio in wall.items()}
        if threads == 1:
            ratios |= {f"{name}_cpu": ratio for name, ratio in cpu.items()}
    _, cpu = compared(contents, names, rounds, 1, lambda decode, content: decode(content))
    ratios |= {f"{name}_decoding": ratio for name, ratio in cpu.items()}
    ratios |= {f"{name}_equal_pixels": equal_pixels(contents, name) for name in names}
    conclude(ratios, n >= 200 and rounds >= 3, digits=4)


def cut(decode: Callable[[bytes], Image.Image], content: bytes) -> Any:
    return VIEWS.cut(decode(content), "", 0)


VIEWS = Views(CONFIG)


def compared(
    contents: Sequence[bytes],
    names: Sequence[str],
    rounds: int,
    threads: int,
    run: Callable[[Callable[[bytes], Image.Image], bytes], Any],
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of Pillow / seconds of each of these decoders, and of a core: medians over rounds."""
    ways = ["pillow", *names]
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(threads) as pool:
        for number in range(-1, rounds):  # the first is not counted: codecs are loaded
            for name in ways if number % 2 else ways[::-1]:
                began = time.perf_counter(), time.process_time()
                for _ in pool.map(run, [DECODERS[name]] * len(contents), contents):
                    pass
                if number >= 0:
                    wall[name].append(time.perf_counter() - began[0])
                    cpu[name].append(time.process_time() - began[1])
    for name in ways:
        rates = [len(contents) / statistics.median(seconds[name]) for seconds in (wall, cpu)]
        print(f"{name:12} {threads} threads {rates[0]:8.1f} images/s, {rates[1]:8.1f} a core")
    over = [{n: statistics.median(map(truediv, s["pillow"], s[n])) for n in names} for s in (wall, cpu)]
    return over[0], over[1]


def equal_pixels(contents: Sequence[bytes], name: str) -> float:
    """The share of values that are Pillow's; 0 where an image has another size."""
    shares = []
    for content in contents:
        theirs, ours = (np.asarray(decode(content)) for decode in (DECODERS[name], pillow))
        shares.append(float((theirs == ours).mean()) if theirs.shape == ours.shape else 0.0)
    return statistics.mean(shares)


def photograph(seed: int) -> bytes:
    """A JPEG whose amplitudes fall with frequency as those of photographs do (1/f), in every colour."""
    width, height = SIZE
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
    import torchvision

    turbo = features.version_feature("libjpeg_turbo") or "none"
    return f"Pillow {PIL.__version__} (libjpeg-turbo {turbo}), torchvision {torchvision.__version__}"


if __name__ == "__main__":
    main()
