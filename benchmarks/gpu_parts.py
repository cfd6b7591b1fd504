"""The parts of benchmarks.gpu: each says what it finds as it finds it."""

import contextlib
import io
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.gpu import Findings
from benchmarks.timing import ROOT

if TYPE_CHECKING:
    from store import Loader

# timm's name, images of a pass, images of the whole way, images of a batch
ENCODERS = (
    ("vit_base_patch16_224", 2048, 71680, 128),
    ("vit_large_patch16_224", 1024, 26880, 128),
    ("vit_huge_patch14_224", 512, 10752, 64),
)
SMALL = (("vit_tiny_patch16_224", 4, 8, 2),)
UNIT_ROWS = {False: 1792, True: 32}  # of the whole way, whether quick: several batches, as at full size
WAYS = {
    "bare": "bare forward pass of timm",
    "tokens": "tokens alone",
    "pass": "tokens, all statistics, maps, as they are stored, replayed",
    "started": "the same, each operation started by the interpreter",
    "operations": "the same by PyTorch's operations, started likewise",
}
MEMORY = Path("/dev/shm")
RATIOS = {"stream": "loader_vs_copy", "memory": "resident_vs_copy"}


def extraction(device: torch.device, quick: bool, findings: Findings) -> None:
    """Each way through each encoder, interleaved; of the first, ratios."""
    from benchmarks.extract import Bench

    for index, (name, n, n_whole, batch) in enumerate(SMALL if quick else ENCODERS):
        bench = Bench(n, batch, str(device), "bf16" if device.type == "cuda" else "none", None, name, keeps_on_device=True)
        for way in WAYS:
            bench.run(way)  # what is paid once
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(1 if quick else 3):
            for way in WAYS if number % 2 == 0 else tuple(WAYS)[::-1]:
                seconds[way].append(bench.run(way))
        of = {way: statistics.median(times) / n for way, times in seconds.items()}
        findings.say("", f"{name}, batches of {batch}:", "", "| images/s | | of bare |", "|---|---|---|")
        findings.say(*(f"| {WAYS[way]} | {1 / each:,.0f} | {of['bare'] / each:.3f} |" for way, each in of.items()))
        if index == 0:
            findings.measured("statistics_vs_bare", of["bare"] / of["pass"])
            findings.measured("kernel_vs_operations", of["operations"] / of["started"])
        for ratio, place, folder in (("memory_vs_bare", "memory", MEMORY), ("e2e_vs_bare", "the disk", None)):
            nbytes = 2 * n_whole * bench.nbytes_of_tokens
            where = Path(tempfile.gettempdir()) if folder is None else folder
            if not where.is_dir() or shutil.disk_usage(where).free < nbytes:
                findings.say(f"| the same into {place} | {nbytes / 1e9:.1f} GB free in {where} are needed | |")
                continue
            bench.scratch, bench.n, bench.shard_rows = where, n_whole, UNIT_ROWS[quick]
            each = bench.run("extract") / n_whole
            assert bench.spent is not None
            shares = ", ".join(f"{stage} {s / bench.spent.total_s:.0%}" for stage, s in bench.spent.seconds.items())
            findings.say(f"| the same into {place}: {shares} | {1 / each:,.0f} | {of['bare'] / each:.3f} |")
            if index == 0:
                findings.measured(ratio, of["bare"] / each)
        del bench
        if device.type == "cuda":
            torch.cuda.empty_cache()


