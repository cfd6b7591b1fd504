"""Options of `beyondcls detect` that its results depend on, which params.yaml may have under dense.detect.DATASET."""

from pathlib import Path

from pipelines.parameters.options import Option
from pipelines.parameters.params import integers

# Fields of `probe.detection.recipe.DetectionRecipe`, …
OF_A_RECIPE = {
    "epochs": Option(int, "passes over the training images", "12", least=1),
    "batch_size": Option(int, "images of a step", "16", least=1),
    "optimiser": Option(str, "adamw or sgd", "adamw"),
    "lr": Option(float, "peak learning rate", "0.0001"),
    "weight_decay": Option(float, "λ of the optimiser; norms and biases have none", "0.05"),
    "warmup_steps": Option(int, "in which the learning rate rises", "500", least=0),
    "schedule": Option(str, "step: a tenth from 3/4 of the epochs on, a hundredth from 11/12 on; or cosine, to zero", "step"),
    "clip": Option(float, "largest norm of the gradient", "no limit"),
}
# … of `probe.detection.recipe.DetectorOptions`, …
OF_A_DETECTOR = {
    "width": Option(int, "channels of the pyramid and of the masks' head", "256", least=1),
    "anchors": Option(
        str, "side of the anchors of 4 or 5 levels, in pixels of a frame with 16 a patch", "32,64,128,256,512", read=integers
    ),
    "box_features": Option(int, "width of the layers that classify a region", "1024", least=1),
    "mask_layers": Option(int, "convolutions before masks are predicted", "4", least=1),
    "proposals": Option(int, "regions an image that training keeps; evaluation keeps half", "2000", least=2),
    "samples": Option(int, "regions an image that the loss is computed from", "512", least=1),
    "masks": Option(bool, "learn masks beside boxes", "masks where the set has them", flags="--masks/--no-masks"),
    "final_norm": Option(
        bool, "apply the encoder's last LayerNorm to the tokens first", "yes", flags="--final-norm/--no-final-norm"
    ),
}
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
