"""Options of `beyondcls detect` that its results depend on, which params.yaml may have under dense.detect.DATASET."""

from pathlib import Path

from pipelines.parameters.options import Option

# Fields of `probe.detection.recipe.DetectionRecipe`, …
OF_A_RECIPE = {
    "epochs": Option(int, "passes over the training images", least=1),
    "batch_size": Option(int, "images of a step", least=1),
    "optimiser": Option(str, "adamw or sgd"),
    "lr": Option(float, "peak learning rate"),
    "weight_decay": Option(float, "λ of the optimiser; norms and biases have none"),
    "warmup_steps": Option(int, "in which the learning rate rises", least=0),
    "schedule": Option(str, "step: a tenth from 3/4 of the epochs on, a hundredth from 11/12 on; or cosine, to zero"),
    "clip": Option(float, "largest norm of the gradient", "no limit"),
}
# … of `probe.detection.recipe.DetectorOptions`, …
OF_A_DETECTOR = {
    "width": Option(int, "channels of the pyramid and of the masks' head", least=1),
    "anchors": Option(list[int], "side of the anchors of 4 or 5 levels, in pixels of a frame with 16 a patch"),
    "box_features": Option(int, "width of the layers that classify a region", least=1),
    "mask_layers": Option(int, "convolutions before masks are predicted", least=1),
    "proposals": Option(int, "regions an image that training keeps; evaluation keeps half", least=2),
    "samples": Option(int, "regions an image that the loss is computed from", least=1),
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
    "seeds": Option(list[int], "with commas; a detector each", "0"),
    "views": Option(list[int], "stored views of the training images, with commas; 0 is the evaluation crop", "0"),
    "block": Option(int, "block whose tokens are read", "the deepest stored"),
    "ids": Option(Path, "train on the images that this file lists, one id or name a line"),
    "test_ids": Option(Path, "measure on the images that this file lists, one id or name a line"),
    "placement": Option(str, "of the tokens: device, memory, stream, or auto: the first that fits", "auto"),
}
OF_DETECTION = {**OF_A_RUN, **OF_A_RECIPE, **OF_A_DETECTOR}
