"""What holds for every check of the machine, on one that has nothing and on one whose folder is wrong."""

import pytest

from pipelines.doctor import CHECKS
from pipelines.doctor.command import MARKS, run
from pipelines.doctor.machine import Finding, Machine

PARAMS = {
    "nothing": None,
    "no YAML": "a: [",
    "other values": "store: 7\nencoders: [x]\n",
    "places": "store: {root: common, cache: {folder: near, gb: 1}}",
}
every = pytest.mark.parametrize("name", CHECKS)


@every
class TestEveryCheck:
    @pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
    def test_findings_have_its_name_and_a_remedy(self, name, params, tmp_path, monkeypatch):
        """A remedy with all that is not well; the folder is left as it is."""
        monkeypatch.chdir(tmp_path)
        if params is not None:
            (tmp_path / "params.yaml").write_text(params)
        for finding in run({name: CHECKS[name]}, Machine(tmp_path, offline=True)):
            assert isinstance(finding, Finding)
            assert finding.name.startswith(name)
            assert finding.state in MARKS
            assert finding.found
            assert "check itself failed" not in finding.found
            assert finding.state == "ok" or finding.remedy or finding.found.count(";") or "expected" in finding.found
        assert [path.name for path in tmp_path.iterdir()] == (["params.yaml"] if params is not None else [])

    def test_asks_nothing_of_a_network_when_offline(self, name, tmp_path, monkeypatch):
        (tmp_path / "params.yaml").write_text("store: {root: 's3://bucket/folder'}")

        def refuse(*_, **__):
            raise AssertionError("the network was asked")

        monkeypatch.setattr("socket.socket.connect", refuse)
        monkeypatch.setattr("socket.getaddrinfo", refuse)
        for finding in run({name: CHECKS[name]}, Machine(tmp_path, offline=True)):
            assert "the network was asked" not in finding.found
