"""Extraction of a few images by the command, against a plain script: what somebody sees who tries the program.

    python -m benchmarks.short_runs [--quick] [--images 16,100,500] [--rounds 5] [--model vit_small_patch16_224]

Both are processes of their own, timed from start to end, imports included, interleaved: `beyondcls extract` of a folder of
JPEGs with its defaults, and a script that imports torch and timm, loads the same weights, decodes and cuts the images one by
one, runs timm's forward pass in batches, and saves patch tokens and [cls] by numpy.save. `short_N` is seconds of the script
/ of the command for N images.

Where the seconds go is printed for each N: medians of the same rounds, of a process that does step by step what the command
does, with the stages that an extraction reports. The last line is JSON.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import timm
from safetensors.torch import save_file

from benchmarks.decoding import photograph
from benchmarks.footprint import Footprint, footprint
from benchmarks.timing import conclude

PLAIN = """
import sys
from pathlib import Path
import numpy as np, timm, torch
from PIL import Image
from safetensors.torch import load_file

images, weights, out, name = sys.argv[1:]
model = timm.create_model(name, num_classes=0).eval()
model.load_state_dict(load_file(weights))
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
files, features = sorted(Path(images).rglob("*.jpg")), []
with torch.inference_mode():
    for start in range(0, len(files), 32):
        batch = torch.stack([transform(Image.open(file).convert("RGB")) for file in files[start : start + 32]])
        features.append(model.forward_features(batch).half().numpy())
tokens = np.concatenate(features)
np.save(f"{out}-patch.npy", tokens[:, 1:])
np.save(f"{out}-cls.npy", tokens[:, 0])
"""

STEPS = """
import json, sys, time
began = time.perf_counter()
seconds = {}
def took(step):
    global began
    seconds[step], began = time.perf_counter() - began, time.perf_counter()
import torch
took("import torch")
import timm
took("import timm")
from pathlib import Path
from extract.datasets import open_images
from extract.encoders import load_encoder
from extract.requests import Request
from extract.run import create
from extract.writing import Settings
took("other imports")
images, weights, out, name = sys.argv[1:]
encoder = load_encoder(name, checkpoint=weights)
took("weights")
images = open_images(images)
took("list of images")
request = Request.resolve(encoder, images)
request.spec
took("names and shapes")
spent = []
create(request, Path(out), Settings(spent=spent.append))
took("extraction")
stages = dict(spent[0].seconds)
seconds["the set, begun and published"] = seconds.pop("extraction") - sum(stages.values())
print(json.dumps({**seconds, **stages}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="16 images, one round: under a minute, and no evidence")
    parser.add_argument("--images", default="16,100,500")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="vit_small_patch16_224")
    given = parser.parse_args()
    sizes, rounds = ([16], 1) if given.quick else ([int(n) for n in given.images.split(",")], given.rounds)
    ratios = {}
    with tempfile.TemporaryDirectory(prefix="beyondcls-benchmark-") as scratch:
        folder = Path(scratch)
        weights = folder / "weights.safetensors"
        save_file(timm.create_model(given.model, num_classes=0).state_dict(), weights)
        for n in sizes:
            images = write_images(folder / f"images-{n}", n)
            seconds: dict[str, list[float]] = {"plain": [], "extract": []}
            steps: list[dict[str, float]] = []
            for number in range(rounds):
                steps.append(run("steps", images, weights, folder / f"steps-{n}-{number}", given.model).printed)
                for way in ("plain", "extract") if number % 2 == 0 else ("extract", "plain"):
                    seconds[way].append(run(way, images, weights, folder / f"{way}-{n}-{number}", given.model).seconds)
            medians = {way: statistics.median(taken) for way, taken in seconds.items()}
            ratios[f"short_{n}"] = medians["plain"] / medians["extract"]
            said = ", ".join(
                f"{way} {medians[way]:.2f} s ({min(taken):.2f} to {max(taken):.2f})" for way, taken in seconds.items()
            )
            print(f"{n} images: {said}; {1 / ratios[f'short_{n}']:.2f} times as long")
            for step in steps[0]:
                print(f"    {statistics.median(taken[step] for taken in steps):6.2f} s  {step}")
    conclude(ratios, rounds >= 3)


def write_images(folder: Path, n: int) -> Path:
    """JPEGs, all in one class."""
    (folder / "all").mkdir(parents=True)
    for i in range(n):
        (folder / "all" / f"{i:06}.jpg").write_bytes(photograph(i))
    return folder


def run(way: str, images: Path, weights: Path, out: Path, model: str) -> Footprint:
    scripts = {"plain": PLAIN, "steps": STEPS}
    command = ["extract", "--encoder", model, "--checkpoint", str(weights), "--data", str(images), "--out", str(out)]
    if way in scripts:
        return footprint([sys.executable, "-c", scripts[way], str(images), str(weights), str(out), model])
    return footprint([sys.executable, "-m", "pipelines.cli", *command])


if __name__ == "__main__":
    main()
