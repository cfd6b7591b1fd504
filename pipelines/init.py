"""`beyondcls init`: a project for one's own images and encoders, in a folder of its own."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from store import BeyondClsError
from store.errors import unknown

TRAIN, TEST = ("train", "training"), ("test", "val", "valid", "validation")
HEADS = ("cls", "average", "abmilp")
IGNORING = (".dvcignore", ".gitignore")

Folder = Annotated[Path, typer.Argument(help="where the project is to be, or is")]
Images = Annotated[
    Path | None, typer.Option(help="folder with train and test (or val), each with a folder per class, or a published data set")
]
Encoders = Annotated[
    list[str] | None, typer.Option(help="a name (`beyondcls encoders`, timm's), or FILE.py:FUNCTION; repeated for several")
]
Heads = Annotated[list[str] | None, typer.Option(help=f"an aggregator; repeated for several  [default: {' '.join(HEADS)}]")]

PARAMS = """\
# What `dvc repro` and `beyondcls run` compute. `beyondcls params` shows the resulting values.

data: {data} # holds a folder for each of `datasets`
datasets: {datasets}

# name -> model (of `beyondcls encoders` or timm, FILE.py:FUNCTION), checkpoint (a file of weights), mean, std, …; `{{}}` where
# the name says it all
encoders:
{encoders}

# name -> aggregator, its options, and what differs from `probe`; your own are files of the folder heads: "heads/mine.py:Mine"
heads: {heads}

probe:
  seeds: [0, 1, 2]
  epochs: 100
  batch_size: 256
  base_lrs: [0.03, 0.1, 0.3, 1] # of a batch of 256; one is chosen for each head, on images held out of the training set
  weight_decays: [0, 0.001, 0.01]
  held_out: 0.2
"""
# What dvc.yaml reads and has no default for; `code/readers` has no results.
OTHERS = """
primary: null # or what is compared first, declared in advance: { encoder: NAME, head: NAME, over: NAME }
other_probes: code/readers # or a folder with DATASET/ENCODER/HEAD of other runs, which the report shows with these
other_studies: code/readers # the same for STUDY/ENCODER/HEAD
"""
README = """\
# How good are these encoders?

`params.yaml` says which images, encoders and heads. Computed and drawn they are by

```sh
{commands}
```

