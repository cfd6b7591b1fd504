"""How workers load the encoder."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.encoders import Encoder


@dataclass(frozen=True)
class Loading:
    """Loads the encoder of a command once more, in another process.

    Attributes:
        name, arguments: of `load_encoder`.
        options: of COMPUTING.
    """

    name: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]

    def __call__(self, device: str) -> "Encoder":
        """The encoder on a device, ready to run. What there is to note about it, the command has said."""
        from extract.encoders import load_encoder
        from pipelines.parameters.requested import place_encoder
        from store.errors import BeyondClsWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BeyondClsWarning)
            encoder = load_encoder(self.name, **self.arguments)
        place_encoder(encoder, self.options, device)
        return encoder
