"""`dvc`, but for how it rewrites dvc.lock, which it does after each stage: by C code. Run as a script, or in a process forked.

DVC keeps comments in YAML files by a parser in pure Python. Of a `dvc repro` that computes nothing it takes two thirds of the
time, and dvc.lock has no comments.
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

    yaml.CSafeDumper.add_representer(OrderedDict, yaml.CSafeDumper.represent_dict)
    _yaml.parse_yaml_for_update, _yaml._dump = _yaml.parse_yaml, dump
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
