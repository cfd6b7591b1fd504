"""What commands print: names and messages of others cannot steer a terminal, and no secret of an address is shown."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pipelines.process.command_log import Wrapped
from store.shown import shown


class _Shown(Wrapped):
    """A text stream on which everything is `shown`; a carriage return that begins a text stays: bars of other packages do so.

    Attributes:
        unshown: the stream itself.
    """

    def __init__(self, stream: TextIO):
        super().__init__(stream)
        self.unshown: TextIO = getattr(stream, "unshown", stream)

    def write(self, text: str) -> int:
        begin = "\r" if text.startswith("\r") else ""
        self._stream.write(begin + shown(text[len(begin) :]))
        return len(text)


@contextmanager
def printing_safely() -> Iterator[None]:
    """A context in which what is written to the standard streams, by whomever, is `shown`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Shown(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class SafeConsole(Console):
    """rich's console, of tables, findings and progress bars, which prints the texts that it is given as `shown`.

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
