"""`dvc`, but for how it reads and writes dvc.lock, again after each stage: by C code. Run as a script.

DVC keeps comments in YAML files by a parser in pure Python. Of a `dvc repro` that computes nothing it takes two thirds of the
time, and dvc.lock has no comments. Other files are read as ever: they are YAML 1.2, with other numbers than 1.1. And an
expression of dvc.yaml such as ${item.encoder} is parsed once, not again for each stage.
"""

import sys
from collections import OrderedDict
from functools import cache
from typing import Any, TextIO

import yaml
from dvc.cli import main
from dvc.parsing import interpolate
from dvc.utils import strictyaml
from dvc.utils.serialize import _yaml


def dump(data: Any, stream: TextIO) -> None:
    yaml.dump(data, stream, Dumper=yaml.CSafeDumper, sort_keys=False)


if __name__ == "__main__":
    plain = _yaml.parse_yaml

    def parse(text: str, path: Any, typ: str = "safe") -> Any:
        return yaml.load(text, yaml.CSafeLoader) or {} if str(path).endswith("dvc.lock") else plain(text, path, typ)

    yaml.CSafeDumper.add_representer(OrderedDict, yaml.CSafeDumper.represent_dict)
    _yaml.parse_yaml, _yaml.parse_yaml_for_update, _yaml._dump = parse, parse, dump
    strictyaml.parse_yaml = parse
    interpolate.parse_expr = cache(interpolate.parse_expr)
    sys.exit(main(sys.argv[1:]))
