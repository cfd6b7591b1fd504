"""Replaces a stage's command: its output is a digest of its input. Copied into the project that is edited.

Run by `python -S -E`, and without a parser of YAML: starting one takes longer than all that is done here.
"""

import argparse
import hashlib
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("params", "deps", "outs"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    given = parser.parse_args()
    digest = hashlib.sha256()
    for name in given.params:
        digest.update(value_of(name, Path("params.yaml").read_text()).encode())
    for dep in map(Path, given.deps):
        for file in sorted(f for f in (dep, *dep.rglob("*")) if f.is_file()):
            content = file.read_bytes()
            digest.update(str(json.loads(content)["images"]).encode() if file.parts[:2] == ("code", "data") else content)
    for out in map(Path, given.outs):
        of_folder = (
            [out / split / "content.png" for split in ("train", "test")] if out.parts[0] == "composed" else [out / "content"]
        )
        for file in [out] if out.suffix else of_folder:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{out}: {digest.hexdigest()}\n")


def value_of(name: str, text: str) -> str:
    """The lines of a parameter, in a file as project.edit writes it."""
    lines, indent = ["", *text.splitlines()], ""
    for key in name.split("."):
        (begin,) = (i for i, line in enumerate(lines) if i and line.startswith(f"{indent}{key}:"))
        inside = (i for i in range(begin + 1, len(lines)) if not lines[i].startswith((f"{indent} ", f"{indent}-")))
        lines, indent = lines[begin : next(inside, len(lines))], f"{indent}  "
    return "\n".join(lines)


if __name__ == "__main__":
    main()
