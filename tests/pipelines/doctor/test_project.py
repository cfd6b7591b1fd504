"""params.yaml as the other commands read it, real projects of DVC, and where weights come from."""

import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.doctor import project
from pipelines.doctor.machine import Finding, Machine
from store.errors import BeyondClsError
from tests.extract.pictures import write_file
from tests.machines.project import ROOT


def params_yaml(folder: Path, text: str) -> Finding:
    (folder / "params.yaml").write_text(text)
    (finding,) = project.params_yaml(Machine(folder))
    return finding


def test_that_of_the_repository_and_none(tmp_path: Path) -> None:
    (finding,) = project.params_yaml(Machine(ROOT))
    assert (finding.state, finding.remedy) == ("ok", "")
    assert list(project.params_yaml(Machine(tmp_path))) == []


PRIMARY = "encoders: {mae-b16: {}}\ncls_heads: {cls: {}}\nheads: {abmilp: {}}\nprimary: {encoder: "
DENSE = "data: d\nencoders: {dino-s16: {}}\ndense: "


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("encoders: {mae-b17: {}}", "'mae-b17'"),
        ("encoders: [mae-b16]", "encoders"),
        ("encoders: {mine: {model: resnet18}}", "mine"),
        ("encoders: {mine: {model: mae-b16, checkpoint: none.pt}}", "none.pt"),
        ("encoders: {mine: {model: 'models/my.py:ViT'}}", "models/my.py"),
        ("encoders: {mine: {model: mae-b16, family: joint}}", "'joint embedding'"),
        ("encoders: {mae-b16: {crop_mode: centre}}", "'center'"),
        ("encoders: {mae-b16: {}}\nextract: {statistics: [cls_slef]}", "'cls_slef'"),
        ("data: it's", "shell"),
        ("store: {rot: x}", "'root'"),
        ("datasets: {a: {prset: small-sgd}}", "datasets.a 'prset'"),
        ("heads: {a: {aggregator: abmlip}}", "'abmilp'"),
        ("heads: {abmilp: {}}\nprobe: {epoch: 3}", "'epochs'"),
        ("heads: {a: {}}\ncls_heads: {a: {}}", "'a' is in heads"),
        ("cls_heads: {both: {aggregator: cls-average}}", "move it to heads"),
        ("own_heads: {gem: {aggregator: 'heads/my_pool.py:GeM'}}", "heads/my_pool.py"),
        ("primary: abmilp", "primary is 'abmilp'"),
        (f"{PRIMARY}mea, head: abmilp, over: cls}}", "encoder 'mea'"),
        (f"{PRIMARY}mae-b16, head: abmilp, over: clz}}", "head 'clz'"),
        ("studies: {s: {study: poolings}}", "no heads"),
        ("studies: {s: {study: x, heads: {a: {aggregator: abmlip}}}}", "head 'a' of study 's'"),
        ("encoders: {mae-b16: {}}\nstudies: {s: {study: x, encoder: mea, heads: {cls: {}}}}", "encoder of study 's'"),
        (f"{DENSE}{{data: d, datasets: {{shop: {{crop_mode: squish}}}}}}", "'squash'"),
        (f"{DENSE}{{data: d, datasets: {{shop: {{}}}}, segment: {{shop: {{protocol: [liner]}}}}}}", "'liner'"),
        (f"{DENSE}{{data: d, datasets: {{shop: {{}}}}, detect: {{shop: {{preset: v2}}}}}}", "'v2'"),
        ("geometry: {a: {image: 3}}", "geometry.a 'image'"),
        # what is not read or not here
        ("encoder: {a: {}}", "'encoders'"),
        ("data: photos\ndatasets: [birds]", "photos/birds"),
        (f"{DENSE}{{data: streets, datasets: {{shop: {{}}}}}}", "streets/shop"),
    ],
)
def test_mistakes_and_what_is_not_read_or_not_here(tmp_path: Path, text: str, named: str) -> None:
    finding, is_note = params_yaml(tmp_path, text), named in ("'encoders'", "photos/birds", "streets/shop")
    assert finding.state == ("note" if is_note else "problem")
    assert finding.found.endswith(f"mistakes: {0 if is_note else 1}")
    assert named in finding.remedy


def test_what_is_here_is_not_run_or_fetched(tmp_path: Path) -> None:
    for folder in ("heads", "photos/birds", "composed"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "heads/my_pool.py").write_text("raise SystemExit('run')")
    heads = "own_heads: {gem: {aggregator: 'heads/my_pool.py:GeM', p: 4.0}}"
    encoders = "encoders: {vit_tiny_patch16_224.augreg_in21k: {}, mine: {model: flexivit_small}}"  # the latter has to be built
    made = "dense: {data: composed, datasets: {shop: {}}}\ncomposed_dense: {shop: {photographs: x}}"
    assert params_yaml(tmp_path, f"data: photos\ndatasets: [birds]\n{heads}\n{encoders}\n{made}").state == "ok"


CONFIG = """[core]
    no_scm = true
    remote = up
[cache]
    type = "hardlink,copy"
['remote "up"']
    url = https://u:hunter2@h/x
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of DVC that has made what it can make."""
    folder = tmp_path_factory.mktemp("project")
    write_file(folder / ".dvc/config", CONFIG.encode())
    (folder / "dvc.yaml").write_text("stages: {a: {cmd: echo 1 > made, outs: [made]}}")
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], cwd=folder, check=True)
    return folder


class TestDvc:
    def found(self, folder: Path) -> dict[str, Finding]:
        return {finding.name: finding for finding in project.dvc(Machine(folder))}

    def test_all_is_well(self, made: Path) -> None:
        found = self.found(made)
        assert {n: finding.state for n, finding in found.items()} == dict.fromkeys(("dvc", "dvc cache", "dvc remote"), "ok")
        assert "hunter2" not in found["dvc remote"].found

    def test_what_is_missing(self, made: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(made, tmp_path / "project")
        (folder / "made").unlink()
        (folder / ".dvc/config").write_text("[core]\n    no_scm = true\n[cache]\n    type = copy\n")
        found = self.found(folder)
        notes = dict.fromkeys(("dvc cache", "dvc remote", "dvc files"), "note")
        assert {name: finding.state for name, finding in found.items()} == {"dvc": "ok", **notes}
        assert "made" in found["dvc files"].found

    def test_what_dvc_refuses_and_a_file_of_its_name(self, made: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(made, tmp_path / "project")
        (folder / ".dvc/config").write_text("[core]\n    no_scm = true\n    remote = down\n")
        (folder / "dvc.py").write_text("raise SystemExit('a file here was taken for the package')")
        with pytest.raises(BeyondClsError, match="'down'"):
            self.found(folder)

    def test_no_dvc(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(project, "find_spec", lambda name: None)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        assert [finding.state for finding in self.found(tmp_path).values()] == ["note"]


@pytest.mark.parametrize(("status", "state"), [(403, "ok"), (407, "note")])
def test_where_weights_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, state: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(project, "SERVER", "http://127.0.0.1:9")  # nobody listens
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert [finding.state for finding in project.weights(Machine(tmp_path))] == [state, "note"]
        server.shutdown()
    (tmp_path / "params.yaml").write_text("encoders: {a: {checkpoint: a.pt}}")
    assert list(project.weights(Machine(tmp_path))) == [], "nothing is fetched"
