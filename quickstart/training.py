"""A run: a model, its optimiser, how far they got, and the checkpoint from which a stopped run goes on."""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from extract.encoders.weights import read_checkpoint
from probe.optim import learning_rate
from quickstart.classifier import ClsClassifier
from quickstart.mae import MAE
from quickstart.mocov3 import MoCoV3
from store import BeyondClsError

Model: TypeAlias = MAE | MoCoV3 | ClsClassifier


class Run:
    """A model, its optimiser, and how far they got.

    `recipe`: epochs (of each cycle of the learning rate: a warm restart between two, arXiv 1608.03983), batch, base_lr (the
    peak learning rate of AdamW), weight_decay (of matrices), warmup (share of a cycle in which the learning rate rises) and
    seed. The same recipe on the same images and hardware gives the same weights, whether the run was stopped or not.

    Args:
        groups: of parameters, each with its `weight_decay` and, where it is not 1, the `lr_scale` by which its learning rate
            is multiplied; by default all that are trained, of which matrices decay.
        betas: of AdamW.
    """

    def __init__(
        self,
        model: Model,
        recipe: Mapping[str, Any],
        groups: Sequence[dict[str, Any]] | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
    ):
        self.model, self.recipe = model, dict(recipe)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        if groups is None:
            groups = [
                {"params": [p for p in self.trained if p.ndim > 1], "weight_decay": recipe["weight_decay"]},
                {"params": [p for p in self.trained if p.ndim <= 1], "weight_decay": 0.0},
            ]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe["base_lr"], betas=betas)
        self.generator = torch.Generator().manual_seed(recipe["seed"])
        self.seconds, self.curve = 0.0, list[dict[str, Any]]()

    def epoch(self, images: Tensor, labels: Tensor | None = None) -> None:
        """One pass over `images` [n, 3, 32, 32] uint8, in a newly drawn order; the last incomplete batch is left out.

        Args:
            labels: [n], for a model that is trained on them.
        """
        start, total, done = time.perf_counter(), 0.0, len(self.curve)
        batch = self.recipe["batch"]
        steps = len(images) // batch
        order = torch.randperm(len(images), generator=self.generator)
        for step in tqdm(range(steps), desc=f"epoch {done + 1}/{sum(self.recipe['epochs'])}", mininterval=10):
            progress = cycle_progress(done + step / steps, self.recipe["epochs"])
            rows = order[step * batch : (step + 1) * batch].to(images.device)
            targets = () if labels is None else (labels[rows],)
            total += self.step((images[rows].float() / 255, *targets), progress)
        self.seconds += time.perf_counter() - start
        self.curve.append({"epoch": done + 1, "loss": round(total / steps, 5)})

    def step(self, batch: Sequence[Tensor], progress: float) -> float:
        """Take one step of the optimiser on images in 0...1, and labels if the model needs them; returns the loss.

        Raises:
            BeyondClsError: the loss is not a finite number.
        """
        for group in self.optimiser.param_groups:
            rate = learning_rate(progress, self.recipe["base_lr"], epochs=1, warmup=self.recipe["warmup"])
            group["lr"] = rate * group.get("lr_scale", 1.0)
        loss_of: Callable[..., Tensor] = self.model.loss  # of images, and of labels if it takes them
        loss = loss_of(*batch, self.generator, progress)
        if not torch.isfinite(loss):
            raise BeyondClsError(
                f"the loss is {loss.item()} in epoch {len(self.curve) + 1}, expected a finite number; "
                f"lower --base-lr (now {self.recipe['base_lr']})"
            )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 3.0)
        self.optimiser.step()
        self.model.after_step(progress)
        return loss.item()

    def save(self, file: Path) -> None:
        """All at once: a run that is killed while it saves leaves the file as it was."""
        partial = file.with_suffix(".partial")
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        facts = {"recipe": self.recipe, "epoch": len(self.curve), "seconds": self.seconds, "curve": self.curve}
        torch.save({**state, **facts, "generator": self.generator.get_state()}, partial)
        partial.replace(file)

    def resume(self, file: Path) -> None:
        """From a run of the same recipe, or of one with fewer cycles.

        Raises:
            BeyondClsError: the recipes differ otherwise, or it is no checkpoint.
        """
        state = read_checkpoint(file)
        cycles = len(state["recipe"]["epochs"])
        shortened = self.recipe | {"epochs": self.recipe["epochs"][:cycles]}
        other = {name: value for name, value in state["recipe"].items() if shortened.get(name) != value}
        if other:
            ours = {name: self.recipe.get(name) for name in other}
            raise BeyondClsError(
                f"{file} was left by a run with {_listed(other)}, this one has {_listed(ours)}; "
                "give the same options, or another --checkpoint"
            )
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.seconds, self.curve = state["seconds"], state["curve"]


def cycle_progress(epoch: float, cycles: Sequence[int]) -> float:
    """How far (0...1) a fractional `epoch` of the whole run is in its cycle; `cycles` are their lengths in epochs."""
    for cycle in cycles[:-1]:
        if epoch < cycle:
            return epoch / cycle
        epoch -= cycle
    return epoch / cycles[-1]


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def hardware(device: torch.device) -> str:
    """`NVIDIA H200`, or `1 thread of AMD EPYC-Milan Processor`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    n = torch.get_num_threads()
    return f"{n} thread{'s' * (n > 1)} of {models[0] if models else platform.machine()}"