def profile(device: torch.device, quick: bool, findings: Findings) -> None:
    """Which operations three batches with all statistics and maps consist of, longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    from benchmarks.extract import Bench

    name, _, _, batch = (SMALL if quick else ENCODERS)[0]
    bench = Bench(3 * batch, batch, str(device), "bf16" if device.type == "cuda" else "none", None, name, keeps_on_device=True)
    bench.run("pass")
    on_gpu = device.type == "cuda"
    with recording(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
        bench.run("pass")
    rows = sorted(recorded.key_averages(), key=lambda row: -(row.self_device_time_total if on_gpu else row.self_cpu_time_total))
    times = [(row.self_device_time_total if on_gpu else row.self_cpu_time_total) / 1e3 for row in rows]
    findings.say(f"{name}, three batches of {batch}: {sum(times):.1f} ms", "", "| operation | times | ms |", "|---|---|---|")
    findings.say(*(f"| `{row.key[:90]}` | {row.count} | {ms:.2f} |" for row, ms in zip(rows[:20], times, strict=False)))


def loader(device: torch.device, quick: bool, findings: Findings) -> None:
    """Tokens from the page cache, from memory and from the device, beside a copy from pinned memory."""
    import numpy as np

    from benchmarks import data
    from benchmarks.timing import remember
    from store import Loader

    n, batch = (64, 32) if quick else (8192, 256)
    rows = np.random.default_rng(0).standard_normal((64, *data.SHAPE), np.float32).astype(np.float16)
    copied = copy_rate(device, torch.from_numpy(rows), batch)
    findings.say("| from | GB/s |", "|---|---|", f"| copy from pinned memory | {copied / 1e9:.2f} |")
    findings.say(f"| copy in main memory, by 8 threads | {memory_rate(quick) / 1e9:.2f} |")
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
            rate = max(epoch_rate(reading, epoch, n * data.ROW_NBYTES) for epoch in range(3))
            findings.say(f"| loader, {placement} | {rate / 1e9:.2f} |")
            if placement in RATIOS:
                findings.measured(RATIOS[placement], rate / copied)


def epoch_rate(reading: "Loader", epoch: int, nbytes: int) -> float:
    """Bytes a second of an epoch, to the end of the last copy."""
    last: Tensor | None = None
    began = time.perf_counter()
    for batch in reading.epoch(epoch):
        last = batch["patch"]
    assert last is not None
    last.ravel()[0].item()  # waits for a GPU
    return nbytes / (time.perf_counter() - began)


def copy_rate(device: torch.device, rows: Tensor, batch: int) -> float:
    """Bytes a second of copies of a batch from pinned memory; on a CPU, from memory."""
    source = torch.zeros(batch, *rows.shape[1:], dtype=rows.dtype, pin_memory=device.type == "cuda")
    target = torch.empty_like(source, device=device)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        target.ravel()[0].item()
        seconds.append(time.perf_counter() - began)
    return source.nbytes / min(seconds)


def memory_rate(quick: bool) -> float:
    """Bytes a second of copies in main memory by eight threads: of what is streamed, each byte is copied there once."""
    import numpy as np

    source = np.ones((8, (1 if quick else 256) << 20), np.uint8)
    target = np.zeros_like(source)
    seconds = []
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            began = time.perf_counter()
            list(threads.map(np.copyto, target, source))
            seconds.append(time.perf_counter() - began)
    return source.nbytes / min(seconds)


def grid(device: torch.device, quick: bool, findings: Findings) -> None:
    """32 AbMILP heads in one run and one by one; and how near a step comes to what the device can do."""
    from benchmarks.probe import BATCH, Features, grid_vs_solo
    from benchmarks.roofline import shares_of_limit

    with contextlib.redirect_stdout(io.StringIO()) as said:
        findings.measured(
            "grid32_vs_solo", grid_vs_solo(Features.random(64 if quick else 4 * BATCH, device), 1, 1 if quick else 30)
        )
        shares_of_limit(device, quick)
    findings.say(*(f"- {line.strip()}" for line in said.getvalue().splitlines()))


def tests(device: torch.device, quick: bool, findings: Findings) -> None:
    """All tests that need a GPU."""
    import pytest  # that it is missing is to be said by name

    marked = marked_files()
    at_once = ["-n", "4"] if find_spec("xdist") and not quick else []  # most of their time goes into compiling kernels
    command = [sys.executable, "-m", pytest.__name__, "-m", "gpu", "-q", "-rsfE", "-p", "no:cacheprovider", *at_once, *marked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    reasons = [f"- {line.split(' ', 1)[1]}" for line in lines if line.startswith("SKIPPED")]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    outcome = re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else done.stderr.strip()
    none_ran = done.returncode == 5  # pytest's status where nothing was collected
    findings.say(f"{outcome}, in {len(marked)} files", *reasons)
    if done.returncode or none_ran:
        findings.failed("\n".join(failed) or outcome)


def marked_files() -> list[str]:
    """Files of tests, some of which need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]


PARTS: dict[str, Callable[[torch.device, bool, Findings], None]] = {
    "extraction": extraction,
    "profile": profile,
    "loader": loader,
    "grid": grid,
    "tests": tests,
}
