"""Parameters of training as tables of options."""

from collections.abc import Mapping
from typing import Any

from pipelines.parameters.options import Option, numbers

# As the command line and params.yaml have them: fields of `probe.recipe.Recipe`, which has the defaults, …
OF_A_RECIPE = {
    "epochs": Option(int, "passes over the training images"),
    "batch_size": Option(int, "images of an optimiser step"),
    "rows_at_once": Option(int, "images computed at once", "a batch"),
    "optimiser": Option(str, "lars, sgd or adamw"),
    "base_lr": Option(float, "learning rate of a batch of 256, scaled linearly"),
    "momentum": Option(float, "of sgd and lars; beta 1 of adamw"),
    "weight_decay": Option(float, "λ of the optimiser"),
    "warmup_epochs": Option(int, "in which the learning rate rises, before half a cosine to zero"),
    "order": Option(str, "of the images: shared by all seeds, or own, one pass for each"),
    "drop_last": Option(bool, "leave out the images after an epoch's last whole batch", flags="--drop-last/--no-drop-last"),
}
# … further parameters of a single head, …
OF_A_HEAD = {
    "preset": Option(
        str,
        "the paper's mae-lars, mae-lars-large, small-sgd; ep-lars of the efficient probing benchmark; or adamw, ours. Replaces "
        "the recipe in params.yaml",
    ),
    "seeds": Option(list[int], "with commas", "0,1,2"),
    "base_lrs": Option(list[float], "with commas: the best on held-out training images is taken, e.g. 0.01,0.03,0.1"),
    "weight_decays": Option(list[float], "with commas: the best on held-out training images is taken, e.g. 0,0.0001,0.001"),
    "normalisation": Option(str, "before the classifier: batch or none", "batch"),
    "final_norm": Option(bool, "apply the encoder's last LayerNorm to the tokens first", flags="--final-norm/--no-final-norm"),
    "init": Option(str, "start of the classifier: normal, N(0, 0.01²); small, N(0, (2e-5)²); or uniform, as torch's", "normal"),
    "protocol": Option(str, "logistic, knn or ridge instead of gradient steps, for aggregators without parameters"),
}


def _temperatures(option: str, text: str) -> float | tuple[float, ...]:
    values = numbers(option, text)
    return values if len(values) > 1 else values[0]


# … of its protocol, which params.yaml has within it, `protocol: { name: knn, ks: [5], temperature: 0.1 }`: fields of
# `probe.closed.Neighbours`, …
OF_A_PROTOCOL = {
    "ks": Option(
        list[int],
        "numbers of neighbours of --protocol knn, with commas: the best on held-out training images is taken",
        "10,20,100,200",
        flags="--k --ks",
    ),
    "temperature": Option(
        str,
        "of the votes of --protocol knn, with commas: the best on held-out training images is taken",
        "0.07",
        read=_temperatures,
    ),
}
# … and those of a whole run, which all heads of a command share.
OF_A_RUN = {
    "block": Option(int, "block whose tokens are read", "the deepest stored"),
    "views": Option(
        int, "stored views of the training images to use, from view 0 on; 1 is the evaluation crop", "all", least=1
    ),
    "mix_evaluation_view": Option(
        bool,
        "show the evaluation crop beside the random ones, if there are any",
        "crops alone",
        flags="--mix-evaluation-view/--crops-alone",
    ),
    "held_out": Option(float, "share of the training images to select on", "0.1"),
    "converged": Option(
        bool,
        "fit a converged classifier to the vectors of each trained head, too, and record its accuracy beside the head's",
        "where that takes a minute or two at most",
        flags="--converged/--no-converged",
    ),
    "k_shot": Option(int, "train on this many images of each class"),
    "percent": Option(float, "train on this percentage of the images, stratified"),
    "ids": Option(str, "train on the images that this file lists, one id or file name a line, e.g. the list of ImageNet 1 %"),
    "subset_seed": Option(int, "of --k-shot and --percent: one draw of images for all seeds", "each seed draws its own"),
    "placement": Option(str, "of the features: device, memory, stream, or auto: the first that fits", "auto"),
}
# What is measured in each epoch may be logged, too: it changes nothing of what is written, and no digest or recipe has it.
LOGGING = {
    "log": Option(
        list[str],
        "write what each epoch of each seed and setting measures, as it trains, as csv, tensorboard or wandb, into "
        "training_logs in the folder of each head; may be repeated",
        "none",
    ),
}
DRAWS = [0, 1, 2, 3, 4]  # seeds where each draws its own images, and none are given


def draws_images(of_run: Mapping[str, Any]) -> bool:
    """Whether each seed of a run draws its own training images."""
    is_drawn = any(of_run.get(name) is not None for name in ("k_shot", "percent"))
    return is_drawn and of_run.get("subset_seed") is None


# What all heads of a command may share, which `probe` in params.yaml has; and of these, what has one form there.
SHARED = {**OF_A_RECIPE, **OF_A_HEAD, **OF_A_RUN}
CHECKED = {name: option for name, option in SHARED.items() if name != "protocol"}  # a name, or a mapping with its options
# Of these, one excludes the other.
ALTERNATIVES = (
    ("base_lr", "base_lrs"),
    ("weight_decay", "weight_decays"),
    ("k_shot", "percent"),
    ("k_shot", "ids"),
    ("percent", "ids"),
)
# What params.yaml may say of training for one data set, and for one encoder, whose `batch_size` and `views` are extraction's.
OF_A_DATASET = tuple(name for name in SHARED if name not in ("block", "views"))
OF_AN_ENCODER = (
    *("preset", *(name for name in OF_A_RECIPE if name != "batch_size")),
    *("seeds", "base_lrs", "weight_decays", "init", "block"),
)
