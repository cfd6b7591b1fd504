"""What holds for every engine: the options that it declares, the bytes of one process, runs in processes of their own."""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from pipelines.engines import ENGINES, choose_engine
from pipelines.engines.engine import Engine
from pipelines.parameters.engine import ENGINE
from store import BeyondClsError
from tests import forked  # noqa: F401
from tests.folders import files
from tests.pipelines.conftest import command  # noqa: F401
from tests.pipelines.engines.conftest import images, load, whole  # noqa: F401
from tests.pipelines.engines.runs import Watched, runs_in
from tests.pipelines.engines.workers import Load

every = pytest.mark.parametrize("name", ENGINES)


@every
class TestEveryEngine:
    def test_reads_options_that_there_are(self, name: str) -> None:
        assert set(ENGINES[name].options) <= {field.name for field in fields(Engine)} & ENGINE.keys()
        assert ENGINES[name].__doc__ != Engine.__doc__

    def test_refuses_others_on_the_command_line(self, name: str) -> None:
        values = {"tasks": 2, "gpus": 2, "tries": 2, "address": "auto", "sbatch": "-p gpu", "setup": ["module load cuda"]}
        assert values.keys() == ENGINE.keys() - {"on"}
        for option, value in values.items():
            if option in ENGINES[name].options:
                assert getattr(choose_engine({"on": name, option: value}, [option]), option) == value
            else:
                shown = value[0] if isinstance(value, list) else value
                with pytest.raises(BeyondClsError, match=f"--{option} {shown} is not for --on {name}; leave it out, or give"):
                    choose_engine({"on": name, option: value}, [option])

    def test_writes_the_bytes_of_one_process(
        self,
        name: str,
        command: Callable[..., tuple[int, str, str]],  # noqa: F811
        load: Callable[..., Load],  # noqa: F811
        images: Path,  # noqa: F811
        whole: dict[str, bytes],  # noqa: F811
        tmp_path: Path,
    ) -> None:
        if ENGINES[name].cluster:
            pytest.skip(f"tests/pipelines/engines has a test with {ENGINES[name].cluster}")
        loaded = load()
        n = ENGINES[name](device="cpu").n_tasks(5)
        status, out, err = command(*loaded.command(images, "f", "--on", name))
        assert status == 0, out + err
        assert files(tmp_path / "f") == whole
        assert len(loaded.seen()) == 1 + n, "this process, which loads the encoder, too, and each task"

    def test_computes_all_runs_though_one_of_them_fails(self, name: str, tmp_path: Path) -> None:
        if ENGINES[name].cluster:
            pytest.skip(f"tests/pipelines/engines has a test with {ENGINES[name].cluster}")
        runs = runs_in(tmp_path, "a", "bad", "b")
        watched, before = Watched(runs), (os.getcwd(), list(sys.argv))
        ENGINES[name](device="cpu").run_all(watched.agenda)
        assert (os.getcwd(), sys.argv) == before, "they were processes of their own"
        assert (watched.agenda.is_done, watched.agenda.n_done, watched.steps) == (True, 2, [1, 1, 1])
        for run in (runs[0], runs[2]):
            assert (Path(run.name) / "encoders/mae-b16.json").exists()
            assert run.log.read_text().splitlines() == [f"$ {run.command}", f"{run.name}: 1 files"]
            assert f"{run.name}: 1 files" in watched.said
        (problem,) = watched.agenda.problems.values()
        assert problem.startswith(f"there is no parameter file '{tmp_path}/none.yaml'; run in the folder of params.yaml")
