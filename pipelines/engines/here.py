"""Units are computed by this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.engines.engine import Engine, Watch

if TYPE_CHECKING:
    from extract.encoders import Encoder


@dataclass(frozen=True)
class Here(Engine):
    """No workers. Of several tasks that share a set, each is one of these."""

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> None:
        return None
