"""params.yaml, as the other commands read it."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipelines.doctor import parameters
from pipelines.doctor.dvc_makes import unmade
from pipelines.doctor.dvc_reads import missing
from pipelines.doctor.machine import Machine
from pipelines.parameters.groups import GROUPS
from pipelines.parameters.params import from_yaml, read_params
from pipelines.parameters.studies import PLACES
from store.errors import BeyondClsError

ROOT = Path(__file__).parents[3]
PARAMS = read_params(ROOT / "params.yaml")
PRIMARY = "encoders: {mae-b16: {}}\ncls_heads: {cls: {}}\nheads: {abmilp: {}}\nprimary: {encoder: "


def check(folder, text):
    (folder / "params.yaml").write_text(text)
    return parameters.check(Machine(folder))


def test_none(tmp_path):
    finding = parameters.check(Machine(tmp_path))
    assert (finding.state, finding.remedy) == ("ok", "")


def test_that_of_the_repository():
    finding = parameters.check(Machine(ROOT))
    assert (finding.state, finding.remedy) == ("ok", "")
    params = read_params(ROOT / "params.yaml")
    n_heads = sum(len(params[name]) for name in ("cls_heads", "heads", "own_heads"))
    n_studies = len(params["studies"]) + len(params["block_studies"])
    assert finding.found == f"encoders: {len(params['encoders'])}, heads: {n_heads}, studies: {n_studies}"


@pytest.mark.parametrize(("text", "says"), [("a: [1", "is not YAML"), ("[1]", "holds list, expected sections")])
def test_unreadable(tmp_path, text, says):
    with pytest.raises(BeyondClsError, match=says):
        check(tmp_path, text)


def test_section_that_nothing_reads(tmp_path):
    finding = check(tmp_path, "encoder: {a: {}}")
    assert finding.state == "note"
    assert "unknown section 'encoder'; did you mean 'encoders'?" in finding.remedy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("encoders: {mae-b17: {}}", "unknown encoder 'mae-b17'"),
        ("data: it's", "a shell would read as more than one value"),
        ("encoders: {mine: {model: resnet18}}", "mine is not a ViT"),
        ("encoders: {mine: {model: mae-b16, checkpoint: none.pt}}", "'none.pt', which is not a file here"),
        ("encoders: {mine: {model: mae-b16, family: joint}}", "unknown family 'joint'; did you mean 'joint embedding'?"),
        ("encoders: {mae-b16: {weight: 3}}", "did you mean 'weights'?"),
        ("encoders: {mae-b16: {crop_mode: centre}}", "unknown crop mode 'centre'; did you mean 'center'?"),
        ("encoders: [mae-b16]", "expected names and values"),
        ("encoders: {mae-b16: {}}\nextract: {block: 3}", "did you mean 'blocks'?"),
        ("heads: {a: {aggregator: abmlip}}", "unknown aggregator of head 'a' 'abmlip'; did you mean 'abmilp'?"),
        ("heads: {abmilp: {dept: 2}}", "did you mean 'depth'?"),
        ("heads: {abmilp: {}}\nprobe: {epoch: 3}", "did you mean 'epochs'?"),
        ("primary: abmilp", "primary is 'abmilp', expected an encoder and two heads of this file"),
        (f"{PRIMARY}mea, head: abmilp, over: cls}}", "primary: unknown encoder 'mea'; known: mae-b16"),
        (f"{PRIMARY}mae-b16, head: abmil, over: cls}}", "primary: unknown head 'abmil'; did you mean 'abmilp'"),
        (f"{PRIMARY}mae-b16, head: abmilp, over: clz}}", "primary: unknown head 'clz'; did you mean 'cls'"),
        ("own_heads: {gem: {aggregator: 'heads/my_pool.py:GeM'}}", "there is no file"),
        ("studies: {s: {heads: {gem: {aggregator: 'my_pool.py:GeM'}}}}", "study 's': aggregator of head 'gem'"),
        ("heads: {gem: {aggregator: 'heads/../my_pool.py:GeM'}}", "expected a file in heads/"),
        ("cls_heads: {both: {aggregator: cls-average}}", "move it to heads"),
        ("encoders: {mae-b16: {}}\nextract: {statistics: [cls_slef]}", "unknown attention statistic 'cls_slef'"),
        ("encoders: {mae-b16: {}}\nextract: {statistics: all}", "statistics is 'all', expected a list"),
        ("heads: {a: {}}\ncls_heads: {a: {}}", "'a' is in heads and in another section"),
        (
            "encoders: {mae-b16: {}}\nstudies: {s: {study: poolings, encoder: mea, heads: {cls: {}}}}",
            "unknown encoder of study 's'",
        ),
        ("studies: {s: {study: poolings}}", "has no heads"),
        ("block_studies: {s: {study: blocks, stored: last}}", "block_studies.s.stored is 'last', expected integers"),
        ("studies: {s: {study: poolings, heads: {a: {aggregator: abmlip}}}}", "study 's': unknown aggregator"),
        ("store: {rot: x}", "did you mean 'root'?"),
        ("datasets: {a: {prset: small-sgd}}", "unknown parameter in datasets.a 'prset'; did you mean 'preset'?"),
        ("datasets: {a: {metric: mAP}}", "datasets.a.metric is 'mAP', expected top1 or map"),
        ("datasets: cifar10", "datasets in the parameter file is 'cifar10', expected names"),
        ("encoders: {mae-b16: {amp: 16}}", "encoders.mae-b16.amp is 16, expected a name"),
        ("encoders: {mae-b16: {blocks: 3}}", "encoders.mae-b16.blocks is 3, expected a list; give [3]"),
    ],
)
def test_mistakes(tmp_path, text, says):
    finding = check(tmp_path, text)
    assert finding.state == "problem"
    assert says in finding.remedy
    assert finding.found.endswith("; mistakes: 1")


def test_own_head_is_looked_for_and_not_run(tmp_path):
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads/my_pool.py").write_text("raise SystemExit('run')")
    assert check(tmp_path, "own_heads: {gem: {aggregator: 'heads/my_pool.py:GeM', p: 4.0}}").state == "ok"


def test_heads_of_studies_are_in_no_group(tmp_path):
    study = "studies: {s: {study: x, dataset: a, heads: {cls: , cls-attention: }}}"
    assert check(tmp_path, f"datasets: [a]\n{study}").state == "ok"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "datasets: {b: {}}\ndivergence: [e]",
            r"is a list, .*; write divergence: \{e: \{dataset: b, encoder: e\}\}",
        ),
        ("datasets: [a]\ntables: {t: {reads: probes}}", "tables is not read any more; .* paper/tables.yaml"),
        ("datasets: [a]\ncompose: {seed: 0}", r"compose is of one data set, .*; write composed: \{a: "),
    ],
)
def test_what_was_written_otherwise_before(tmp_path, text, says):
    finding = check(tmp_path, text)
    assert finding.state == "note"
    assert re.search(says, finding.remedy)


DENSE = "data: d\nencoders: {dino-s16: {}}\n"


@pytest.mark.parametrize(
    ("dense", "says"),
    [
        ("{datasets: [shop]}", r"write \{shop: \{\}\}"),
        ("{data: d, datasets: {shop: {form: coc}}}", "unknown form of dense.datasets.shop 'coc'; did you mean 'coco'"),
        ("{data: d, datasets: {shop: {crop_mode: squish}}}", "unknown crop mode 'squish'; did you mean 'squash'"),
        ("{datasets: {shop: {}}}", "dense.data in the parameter file is None, expected the folder that holds 'shop'"),
        (
            "{data: d, datasets: {shop: {}}, segment: {shop: {protocol: [liner]}}}",
            "unknown protocol 'liner'; did you mean 'lin",
        ),
        ("{data: d, datasets: {shop: {}}, detect: {shop: {preset: v2}}}", "unknown preset of detection 'v2'"),
        ("{data: d, datasets: {shop: {}}, detect: {shup: {}}}", "unknown data set in dense.detect 'shup'; did you mean 'shop'"),
    ],
)
def test_mistakes_in_dense(dense, says, tmp_path):
    finding = check(tmp_path, f"{DENSE}dense: {dense}")
    assert finding.state == "problem"
    assert re.search(says, finding.remedy), finding.remedy


def test_data_sets_of_dense_tasks_are_missed(tmp_path):
    dense = "dense: {data: streets, datasets: {shop: {}}, segment: {shop: {}}}"
    finding = check(tmp_path, f"{DENSE}{dense}")
    assert (finding.state, finding.remedy) == (
        "note",
        "dense.datasets.shop is read from streets/shop, which is not here; correct dense.data, or put it there",
    )
    (tmp_path / "streets/shop").mkdir(parents=True)
    assert check(tmp_path, f"{DENSE}{dense}").state == "ok"
    made = f"{DENSE}{dense.replace('streets', 'composed')}\ncomposed_dense: {{shop: {{photographs: x}}}}"
    assert check(tmp_path, made).state == "ok"


class TestWhatTheStagesRead:
    """Compared with dvc.yaml: a file of an earlier version lacks what later stages read."""

    def test_each_name_is_missed_and_the_line_to_add_suffices(self):
        finding = re.compile(r"there is no (\w+), which dvc\.yaml reads; add a line: (.*)")
        matches = [finding.fullmatch(line) for line in missing(ROOT, {})]
        assumed = {"by_block", "divergence", "composed", "composed_dense", "dense", "whole", "localised", *GROUPS, *PLACES}
        unread = {"store", "extract", "probe"}  # by stages: they watch the whole file, or a recipe that is made from it
        assert {match[1] for match in matches} == {*PARAMS} - assumed - unread
        assert "encoders: {}" in [match[2] for match in matches]
        assert not [*missing(ROOT, {name: value for match in matches for name, value in from_yaml(match[2]).items()})]

    def test_a_section_without_content(self):
        (line,) = missing(ROOT, PARAMS | {"whole": None, "probe": None})
        assert line == "there is no whole, which dvc.yaml reads; add a line: whole: {}"

    def test_what_an_entry_says(self):
        lines = missing(ROOT, PARAMS | {"studies": {"s": {"study": "x", "encoder": "a"}}, "by_block": {"b": None}})
        assert [*lines] == [
            "studies.s has no dataset, which dvc.yaml reads; add dataset: cifar10",
            "studies.s has no joined, which dvc.yaml reads; add joined: a",
            "by_block.b has no dataset, which dvc.yaml reads; add dataset: cifar10",
            "by_block.b has no encoder, which dvc.yaml reads; add encoder: quickstart-mae",
        ]

    def test_in_the_folder_of_a_project(self, tmp_path):
        (tmp_path / "dvc.yaml").write_text("stages: {a: {foreach: '${b}', do: {cmd: echo}}}")
        finding = check(tmp_path, "datasets: []")
        assert (finding.state, finding.remedy) == ("note", "there is no b, which dvc.yaml reads; add a line: b: {}")
        (tmp_path / "dvc.yaml").write_text("vars: [more.yaml]\nstages: {a: {cmd: 'echo ${b}'}}")
        assert check(tmp_path, "datasets: []").state == "ok", "values come from elsewhere, too"
        (tmp_path / "dvc.yaml").write_text("vars: [{b: {}}]\nstages: {a: {foreach: '${b}', do: {cmd: echo}}}")
        assert check(tmp_path, "datasets: []").state == "ok"


class TestWhatTheStagesMake:
    """Compared with what they read: `dvc repro` would stop at the latter, after hours of other stages."""

    @pytest.mark.parametrize("file", ["params.yaml", "paper/params.yaml"])
    def test_all_of_it(self, file):
        assert not [*unmade(ROOT, read_params(ROOT / file))]

    @pytest.mark.parametrize(
        ("changed", "unmade_paths", "where"),
        [
            (
                {"studies": {}},
                [(f"divergence.{name}", f"studies/cifar10/selection/{name}") for name in PARAMS["divergence"]],
                "studies",
            ),
            (
                {"localised": {"a": {"dataset": "cifar10", "encoder": "quickstart-mae", "features": "mea", "head": "abmilp"}}},
                [("localised.a", "receipts/mea.json"), ("localised.a", "features/mea/zarr.json")],
                "encoders, datasets, dense.datasets, whole or composed",
            ),
            (
                {"dense": {"data": "composed", "datasets": {"other": {}}}},
                [("code-dense@other", "composed/other")],
                "composed or composed_dense",
            ),
            ({"localised": {}, "divergence": {}}, [], ""),
        ],
    )
    def test_less(self, changed, unmade_paths, where, tmp_path):
        shutil.copy(ROOT / "dvc.yaml", tmp_path)
        assert [*unmade(tmp_path, PARAMS | changed)] == [
            f"{entry} reads {path}, which no stage makes; correct it, or add what makes it to {where}"
            for entry, path in unmade_paths
        ]

    def test_in_the_folder_of_a_project(self, tmp_path):
        stages = {"a": {"cmd": "x", "outs": ["made/a"]}, "b": {"cmd": "x", "deps": ["made/a", "made/b", "given"]}}
        (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        assert check(tmp_path, "datasets: []").remedy.startswith("b reads made/b, which no stage makes")
        (tmp_path / "made").mkdir()
        (tmp_path / "made/b").touch()
        assert check(tmp_path, "datasets: []").remedy == "", "it is here"


def test_encoders_of_timm_need_no_weights(tmp_path):
    known = "encoders: {vit_tiny_patch16_224.augreg_in21k: {}, mine: {model: flexivit_small}}"  # the latter has to be built
    assert check(tmp_path, known).state == "ok"


def test_without_timm(tmp_path, monkeypatch):
    monkeypatch.setattr(parameters, "find_spec", lambda name: None)
    finding = check(tmp_path, "encoders: {mae-b17: {}}")
    assert finding.state == "note"
    assert "timm is not installed" in finding.remedy
