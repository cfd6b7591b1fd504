"""How images are opened, what is kept of them, and what an encoder sees of them, as tables of options."""

from pathlib import Path

from pipelines.parameters.options import Option
from pipelines.parameters.params import named_values

OWN = "the encoder's own"
# Arguments of `open_images`. All but the split may also be in the entry of a data set in params.yaml, `ids` as `train_ids`.
IMAGES = {
    "form": Option(str, "tars, folder, csv, npz, tables, function, imagenet, …; seen from the data by default"),
    "split": Option(str, "split of a published data set, of arrays or tables, or of what a function gives, e.g. train"),
    "classes": Option(Path, "file of class names, one a line; classes.txt beside tars by default"),
    "allow_left_out": Option(
        bool,
        "go on where more than a few of the images cannot be taken (broken links, formats that are not read, …)",
        flags="--allow-left-out",
    ),
    "max_pixels": Option(int, "of the largest image that is decoded", "178,956,970, as Pillow has it", least=1),
    "ids": Option(str, "take the images that this file lists, an id or file name a line, e.g. ImageNet 1 %", "all"),
    "data_arguments": Option(
        list[str],
        "of the function that gives the images, e.g. year=2021; may be repeated",
        flags="--data-argument",
        read=named_values,
    ),
    "allow_outside": Option(
        bool, "let paths of a .csv that you wrote yourself lead out of its folder", flags="--allow-outside"
    ),
}


def _statistics(option: str, text: str) -> tuple[str, ...] | None:
    return {"all": None, "none": ()}.get(text, tuple(text.split(",")))


def _sides(option: str, text: str) -> int | str:
    """The side of a square, or the text for height and width, which `load_encoder` checks."""
    return int(text) if text.isdecimal() else text


# What the encoder sees of an image: also arguments of `load_encoder`.
TRANSFORM = {
    "mean": Option(list[float], "of red, green and blue, pixels being 0 to 1, e.g. 0.5,0.5,0.5", OWN),
    "std": Option(list[float], "what they are divided by, e.g. 0.5,0.5,0.5", OWN),
    "crop_pct": Option(float, "share of the resized image's side that is kept", f"{OWN}, mostly 0.875"),
    "crop_mode": Option(
        str, "center, squash (whole image to a square, with --crop-pct 1), border, slide (views are windows)", OWN
    ),
    "interpolation": Option(str, "bicubic, bilinear, …", OWN),
    "input_size": Option(str, "side of the square input in pixels, or HEIGHTxWIDTH, e.g. 336x448", OWN, read=_sides),
    # Of the images rather than of an encoder, so the entry of a data set in params.yaml may have them, too.
    "scale": Option(
        list[float],
        "values that become black and white in images with more than 8 bits, e.g. 0,65535; what is beyond is cut",
        "such images are refused",
    ),
    "orientation": Option(
        str,
        "stored: pixels as they are in the file; exif: turned upright as EXIF says, and boxes and label maps with them",
        "stored",
    ),
    "cut": Option(
        str,
        "what resizes: pillow; torch (faster, values a few levels off at most); draft (as torch, with large JPEGs decoded at a "
        "fraction of their size)",
        "pillow",
    ),
}
# Arguments of `Request.resolve`, which may also be under `extract` in params.yaml.
FEATURES = {
    "blocks": Option(list[int], "blocks whose tokens are kept, e.g. 3,-1; negative from the end", "as the encoder is read"),
    "statistics": Option(list, "attention statistics: all (built-in), none, or names with commas", "all", read=_statistics),
    "maps": Option(bool, "keep attention maps of these blocks", "maps"),
    "vectors": Option(
        str,
        "all: keep [cls] and the average patch of every block too; kept: [cls] of --blocks; only: [cls] and the average patch "
        "of --blocks, without patch tokens",
        "kept",
    ),
    "truths": Option(
        str,
        "label maps and instances to keep: segmentation, instances, with commas; all that the data set has; or none",
        "all for forms of dense tasks, none for others",
    ),
    "views": Option(
        int,
        "of each image: the evaluation crop, and random crops beside it; with --crop-mode slide as many windows as the "
        "longest image needs",
        "1",
        least=1,
    ),
    "drop_path": Option(
        float, "stochastic depth of random crops: the rate, below 1, at which branches of the last block are left out", "0"
    ),
    "dtype": Option(str, "of stored tokens: float32, float16, bfloat16, float8_e4m3, int8, int4", "float16"),
    "shard_rows": Option(int, "images per shard file, a multiple of 32", "as suits the set"),
}
