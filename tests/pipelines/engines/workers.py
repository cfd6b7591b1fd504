"""Images, and an encoder in a file, which ends badly in the middle of unit 4, the last, as often as it is asked to."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from tests.extract.pictures import picture, write_file

N = 150  # 32 * 4 + 22: five units
GREY = 138  # its image is grey all over, as no other

ENCODER = """\
import json, os, signal, time
from pathlib import Path

import timm
import torch

FOLDER = Path(__file__).parent


def make():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (FOLDER / f"loaded-{os.getpid()}").touch()
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0
    )
    model.patch_embed.register_forward_pre_hook(lambda _, images: see(images[0].detach()))
    return model


def see(images):
    with open(FOLDER / f"loaded-{os.getpid()}", "a") as file:
        file.write(f"{len(images)}\\n")
    asked = json.loads((FOLDER / "ends.json").read_text())
    if asked["how"] == "slow":
        time.sleep(asked["n"] / 10)
    is_grey = ((images - (128 / 255 - 0.5) / 0.5).abs() < 1e-3).all((1, 2, 3))
    for i in range(asked["n"] if is_grey.any() and asked["how"] != "slow" else 0):
        try:
            ended = open(FOLDER / f"ended-{i}", "x")
        except FileExistsError:
            continue
        if asked["how"] == "hang":
            import ray

            ended.write(ray.get_runtime_context().get_node_id())
            ended.close()
            time.sleep(600)
        if asked["how"] == "raise":
            raise RuntimeError("the memory of the GPU is broken")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def write_images(folder: Path) -> None:
    """A folder of pictures."""
    for i in range(N):
        write_file(folder / f"a/{i:04d}.png", picture(i))
    Image.fromarray(np.full((36, 36, 3), 128, np.uint8)).save(folder / f"a/{GREY:04d}.png")


class Load:
    """The encoder's file in a folder.

    Args:
        n: how many batches with the grey image end badly; after these, they go well.
        how: what happens; "slow": every batch takes n tenths of a second more.
    """

    def __init__(self, folder: Path, n: int = 0, how: Literal["kill", "raise", "hang", "slow"] = "kill"):
        self.folder = folder
        write_file(folder / "encoder.py", ENCODER.encode())
        self.ends(n, how)

    def ends(self, n: int, how: str = "kill") -> None:
        (self.folder / "ends.json").write_text(json.dumps({"n": n, "how": how}))

    def seen(self) -> dict[int, int]:
        """Images that each process has computed, by its number."""
        return {
            int(file.name.rpartition("-")[2]): sum(map(int, file.read_text().split())) for file in self.folder.glob("loaded-*")
        }

    def command(self, images: Path, out: str | Path, *options: object) -> tuple[object, ...]:
        """The command, to be given in this folder, that extracts images in shards of 32."""
        sizes = ("--shard-rows", 32, "--batch-size", 8, "--workers", 1, "--device", "cpu")
        given = (*sizes, "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5")
        return ("extract", "--encoder", "encoder.py:make", "--data", images, "--out", out, *given, *options)
