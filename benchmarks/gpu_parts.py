"""The parts of benchmarks.gpu: each gives Markdown lines, ratios, and what failed."""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import data
from benchmarks.extract import Bench
from benchmarks.probe import BATCH, Features, grid_vs_solo
from benchmarks.roofline import shares_of_limit
from benchmarks.timing import ROOT, remember
from store import Loader

Found = tuple[list[str], dict[str, float], str]
# timm's name, images, images of a batch
ENCODERS = (("vit_base_patch16_224", 2048, 128), ("vit_large_patch16_224", 1024, 128), ("vit_huge_patch14_224", 512, 64))
SMALL = (("vit_tiny_patch16_224", 4, 2),)
WAYS = {
    "bare": "bare forward pass of timm",
    "tokens": "tokens alone",
    "pass": "tokens, all statistics, maps",
    "operations": "the same by PyTorch's operations",
    "extract": "the same, to the disk",
}


def tests(device: torch.device, quick: bool) -> Found:
    """All tests that need a GPU."""
    marked = marked_files()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rsfE", "-p", "no:cacheprovider", *marked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    reasons = [f"- {line.split(' ', 1)[1]}" for line in lines if line.startswith("SKIPPED")]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    outcome = re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else done.stderr.strip()
    none_ran = done.returncode == 5  # pytest's status where nothing was collected
    failure = "\n".join(failed) or outcome if done.returncode or none_ran else ""
    return [f"{outcome}, in {len(marked)} files", *reasons], {}, failure


def marked_files() -> list[str]:
    """Files of tests, some of which need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]


def extraction(device: torch.device, quick: bool) -> Found:
    """Each way through each encoder, interleaved."""
    lines = ["| images/s | " + " | ".join(WAYS.values()) + " |", "|---" * (1 + len(WAYS)) + "|"]
    ratios: dict[str, float] = {}
    for name, n, batch in SMALL if quick else ENCODERS:
        bench = Bench(n, batch, device.type, "bf16" if device.type == "cuda" else "none", None, name)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in WAYS:
            bench.run(way)  # what is paid once
        for number in range(1 if quick else 3):
            for way in WAYS if number % 2 == 0 else tuple(WAYS)[::-1]:
                seconds[way].append(bench.run(way))
        of = {way: statistics.median(times) for way, times in seconds.items()}
        lines.append(f"| {name} | " + " | ".join(f"{n / of[way]:,.0f}" for way in WAYS) + " |")
        if not ratios:  # of the first
            ratios = {
                "e2e_vs_bare": of["bare"] / of["extract"],
                "statistics_vs_bare": of["bare"] / of["pass"],
                "kernel_vs_operations": of["operations"] / of["pass"],
            }
        del bench
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return lines, ratios, ""


def loader(device: torch.device, quick: bool) -> Found:
    """Tokens from the page cache, from memory and from the device, beside a copy from pinned memory."""
    n, batch = (64, 32) if quick else (8192, 256)
    rows = np.random.default_rng(0).standard_normal((64, *data.SHAPE), np.float32).astype(np.float16)
    rates = {"copy from pinned memory": copy_rate(device, batch)}
    with tempfile.TemporaryDirectory(prefix="beyondcls-benchmark-") as folder:
        store = data.write_store(Path(folder) / "store", rows, n, min(n, 1024))
        remember(Path(folder))
        for placement in ("stream", "memory", "device"):
            reading = Loader(
                {"patch": store.array(data.NAME)},
                store.labels,
                batch_size=batch,
                device=device,
                placement=placement,
                dtype=None,
            )
            rates[f"loader, {placement}"] = max(epoch_rate(reading, epoch, n) for epoch in range(3))
    lines = ["| from | GB/s |", "|---|---|", *(f"| {name} | {rate / 1e9:.2f} |" for name, rate in rates.items())]
    return lines, {"loader_vs_copy": rates["loader, stream"] / rates["copy from pinned memory"]}, ""


def epoch_rate(reading: Loader, epoch: int, n: int) -> float:
    """Bytes a second of an epoch, to the end of the last copy."""
    last: Tensor | None = None
    began = time.perf_counter()
    for batch in reading.epoch(epoch):
        last = batch["patch"]
    assert last is not None
    last.ravel()[0].item()  # waits for a GPU
    return n * data.ROW_NBYTES / (time.perf_counter() - began)


def copy_rate(device: torch.device, batch: int) -> float:
    """Bytes a second of copies of a batch from pinned memory; on a CPU, from memory."""
    source = torch.zeros(batch, *data.SHAPE, dtype=torch.float16, pin_memory=device.type == "cuda")
    target = torch.empty_like(source, device=device)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        target.ravel()[0].item()
        seconds.append(time.perf_counter() - began)
    return source.nbytes / min(seconds)


def grid(device: torch.device, quick: bool) -> Found:
    """32 AbMILP heads in one run and one by one; and how near a step comes to what the device can do."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as said:
        value = grid_vs_solo(Features.random(64 if quick else 4 * BATCH, device), 1, 1 if quick else 30)
        shares_of_limit(device, quick)
    return [f"- {line.strip()}" for line in said.getvalue().splitlines()], {"grid32_vs_solo": value}, ""


PARTS: dict[str, Callable[[torch.device, bool], Found]] = {
    "tests": tests,
    "extraction": extraction,
    "loader": loader,
    "grid": grid,
}
