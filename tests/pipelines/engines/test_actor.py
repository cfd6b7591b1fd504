"""What an actor answers, without a cluster."""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.handing import Handed, Job, Record
from pipelines.engines.actor import Actor
from tests.extract.tiny import tiny_encoder
from tests.folders import files
from tests.pipelines.engines.workers import Load, extracted


def test_records_of_two_units_at_a_time(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    def one_actor(job: Job, todo: Mapping[int, Sequence[str]], add: Callable[[Record], None]) -> None:
        actor = Actor()
        assert actor.begin(job, Load(tmp_path), "cpu", 1) == {}
        with ThreadPoolExecutor(2) as calls:
            for answer in calls.map(actor.compute, [Handed(unit, missing) for unit, missing in todo.items()]):
                add(answer["record"])

    extracted(images, tmp_path / "f", engine=one_actor)
    assert files(tmp_path / "f") == whole


def test_failures_are_answers(images: ImageSet, tmp_path: Path) -> None:
    def one_actor(job: Job, todo: Mapping[int, Sequence[str]], add: Callable[[Record], None]) -> None:
        actor = Actor()
        assert actor.begin(job, Load(tmp_path, n=1, how="raise"), "cpu", 1) == {}
        with ThreadPoolExecutor(2) as calls:
            failed, other = calls.map(actor.compute, [Handed(unit, todo[unit]) for unit in (4, 2)])
        assert failed["problem"].startswith("RuntimeError: the memory of the GPU is broken (")
        assert (failed["unit"], failed["is_final"]) == (4, False)
        assert other.keys() <= {"warnings"}, "not written, and no failure"
        nowhere = Job(**{**vars(job), "folder": str(tmp_path / "none")})
        answer = actor.begin(nowhere, Load(tmp_path), "cpu", 1)
        assert answer["is_final"]
        assert "workers need the folder of the project, images and feature sets under the same path" in answer["problem"]
        answer = actor.begin(job, lambda _: Encoder("tiny", tiny_encoder(seed=1).model, {}), "cpu", 1)
        assert re.search(
            r"would write set \w+, the command is for \w+: its tiny is another; install the same", answer["problem"]
        )
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted(images, tmp_path / "f", engine=one_actor)
