"""Options of measures that sections of params.yaml have by entry, beside the names that dvc.yaml puts into commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.options import Option, checked_options
from pipelines.parameters.params import read_params, section

# What results of `beyondcls depth` depend on, beside its sets and maps.
OF_DEPTH = {
    "normals": Option(bool, "the maps are of surface normals, not of depth", flags="--normals"),
    "cls": Option(bool, "put [cls] behind each patch, as DINOv2 does", flags="--cls"),
    "final_norm": Option(bool, "apply the encoder's last norm to the tokens", flags="--final-norm"),
    "block": Option(int, "of the tokens", "the deepest"),
    "min_depth": Option(float, "metres; nearer pixels are ignored", "0.001"),
    "max_depth": Option(float, "metres; farther pixels are ignored", "10"),
    "per_metre": Option(float, "whole numbers of a PNG that are a metre: 1000 for millimetres", "1000"),
    "eigen_crop": Option(
        bool, "measure rows 45-470 and columns 41-600 of NYUv2's images alone, as is usual", flags="--eigen-crop"
    ),
    "epochs": Option(int, "passes over the training images", "20", least=1),
    "batch_size": Option(int, "images of a step", "16", least=2),
    "base_lr": Option(float, "AdamW's peak learning rate for 256 images a step", "0.128"),
    "weight_decay": Option(float, "of AdamW", "0.01"),
    "seeds": Option(list[int], "with commas; each trains a head", "0,1,2"),
    "loss_size": Option(int, "shorter side, in pixels, at which the loss is computed", "the view's", least=1),
}
OF_GEOMETRY = {"images": Option(int, "number of images, the same on every machine", "all", least=1)}
OPTIONS = {"depth": OF_DEPTH, "geometry": OF_GEOMETRY}  # by section
# What dvc.yaml takes from an entry itself.
IN_COMMANDS = {"depth": ("dataset", "encoder", "features", "test", "maps", "test_maps"), "geometry": ("dataset", "encoder")}


def options_of_entry(name: str, entry: str | None, params: Path | None) -> dict[str, Any]:
    """Options that an entry of a section gives; none without an entry.

    Args:
        name: of the section.
        params: the parameter file; params.yaml by default.

    Raises:
        BeyondClsError: there is no such entry, or it has an option that nothing reads, or a value of another type.
    """
    return {} if entry is None else checked_entry(name, entry, read_params(params or Path("params.yaml")))


def checked_entry(name: str, entry: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """As `options_of_entry`, of a file that was read."""
    return checked_options(f"{name}.{entry}", section(params, name, entry), OPTIONS[name], IN_COMMANDS[name])
