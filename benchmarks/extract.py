"""Extraction against the bare forward pass of timm, and against the naive way to the same statistics.

    python -m benchmarks.extract [--quick] [--images 256] [--rounds 5] [--device cpu] [--amp none]

Images are decoded and cut before the clock starts, and for all but `extract` normalised; feature sets are removed after it has
stopped, and the process keeps freed memory, for all. Ratios are medians over interleaved rounds:
`e2e_vs_bare_forward`: seconds of timm's fused forward pass / seconds of `extract` with all statistics, maps and tokens,
written to disk and synced. `vs_unfused`: seconds of the unfused pass that keeps every attention map of a batch and computes
the paper's four statistics from them in the end / seconds of our pass with all ten and the maps. `peak_memory_vs_bare`: peak
memory of a process that extracts / of one that runs the bare pass. On CPU a ViT-S/14 at 224 pixels (257 tokens), on a GPU a
ViT-B/16. Where oneDNN is faster than timm's linear layers, the bare pass with those layers is timed and printed too
(`layers`): what statistics and writing cost is against that one.
The last line is JSON.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import timm
import torch
from torch import Tensor

from benchmarks.timing import ROOT, conclude
from extract.copies import Packed, Replay, streams_of
from extract.datasets import ImageSet, Sample
from extract.encoders import Encoded, Encoder
from extract.forward import FastLinear
from extract.layouts import arrays_by_name, stored_parts
from extract.run import extract
from extract.stages import Spent
from extract.transform import Crop
from pipelines.process.device import keep_freed_memory
from store import kernels, onednn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="16 images, one round: under a minute, and no evidence")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--amp", default="none", help="bf16, fp16 or none")
    parser.add_argument("--scratch", type=Path, help="folder on the disk that is written; a temporary one by default")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)  # measured in a separate process
    given = parser.parse_args()
    n, rounds = (16, 1) if given.quick else (given.images, given.rounds)
    keep_freed_memory()  # as the command does; for all
    bench = Bench(n, min(given.batch, n), given.device, given.amp, given.scratch)
    if given.peak:
        bench.run(given.peak)
        print(bench.peak())
        return
    bench.run("bare")  # imports, memory, autotuning: what is paid once
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            seconds[way].append(bench.run(way))
    for way in WAYS:
        rate, slowest, fastest = (n / statistic(seconds[way]) for statistic in (statistics.median, max, min))
        print(f"{way:8} {rate:8.1f} images/s ({slowest:.1f} to {fastest:.1f})")
    over: Callable[[str, str], float] = lambda one, other: statistics.median(  # noqa: E731
        a / b for a, b in zip(seconds[one], seconds[other], strict=True)
    )
    common = ["--images", str(n), "--batch", str(given.batch), "--device", given.device, "--amp", given.amp]
    command = [sys.executable, "-m", "benchmarks.extract", *common, "--peak"]
    peaks = {way: int(subprocess.run([*command, way], cwd=ROOT, capture_output=True, check=True).stdout) for way in WAYS}
    print(f"extract / layers {over('layers', 'extract'):.3f}, pass / layers {over('layers', 'pass'):.3f}")
    print("peak memory " + ", ".join(f"{way} {nbytes / 1e9:.2f} GB" for way, nbytes in peaks.items()))
    ratios = {
        "e2e_vs_bare_forward": over("bare", "extract"),
        "vs_unfused": over("unfused", "pass"),
        "peak_memory_vs_bare": peaks["extract"] / peaks["bare"],
    }
    conclude(ratios, n >= 256 and rounds >= 3)


class Decoded:
    """Views of images that were decoded before."""

    is_by_torch = False

    def __init__(self, pixels: Tensor):
        self.pixels = pixels
        self.described: dict[str, Any] = {}

    def covering(self, size: tuple[int, int]) -> range:
        return range(1)

    def cuts(self, image: Any, image_id: str, views: Sequence[int]) -> Iterator[tuple[Tensor, Crop]]:
        return ((self.pixels[int(image_id) % len(self.pixels)], Crop((0, 0, 224, 224), False)) for _ in views)


class Listed(ImageSet):
    """A given number of images, none of which is read."""

    digest = "0"

    def __init__(self, n: int):
        super().__init__("benchmark", [Sample(f"{i:06}", (0,), Path("none"), 0, 1, digest=b"-" * 16) for i in range(n)])

    def image(self, row: int, held: object = None) -> Any:
        return _Size()


class _Size:
    height = width = 224
    size = (width, height)
    info: ClassVar[dict[str, Any]] = {}


class Bench:
    """The ways to run the same model over the same images.

    Args:
        n: images; `extract` takes them again from the first where `n` is raised later.
        scratch: folder in which feature sets are written; a temporary one by default.
        name: timm's, of the model.
        keeps_on_device: whether images of all ways but `extract` are on the device before the clock starts.

    Attributes:
        shard_rows: of feature sets.
        spent: of the last `extract`, where its time went.
    """

    shard_rows: int | None = None
    spent: Spent | None = None

    def __init__(
        self,
        n: int,
        batch: int,
        device: str,
        amp: str,
        scratch: Path | None,
        name: str | None = None,
        keeps_on_device: bool = False,
    ):
        torch.manual_seed(0)
        self.n, self.batch, self.device, self.scratch = n, batch, torch.device(device), scratch
        options: dict[str, Any]
        chosen, options = (
            ("vit_base_patch16_224", {}) if self.device.type == "cuda" else ("vit_small_patch14_dinov2", {"img_size": 224})
        )
        if name is not None:
            chosen, options = name, {}
        self.model: Any = timm.create_model(chosen, num_classes=0, **options).eval().requires_grad_(False).to(self.device)
        self.encoder = Encoder("benchmark", self.model, {})
        self.encoder.run_with(amp=amp)
        pixels = torch.randint(0, 256, (n, 3, 224, 224), dtype=torch.uint8)
        self.images = self.encoder.normalised(pixels).to(self.device if keeps_on_device else "cpu")
        self.encoder.views = Decoded(pixels)  # type: ignore[assignment]
        self.ways: dict[str, Callable[[], Path | None]] = {
            "bare": self.bare,
            "layers": self.layers,
            "extract": self.extract,
            "pass": self.one_pass,
            "started": self.started,
            "tokens": self.tokens,
            "operations": self.operations,
            "unfused": self.unfused,
        }

    def run(self, way: str) -> float:
        """Seconds."""
        began = time.perf_counter()
        made = self.ways[way]()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        if made is not None:
            shutil.rmtree(made)
        return seconds

    def peak(self) -> int:
        """Peak memory of this process so far, bytes; on a GPU, its peak of GPU memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

    @property
    def nbytes_of_tokens(self) -> int:
        """Of an image, as they are stored."""
        rows, columns = self.encoder.grid
        return 2 * rows * columns * int(self.model.num_features)

    def batches(self) -> list[Tensor]:
        return list(self.images.split(self.batch))

    @torch.inference_mode()
    def bare(self) -> None:
        """timm alone, by default with fused attention."""
        with self.encoder.autocast(self.device.type):
            for images in self.batches():
                self.model.forward_features(images.to(self.device))

    def layers(self) -> None:
        """timm with the encoder's linear layers."""
        with FastLinear() if onednn.is_faster() else nullcontext():
            self.bare()

    def one_pass(self) -> None:
        """Ours, without the disk: tokens, ten statistics, maps; on a GPU as they are copied from it, replayed."""
        if self.device.type != "cuda":
            self.started()
            return
        for images in self.batches():
            self.replay(images.to(self.device))

    def started(self) -> None:
        """Likewise, each operation started by the interpreter."""
        for images in self.batches():
            self.encoded(images.to(self.device))

    def encoded(self, images: Tensor) -> Encoded:
        last = [self.encoder.n_blocks - 1]
        return self.encoder(images, last, self.encoder.statistics, maps=last)

    @cached_property
    def replay(self) -> Replay:
        """Of batches, with the features as they are stored."""

        def compute(images: Tensor) -> Packed:
            features = arrays_by_name(self.encoded(images), 0)
            return Packed.of(stored_parts(features, features, "float16"))

        streams = streams_of(self.device)
        assert streams is not None
        return Replay(streams, compute, print)

    def tokens(self) -> None:
        """Ours, without the disk and without statistics."""
        for images in self.batches():
            self.encoder(images.to(self.device), [self.encoder.n_blocks - 1])

    def operations(self) -> None:
        """As `started`, by PyTorch's operations alone."""
        with patch.dict(os.environ, {kernels.SWITCH: "0"}):
            self.started()

    def extract(self) -> Path:
        """Ours, to the end; the folder it made."""
        out = Path(tempfile.mkdtemp(prefix="beyondcls-benchmark-", dir=self.scratch))
        extract(
            self.encoder,
            Listed(self.n),
            out / "f",
            batch_size=self.batch,
            shard_rows=self.shard_rows,
            spent=lambda spent: setattr(self, "spent", spent),
        )
        return out

    @torch.inference_mode()
    def unfused(self) -> None:
        """The naive way: all maps [L, B, H, N, N] of a batch, then the statistics."""
        for block in self.model.blocks:
            block.attn.fused_attn = False
        maps: list[Tensor] = []
        hooks = [b.attn.attn_drop.register_forward_hook(lambda _m, _i, out: maps.append(out)) for b in self.model.blocks]
        try:
            for images in self.batches():
                with self.encoder.autocast(self.device.type):
                    self.model.forward_features(images.to(self.device))
                naive(torch.stack(maps).float())
                maps.clear()
        finally:
            for hook in hooks:
                hook.remove()
            for block in self.model.blocks:
                block.attn.fused_attn = True


def naive(attention: Tensor) -> list[Tensor]:
    """The paper's four statistics from maps [L, B, H, N, N], as its formulas read."""
    patches = attention[..., 1:]
    p = patches / patches.sum(-1, keepdim=True)
    entropy = -(p * (p + 1e-6).log()).sum(-1)
    self_ = (attention / patches.sum(-1, keepdim=True)).diagonal(dim1=-2, dim2=-1)[..., 1:].mean(-1)
    return [attention[..., 0, 0], entropy[..., 0], self_, entropy[..., 1:].mean(-1)]


WAYS = ("bare", "layers", "extract", "pass", "unfused")

if __name__ == "__main__":
    main()
