"""Checks of the project in this folder: params.yaml and its data, DVC, and whether weights can be had."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.doctor.machine import PARAMS, Finding, Machine, State
from pipelines.parameters.commands import check_commands
from pipelines.parameters.datasets import datasets_of, dense_datasets, images_of, is_missing
from pipelines.parameters.dense import datasets_of_task, of_task
from pipelines.parameters.groups import PLACES, check_groups, params_of_study, studies_of
from pipelines.parameters.heads import GROUPS, heads_of, plans_and_run
from pipelines.parameters.layers import Layer, common_layers, values_of
from pipelines.parameters.measures import OPTIONS as MEASURES
from pipelines.parameters.measures import checked_entry
from pipelines.parameters.params import primary_of, section
from pipelines.parameters.recipes import OPTIONS
from pipelines.sharing.places import checked_store
from store.errors import BeyondClsError, unknown
from store.user_code import file_of

SECTIONS = (
    *("data", "datasets", "store", "encoders", "extract", "probe", "divergence", "by_block", "primary", "composed", "whole"),
    *("few_shot", "geometry", "similarity", "norms", "scores", "correspondence", "retrieval", "tracking", "depth"),
    *("composed_dense", "dense", "localised", "other_probes", "other_studies", *GROUPS, *PLACES),
)
HUB, SERVER = "https://huggingface.co", "https://dl.fbaipublicfiles.com"  # of timm's weights; of MAE's, DINO's and others


def params_yaml(machine: Machine) -> Iterator[Finding]:
    """What a command would refuse, after hours perhaps, is a problem; a section that nothing reads, or absent data, a note."""
    from pipelines import detect, segment

    if (params := machine.params) is None:
        return
    folder, mistakes = machine.folder, list[str]()

    def tried(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments) or {}
        except BeyondClsError as error:
            mistakes.append(str(error))
            return {}

    encoders, of_studies = tried(section, params, "encoders"), tried(studies_of, params)
    heads, datasets, dense = (tried(names_of, params) for names_of in (heads_of, datasets_of, dense_datasets))
    tried(lambda: checked_store(section(params, "store")))
    tried(check_commands, params)
    if primary := tried(primary_of, params):
        named = ("encoder", primary.encoder, encoders), ("head", primary.head, heads), ("head", primary.over, heads)
        mistakes += [f"primary: {unknown(kind, name, known)}" for kind, name, known in named if name not in known]
    for name, dataset in ((name, of) for name in encoders for of in (None, *dense) if find_spec("timm")):
        tried(_check_encoder, machine, name, dataset)
    for name in heads:
        tried(_check_head, folder, name, params)
    for name, (group, _) in of_studies.items():
        study = tried(section, params, group, name)
        for place, known in (("encoder", encoders), ("joined", encoders), ("dataset", datasets)):
            if place in study and str(study[place]) not in known:
                mistakes.append(unknown(f"{place} of study {name!r}", str(study[place]), known))
        of_study, layer = tried(params_of_study, params, name) or ({"heads": {}}, None)
        for head in of_study["heads"]:
            tried(_check_head, folder, head, of_study, layer, f" of study {name!r}")
    settings = {"segment": lambda o: segment.settings(o, 224), "detect": lambda o: detect.settings(o.get("preset"), o)}
    for task, options in OPTIONS.items():
        for name in tried(datasets_of_task, params, task):
            tried(lambda o=options, t=task, n=name: settings[t](values_of(of_task(params, t, o, n))) and None)
    for measure in MEASURES:
        for name in tried(section, params, measure):
            tried(checked_entry, measure, name, params)
    notes = [unknown("section", name, SECTIONS) for name in params if name not in SECTIONS]
    for name in (*datasets, *dense) if not mistakes else ():
        place = images_of(params, name, None)["data"]
        is_made = name in section(params, "composed_dense") and Path(place) == Path("composed", name)
        if not is_made and is_missing(str(folder / place)):
            notes.append(f"the images of {name} are not at {place}; put them there, or correct data")
    found = f"encoders: {len(encoders)}, heads: {len(heads)}, studies: {len(of_studies)}; mistakes: {len(set(mistakes))}"
    state: State = "problem" if mistakes else "note" if notes else "ok"
    yield Finding("params.yaml", state, found, "\n".join(dict.fromkeys([*mistakes, *notes])))


def _check_encoder(machine: Machine, name: str, dataset: str | None) -> None:
    """Refuse an encoder, on a data set of dense tasks, that cannot be loaded as described; nothing is run or fetched."""
    from extract.encoders import ENCODERS, checked_family, load_encoder, timm_names
    from extract.encoders.libraries import is_of_library
    from extract.requests import known_statistics
    from extract.transform import CHECKS, checked_transform
    from pipelines.parameters.extraction import from_params

    loading, options = from_params(machine.folder / PARAMS, name, dataset)
    known_statistics(options.get("statistics"))
    checked_transform({option: loading.get(option) for option in CHECKS})
    checked_family(loading.get("family"))
    model = str(loading.get("model") or name)
    files = {kind: loading.get(kind) for kind in ("checkpoint", "register_neurons")}
    for kind, file in {**files, "model": file_of(model)}.items():
        if file is not None and not (machine.folder / str(file)).is_file():
            raise BeyondClsError(f"{kind} of encoder {name!r} is {str(file)!r}, no file here; correct it, or pull it")
    is_named = is_of_library(model) or model in ENCODERS or model.partition(".")[0] in timm_names()
    if file_of(model) is None and not is_named:  # either not a ViT or an unusual one: building it tells
        load_encoder(name, random_seed=0, model=loading.get("model"), arguments=loading.get("arguments"))


def _check_head(folder: Path, name: str, params: dict[str, Any], study: Layer | None = None, of: str = "") -> None:
    """Refuse a head, of a study or of a group, that cannot be trained as described; files of the user's are not run."""
    from probe.aggregators import AGGREGATORS

    plans, _ = plans_and_run([name], params, {}, {}, common_layers(params, study=study))
    if study is None:
        check_groups(params, plans, runs_files=False)
    (aggregator,) = (plan.head.aggregator for plan in plans.values())
    file, what = file_of(aggregator), f"aggregator of head {name!r}{of}"
    if file is None and aggregator not in AGGREGATORS:
        raise BeyondClsError(unknown(what, aggregator, AGGREGATORS))
    if file is not None and not (folder / file).is_file():
        raise BeyondClsError(f"{what} is {aggregator!r}, but there is no file {file}; correct it")


