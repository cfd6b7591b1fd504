"""Scripts of cells (`# %%`), which editors run as notebooks: what is in them, and as pages of the documentation.

    python docs/percent.py docs/gallery/*.py

runs scripts in the present folder and writes what they print into their output cells.
"""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """A part of a script: "code", "markdown", or "output" of the code before it; of the latter two the text without `# `."""

    kind: str
    text: str
    line: int


def cells(script: str) -> list[Cell]:
    """The cells of a script in their order.

    Raises:
        ValueError: something is before the first cell, or a cell is of an unknown kind.
    """
    found: list[Cell] = []
    starts = [*re.finditer(r"^# %%(?: \[(\w+)\])?\n", script, re.MULTILINE)]
    if not starts or starts[0].start() > 0:
        raise ValueError("expected a script that begins with a cell, # %%")
    for start, end in zip(starts, [*(s.start() for s in starts[1:]), len(script)], strict=True):
        kind, text = start[1] or "code", script[start.end() : end].strip("\n")
        if kind not in ("code", "markdown", "output"):
            raise ValueError(f"a cell is of the kind {kind!r}, expected code, markdown or output")
        if kind != "code":
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        found.append(Cell(kind, text, script[: start.end()].count("\n") + 1))
    return found


def executed(script: Path) -> Iterator[tuple[Cell, str]]:
    """Runs a script in the present folder: each cell, and what its code prints."""
    variables = {"__name__": "__main__"}
    for cell in cells(script.read_text(encoding="utf-8")):
        with redirect_stdout(io.StringIO()) as out:
            if cell.kind == "code":
                exec(compile("\n" * (cell.line - 1) + cell.text, str(script), "exec"), variables)
        yield cell, out.getvalue()


def page(script: Path) -> str:
    """The script as a page in Markdown."""
    fences = {"code": "```python\n{}\n```", "output": "```text\n{}\n```", "markdown": "{}"}
    body = "\n\n".join(fences[cell.kind].format(cell.text) for cell in cells(script.read_text(encoding="utf-8")))
    return f"{body}\n\nThe script: `docs/gallery/{script.name}`, to be started in the folder of the repository.\n"


def with_outputs(script: Path) -> str:
    """The script with an output cell behind each code cell that prints."""
    parts = []
    for cell, printed in executed(script):
        if cell.kind != "output":
            text = "\n".join(f"# {line}".rstrip() for line in cell.text.splitlines()) if cell.kind == "markdown" else cell.text
            parts.append(f"# %%{' [markdown]' * (cell.kind == 'markdown')}\n{text}\n")
        if printed:
            parts.append("\n".join(["# %% [output]", *(f"# {line}".rstrip() for line in printed.splitlines()), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_outputs(Path(name)), encoding="utf-8")