The page is report/index.html, its tables are in report/tables. Add an encoder or a head to params.yaml and give the command
again: what is there is kept. `beyondcls run` computes the same files without DVC.
"""
COMMANDS = "git init && dvc init # once\ndvc repro"


def main(
    folder: Folder = Path(),
    data: Images = None,
    encoder: Encoders = None,
    head: Heads = None,
) -> None:
    """Write params.yaml, dvc.yaml and what belongs to them, for your own images and encoders; nothing is overwritten.

    A .gitignore or .dvcignore that is there gets lines more, a README.md stays as it is.

    Asks on a terminal for what is not given.
    """
    if data is None:
        data = Path(typer.prompt("Folder of the images, with train and test in it"))
    encoder = encoder or typer.prompt("Encoders, with spaces", default="vit_small_patch16_224.dino").split()
    for file in write_project(folder, data, encoder, head or HEADS):
        typer.echo(f"wrote {file}")
    enter = f"cd {folder}\n" if folder.resolve() != Path.cwd() else ""
    typer.echo(f"\nNow\n{enter}{COMMANDS}\nor, without DVC\n{enter}beyondcls run")


def write_project(folder: Path, data: Path, encoders: Sequence[str], heads: Sequence[str]) -> list[Path]:
    """Write the files of a project, and return their paths.

    Args:
        data: folder of one data set, with its splits.
        encoders: names of models, or FILE.py:FUNCTION.
        heads: as of `probe --head`: `[NAME=]AGGREGATOR[:option=value,…]`, or FILE.py:CLASS.

    Raises:
        BeyondClsError: there are no such images, an unknown head, a name that cannot be one of a file, or a file is there.
    """
    from pipelines.parameters.params import check_name

    splits = _splits(data)
    check_name(f"the folder {data}", data.resolve().name)
    if folder.resolve().is_relative_to(data.resolve()):
        raise BeyondClsError(f"{folder} is in {data}, whose files are the images; give a folder outside it")
    params = PARAMS.format(
        data=_path_in_project(data.resolve().parent, folder),
        datasets=f"[{data.resolve().name}]" if not splits else f"{{ {data.resolve().name}: {_inline_yaml(splits)} }}",
        encoders="\n".join(f"  {name}: {_inline_yaml(entry)}" for name, entry in _named_encoders(encoders).items()),
        heads=_inline_yaml(_named_heads(heads)),
    )
    return write_pipeline(folder, params)


def write_pipeline(folder: Path, params: str) -> list[Path]:
    """Write the files of a project whose params.yaml has this text, and return their paths.

    Of what git and DVC are to ignore the lines are added that are missing; a README.md that is there is left as it is.

    Raises:
        BeyondClsError: another of them is there already.
    """
    from pipelines.parameters.stages import PIPELINE, shipped

    pipeline = shipped(PIPELINE).read_text(encoding="utf-8")
    texts = {
        "params.yaml": params + OTHERS,
        PIPELINE: _pipeline_without_source(pipeline),
        ".dvcignore": shipped(".dvcignore").read_text(encoding="utf-8"),
        ".gitignore": "".join(f"/{name}/\n" for name in _output_folders(pipeline)),
        "README.md": README.format(commands=COMMANDS),
    }
    there = [name for name in texts if os.path.lexists(folder / name)]
    if refused := [name for name in there if (name not in IGNORING and name != "README.md") or (folder / name).is_symlink()]:
        raise BeyondClsError(f"{folder} has {' and '.join(refused)} already; give another folder, or remove what is not needed")
    folder.mkdir(parents=True, exist_ok=True)
    for name in {*there} & {*IGNORING}:
        texts[name] = _add_missing_lines((folder / name).read_text(encoding="utf-8"), texts[name])
    if "README.md" in there:
        del texts["README.md"]
    changed = [name for name, text in texts.items() if name not in there or (folder / name).read_text(encoding="utf-8") != text]
    for name in changed:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return [folder / name for name in changed]


def _add_missing_lines(text: str, more: str) -> str:
    """A text with the lines of another that it lacks, except comments."""
    missing = [line for line in more.splitlines() if line and not line.startswith("#") and line not in text.splitlines()]
    return "\n".join([text.rstrip("\n"), *missing, ""]).lstrip("\n") if missing else text


def _splits(data: Path) -> dict[str, str]:
    """What the splits of a data set are called, where that is not train and test."""
    from extract.datasets import form_of

    if not data.is_dir():
        raise BeyondClsError(f"there is no folder {str(data)!r}, expected one with images, in train and test")
    found = {
        split: next((name for name in names if (data / name).exists()), split)
        for split, names in (("train", TRAIN), ("test", TEST))
    }
    for split in found.values():
        form_of(str(data), split)
    return {split: name for split, name in found.items() if name != split}


def _named_encoders(encoders: Sequence[str]) -> dict[str, dict[str, str]]:
    """Entries by name: a model's own where it can be one, else what remains of FILE.py:FUNCTION or package:name/of/model."""
    entries: dict[str, dict[str, str]] = {}
    for model in encoders:
        name = re.sub(r"[^\w.+-]", "-", re.split(r"[:/]", model)[-1]).strip("-.") or "encoder"
        if name in entries:
            raise BeyondClsError(
                f"encoders {entries[name].get('model', name)} and {model} would both be {name}; give one of them alone"
            )
        entries[name] = {} if name == model else {"model": model}
    return entries


def _named_heads(heads: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Entries by name, as `probe --head` names heads."""
    from pipelines.parameters.heads import AskedHead, folders_of
    from probe.aggregators import AGGREGATORS, is_custom

    asked = {folder: AskedHead.from_text(text) for folder, text in folders_of(heads).items()}
    for head in asked.values():
        if head.name not in AGGREGATORS and not is_custom(head.name):
            raise BeyondClsError(unknown("aggregator", head.name, AGGREGATORS))
    return {folder: {"aggregator": head.name, **head.own} for folder, head in asked.items()}


def _inline_yaml(entries: dict[str, Any]) -> str:
    """YAML in one line."""
    import yaml

    return yaml.safe_dump(entries, default_flow_style=True, sort_keys=False, width=10_000).strip()


def _path_in_project(path: Path, folder: Path) -> str:
    """A folder as params.yaml names it: as seen from the project where it is inside, else from the root."""
    return path.relative_to(folder.resolve()).as_posix() if path.is_relative_to(folder.resolve()) else path.as_posix()


def _pipeline_without_source(pipeline: str) -> str:
    """dvc.yaml for a folder without the program's source: digests of the code are looked up each time, in a second or two."""

    watched = r"^( +)deps: \[extract, heads, pipelines, probe, store, params.yaml\]$"
    written = re.sub(watched, r"\1always_changed: true", pipeline, flags=re.M)
    if written == pipeline:
        raise BeyondClsError("dvc.yaml of this installation has no stage `code` of the known form; install beyondcls again")
    return written


def _output_folders(pipeline: str) -> list[str]:
    """Folders below which the stages write."""
    import yaml

    stages = [stage.get("do", stage) for stage in yaml.safe_load(pipeline)["stages"].values()]
    outs = [out for stage in stages for kind in ("outs", "metrics", "plots") for out in stage.get(kind, ())]
    return sorted({(next(iter(out)) if isinstance(out, dict) else out).split("/")[0] for out in outs})
