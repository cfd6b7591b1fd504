"""Scripts of cells (`# %%`), which editors run as notebooks: what is in them, and as pages of the documentation."""

import re
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


def page(script: Path) -> str:
    """The script as a page in Markdown."""
    fences = {"code": "```python\n{}\n```", "output": "```text\n{}\n```", "markdown": "{}"}
    body = "\n\n".join(fences[cell.kind].format(cell.text) for cell in cells(script.read_text(encoding="utf-8")))
    return f"{body}\n\nThe script: `docs/gallery/{script.name}`, to be started in the folder of the repository.\n"
