"""What the encoder's own pooling gives."""

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class EncoderPooling(Aggregator):
    """The vector that an encoder with a pooling by attention was trained through (SigLIP, Perception Encoder). No parameters.

    It is made of the last block's tokens after the final norm, by weights that belong to the encoder. Ours, not the paper's,
    whose encoders have none.
    """

    reads = ("pooled",)

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(features["pooled"], None)
