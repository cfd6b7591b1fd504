"""Options of `beyondcls detect` that its results depend on, which params.yaml may have under dense.detect.DATASET."""

from pathlib import Path

from pipelines.parameters.options import Option, options_of
from pipelines.parameters.params import integers
from probe.detection.options import DetectorOptions
from probe.detection.recipe import DetectionRecipe

OF_A_RECIPE = options_of(DetectionRecipe, clip={"default": "no limit"})
OF_A_DETECTOR = options_of(DetectorOptions, masks={"default": "masks where the set has them"})
# What a run reads.
# … and what a run reads.
OF_A_RUN = {
    "preset": Option(
        str, "v1, the protocol of the paper's first version, or small, for hundreds of images; options beside it win"
    ),
    "seeds": Option(str, "with commas; a detector each", "0", read=integers),
    "views": Option(str, "stored views of the training images, with commas; 0 is the evaluation crop", "0", read=integers),
    "block": Option(int, "block whose tokens are read", "the deepest stored"),
    "ids": Option(Path, "train on the images that this file lists, one id or name a line"),
    "test_ids": Option(Path, "likewise: measure on these"),
    "placement": Option(str, "of the tokens: device, memory, stream, or auto: the first that fits", "auto"),
}
OF_DETECTION = {**OF_A_RUN, **OF_A_RECIPE, **OF_A_DETECTOR}
