"""Options of `beyondcls segment` that its results depend on, which params.yaml may have under dense.segment.DATASET."""

from pipelines.parameters.options import Option

OF_SEGMENTATION = {
    "protocol": Option(list[str], "knn, logistic or linear; several times for several", "all"),
    "at": Option(
        list[str],
        "resolution of the compared label maps beside the grid of patches: original, or the shorter side of the view's frame "
        "in pixels; may be repeated",
        "original",
    ),
    "ks": Option(list[int], "numbers of neighbours, with commas", "1,3,10,30"),
    "metric": Option(list[str], "of k-NN: cosine or euclidean", "both"),
    "cs": Option(list[float], "C of logistic regression, with commas", "8 from 1e-6 to 1e5"),
    "max_passes": Option(int, "of logistic regression over the training patches", "500", least=2),
    "standardise": Option(bool, "scale channels for k-NN and logistic regression", "scaled", flags="--standardise/--as-stored"),
    "epochs": Option(int, "of the linear head", "20", least=1),
    "batch_size": Option(int, "images of a step of the linear head", "16", least=2),
    "base_lrs": Option(list[float], "of AdamW for a batch of 256, with commas: the best is taken", "0.032,0.128,0.512"),
    "weight_decays": Option(list[float], "of AdamW, with commas: the best is taken", "0.01"),
    "seeds": Option(list[int], "of the linear head, with commas", "0,1,2"),
    "loss_size": Option(int, "shorter side of the frame of the linear head's loss, pixels", "the view's", least=8),
    "views": Option(int, "stored views of the training images for the linear head", "all", least=1),
    "block": Option(int, "block whose tokens are read", "the deepest stored"),
    "final_norm": Option(
        bool, "apply the encoder's last LayerNorm to the tokens first", "as stored", flags="--final-norm/--no-final-norm"
    ),
    "held_out": Option(float, "share of the training images to select on", "0.1"),
    "save_maps": Option(int, "images of which predicted label maps are saved as PNG", "0", least=0),
    "placement": Option(str, "of the tokens: device, memory, stream, or auto: the first that fits", "auto"),
}
