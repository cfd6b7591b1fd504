"""`dvc`, but for how it reads and writes dvc.lock, again after each stage: as JSON, which is YAML. Run as a script, or `main`.

DVC keeps comments in YAML files by a parser in pure Python. Of a `dvc repro` that computes nothing it takes two thirds of the
time, and dvc.lock has no comments. Other files are read as ever: they are YAML 1.2, with other numbers than 1.1. And an
expression of dvc.yaml such as ${item.encoder} is parsed once, not again for each stage.
"""

import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, TextIO

import yaml
from dvc import cli
from dvc.parsing import interpolate
from dvc.utils import strictyaml
from dvc.utils.serialize import _yaml


def dump(data: Any, stream: TextIO) -> None:
    stream.write(json.dumps(data))


def main(arguments: Sequence[str]) -> int:
    """Exit status of `dvc` with these arguments."""
    plain = _yaml.parse_yaml

    def parse(text: str, path: Any, typ: str = "safe") -> Any:
        if not str(path).endswith("dvc.lock"):
            return plain(text, path, typ)
        return json.loads(text) if text.startswith("{") else yaml.load(text, yaml.CSafeLoader) or {}

    _yaml.parse_yaml, _yaml.parse_yaml_for_update, _yaml._dump = parse, parse, dump
    strictyaml.parse_yaml = parse
    interpolate.parse_expr = cache(interpolate.parse_expr)
    return cli.main(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
