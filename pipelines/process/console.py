"""The console on which tables, findings and progress bars are drawn."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from store.shown import shown


class SafeConsole(Console):
    """rich's console with its own colours and movements, which prints the texts that it is given as `shown`.

    Args:
        stderr: on standard error.
        options: as for `Console`.
    """

    def __init__(self, stderr: bool = False, **options: Any):
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(file=getattr(stream, "unshown", stream), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)
