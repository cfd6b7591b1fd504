"""`dvc`, but for how it reads and writes dvc.lock, again after each stage: by C code. Run as a script, or in a process forked.

DVC keeps comments in YAML files by a parser in pure Python. Of a `dvc repro` that computes nothing it takes two thirds of the
time, and dvc.lock has no comments. Other files are read as ever: they are YAML 1.2, with other numbers than 1.1.
"""

import os
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import yaml


def dump(data: Any, stream: TextIO) -> None:
    yaml.dump(data, stream, Dumper=yaml.CSafeDumper, sort_keys=False)


def run(arguments: Sequence[str]) -> int:
    from dvc.cli import main
    from dvc.utils.serialize import _yaml

    plain = _yaml.parse_yaml

    def parse(text: str, path: Any, typ: str = "safe") -> Any:
        return yaml.load(text, yaml.CSafeLoader) or {} if str(path).endswith("dvc.lock") else plain(text, path, typ)

    yaml.CSafeDumper.add_representer(OrderedDict, yaml.CSafeDumper.represent_dict)
    _yaml.parse_yaml, _yaml.parse_yaml_for_update, _yaml._dump = parse, parse, dump
    return main(list(arguments))


def run_in(folder: Path, environment: Mapping[str, str], arguments: Sequence[str], shown: str) -> None:
    """End this process as DVC ends in a folder; what it says goes to a file."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(shown, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.exit(run(arguments))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