def dvc(machine: Machine) -> Iterator[Finding]:
    """What DVC says of itself, its cache and remotes, and of what is missing here, for which it reads dvc.yaml."""
    folder = machine.folder.resolve()
    root = next((f for f in (folder, *folder.parents) if (f / ".dvc").is_dir()), None)
    # Files in the current folder do not count as packages (-P).
    command = [sys.executable, "-P", "-m", "dvc"] if find_spec("dvc") else [shutil.which("dvc") or ""]
    if not command[0]:
        yield Finding("dvc", "note", "DVC is not installed; `dvc repro` and its cache need it, nothing else", "pip install dvc")
        return

    def answer(question: str) -> str:
        quiet = {**os.environ, "DVC_NO_ANALYTICS": "1"}
        asked = [*command, *question.split()]
        done = subprocess.run(asked, cwd=folder, env=quiet, capture_output=True, text=True, timeout=40, check=False)
        if done.returncode:
            remedy = "correct .dvc/config or dvc.yaml, or add what it misses to params.yaml (an empty section: NAME: {})"
            raise BeyondClsError(f"`dvc {question}` fails: {' '.join((done.stderr or done.stdout).split())[-400:]}; {remedy}")
        return done.stdout

    about = answer("doctor")
    found = f"{about.splitlines()[0]}, {f'project {root}' if root else 'but this folder is in no project of DVC'}"
    yield Finding("dvc", "ok" if root else "note", found, "go to the folder of dvc.yaml; or: git init && dvc init")
    if root is None:
        return
    settings = dict(line.partition("=")[::2] for line in answer("config --list").splitlines())
    if works := re.search(r"^Cache types: (?!<)(.+)", about, re.MULTILINE):
        configured = re.findall(r"\w+", settings.get("cache.type", "reflink,copy"))  # DVC's default
        kind = next((kind for kind in configured if kind == "copy" or kind in works[1]), None)
        state: State = "problem" if kind is None else "note" if kind == "copy" else "ok"  # copies take their room twice
        found = f"cache.type {','.join(configured)}, {kind or 'none'} of which is used; here work: {works[1]}"
        yield Finding("dvc cache", state, found, "dvc config cache.type hardlink,symlink,copy && dvc checkout --relink")
    urls = {name[7:-4]: url for name, url in settings.items() if re.fullmatch(r"remote\..+\.url", name)}
    default, remedy = settings.get("core.remote"), "dvc remote add -d NAME URL, dvc push here, dvc pull elsewhere"
    found = f"default: {default}; defined: {', '.join(f'{name} {url}' for name, url in urls.items()) or 'none'}"
    yield Finding("dvc remote", "ok" if default else "note", found, remedy)
    with suppress(subprocess.TimeoutExpired):  # where DVC has terabytes to look through
        if absent := json.loads(answer("data status --json")).get("uncommitted", {}).get("deleted"):
            found = f"{len(absent):,} of dvc.lock are not here: {', '.join(absent[:3])}{', …' if len(absent) > 3 else ''}"
            yield Finding("dvc files", "note", found, "dvc pull, where a remote has them; else `dvc repro` makes them again")


def weights(machine: Machine) -> Iterator[Finding]:
    """Whether weights can be fetched, unless those of all encoders in params.yaml are files. Proxies are used."""
    encoders = section(machine.params or {}, "encoders").values()
    if machine.offline or (encoders and all((entry or {}).get("checkpoint") for entry in encoders)):
        return
    remedy = (
        "give files that were fetched elsewhere by --checkpoint (`beyondcls encoders` says where they are); for timm's models "
        "copy ~/.cache/huggingface (HF_HOME) from a machine that has them, and export HF_HUB_OFFLINE=1"
    )
    for address, whose in ((os.environ.get("HF_ENDPOINT") or HUB, "timm's models"), (SERVER, "MAE, DINO and others")):
        why = ""
        try:
            request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "beyondcls"})
            urllib.request.build_opener().open(request, timeout=5).close()
        except (OSError, ValueError) as error:  # an answer is one even if it refuses, unless a proxy wants a password
            is_answer = isinstance(error, urllib.error.HTTPError) and error.code != 407
            why = "" if is_answer else str(getattr(error, "reason", error))
        found = f"weights of {whose}: {address} {f'cannot be reached: {why}' if why else 'answers'}"
        yield Finding("weights", "note" if why else "ok", found, remedy)
