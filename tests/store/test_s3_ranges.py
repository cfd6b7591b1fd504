"""Ranges of S3 come through obstore, byte for byte as through s3fs; what it cannot do, s3fs does and says as ever."""

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from store import StoreError
from store.places.object_store import ObjectStore
from store.places.s3 import s3_store
from tests.forked import status
from tests.s3 import moto, seaweedfs, served

pytest.importorskip("obstore", reason="obstore is not installed")
ROOT, NAME, CONTENT = "s3://bucket/a b/ü%20#", "patch/c/0 é", bytes(range(256)) * 40


@pytest.fixture(scope="module", params=[moto, seaweedfs])
def fs(request: pytest.FixtureRequest) -> Iterator[Any]:
    with served("bucket", request.param) as fs:
        fs.pipe_file(f"{ROOT}/{NAME}", CONTENT)
        yield fs


@pytest.mark.usefixtures("fs")
def test_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ObjectStore(ROOT)
    monkeypatch.setattr(place._fs, "cat_file", None)
    assert place.content(NAME) == CONTENT
    assert type(place.content(NAME)) is bytes
    for start, stop in ((0, 1), (255, 4097), (5000, len(CONTENT)), (7, 7)):
        assert place.range(NAME, start, stop) == CONTENT[start:stop]


@pytest.mark.usefixtures("fs")
@pytest.mark.parametrize(("name", "start"), [("missing", 0), (NAME, len(CONTENT) - 5), (NAME, len(CONTENT) + 5)])
def test_the_same_failures(name: str, start: int) -> None:
    messages = set()
    for without_obstore in (True, False):
        place = ObjectStore(ROOT)
        place._ranges = None if without_obstore else place._ranges
        with pytest.raises(StoreError) as failure:
            place.range(name, start, start + 10)
        messages.add(str(failure.value))
    assert len(messages) == 1


@pytest.mark.usefixtures("fs")
def test_where_it_fails_and_s3fs_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of another region, say: obstore is asked again if it has answered before, and else it is not."""

    class Fails:
        asked = 0

        def get_range(self, *_: Any, **__: Any) -> bytes:
            self.asked += 1
            raise OSError("301 Moved Permanently\nand more")

    failing = Fails()
    monkeypatch.setattr("store.places.s3.s3_store", lambda *_: failing)
    place = ObjectStore(ROOT)
    with pytest.warns(RuntimeWarning, match=r"through s3fs, .*fails \(301 Moved Permanently\); if AWS_DEFAULT_REGION"):
        assert place.range(NAME, 3, 5) == CONTENT[3:5]
    with warnings.catch_warnings(action="error"):
        assert place.range(NAME, 3, 5) == CONTENT[3:5]
        assert failing.asked == 1
        place = ObjectStore(ROOT)
        with monkeypatch.context() as patch:
            patch.setattr(Fails, "get_range", lambda *_, **__: CONTENT[:5])
            place.range(NAME, 0, 5)
        for n in (2, 3):
            assert place.range(NAME, 3, 5) == CONTENT[3:5]
            assert failing.asked == n


def read_elsewhere(place: ObjectStore, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    place._fs.cat_file = None
    assert place.range(NAME, 3, 5) == CONTENT[3:5]


@pytest.mark.usefixtures("fs")
def test_in_another_process_and_after_a_fork() -> None:
    """A place that was used before a fork refuses, as s3fs does; a new one reads. Neither waits for threads that are gone."""
    place = ObjectStore(ROOT)
    place.range(NAME, 3, 5)
    assert status(read_elsewhere, place, dict(os.environ)) == 0
    if not (child := os.fork()):
        signal.alarm(20)
        try:
            try:
                place.range(NAME, 3, 5)
            except StoreError as error:
                if "fork" in str(error) and ObjectStore(ROOT).range(NAME, 3, 5) == CONTENT[3:5]:
                    os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert place.range(NAME, 3, 5) == CONTENT[3:5], "the process that was forked goes on"


PROFILE = """[profile other]
region = eu-central-1
aws_access_key_id = mine
aws_secret_access_key = secret
aws_session_token = token
endpoint_url = http://127.0.0.1:1
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    (tmp_path / "config").write_text(PROFILE)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    yield monkeypatch
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()


def made(**options: Any) -> Any:
    return s3_store(fsspec.filesystem("s3", **options), "bucket/folder")


KEYS = {"key": "k", "secret": "s"}
HERE = {"endpoint_url": "https://h", "region_name": "r"}
FAR = {"region_name": "eu-central-1"}


@pytest.mark.parametrize(
    ("environment", "options", "asked"),
    [
        ({}, {**KEYS, "client_kwargs": HERE}, ("https://h", "r", "false", "k", "s", None)),
        ({}, KEYS, ("https://s3.amazonaws.com", "us-east-1", "false", "k", "s", None)),
        ({}, {"anon": True, "client_kwargs": FAR}, ("https://s3.eu-central-1.amazonaws.com", "eu-central-1", "true")),
        (
            {"AWS_PROFILE": "other", "AWS_ENDPOINT_URL_S3": "http://elsewhere"},
            {},
            ("http://elsewhere", "eu-central-1", "false", "mine", "secret", "token"),
        ),
    ],
)
def test_asks_where_s3fs_does(
    environment: dict[str, str], options: dict[str, Any], asked: tuple[Any, ...], configured: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        configured.setenv(name, value)
    store = made(**options)
    keys = store.credential_provider and store.credential_provider()
    config = [store.config[name] for name in ("endpoint_url_s3", "region", "skip_signature")]
    assert (*config, *(keys[name] for name in ("access_key_id", "secret_access_key", "token") if keys)) == asked


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"version_aware": True},
        {"client_kwargs": {"verify": False}},
        {"s3_additional_kwargs": {"SSECustomerKey": "x"}},
        {"config_kwargs": {"proxies": {"http": "http://h"}}},
    ],
)
@pytest.mark.usefixtures("configured")
def test_what_is_left_to_s3fs(options: dict[str, Any]) -> None:
    assert made(key="k", secret="s") is not None
    assert made(key="k", secret="s", **options) is None
