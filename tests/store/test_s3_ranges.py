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
from store.places import place_at
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


def opened(root: str = ROOT) -> ObjectStore:
    place = place_at(root)
    assert isinstance(place, ObjectStore)
    return place


def through_s3fs(root: str = ROOT) -> ObjectStore:
    place = opened(root)
    place._ranges = None
    return place


@pytest.mark.usefixtures("fs")
def test_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    place = opened()
    monkeypatch.setattr(place._fs, "cat_file", None)
    assert place.content(NAME) == CONTENT
    assert type(place.content(NAME)) is bytes
    for start, stop in ((0, 1), (255, 4097), (5000, len(CONTENT)), (7, 7)):
        assert place.range(NAME, start, stop) == CONTENT[start:stop]


@pytest.mark.parametrize(
    ("root", "name", "start", "stop"),
    [
        (ROOT, "missing", 0, 10),
        ("s3://bucket-that-is-not-there/one", NAME, 0, 10),
        (ROOT, NAME, len(CONTENT) - 5, len(CONTENT) + 5),
        (ROOT, NAME, len(CONTENT) + 5, len(CONTENT) + 15),
    ],
)
def test_the_same_failures(fs: Any, root: str, name: str, start: int, stop: int) -> None:
    messages = []
    for place in (through_s3fs(root), opened(root)):
        with pytest.raises(StoreError) as failure:
            place.range(name, start, stop)
        messages.append(str(failure.value))
    assert messages[0] == messages[1]


@pytest.mark.usefixtures("fs")
def test_where_it_fails_and_s3fs_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of another region, say: obstore is asked again if it has answered before, and else it is not."""

    class Fails:
        asked = 0

        def get_range(self, *_: Any, **__: Any) -> bytes:
            self.asked += 1
            raise OSError("301 Moved Permanently\nand more")

    place, failing = opened(), Fails()
    assert place._ranges is not None
    place._ranges._store, place._ranges._is_opened = failing, True
    with pytest.warns(RuntimeWarning, match=r"through s3fs, .*fails \(301 Moved Permanently\); if AWS_DEFAULT_REGION"):
        assert place.range(NAME, 3, 5) == CONTENT[3:5]
    with warnings.catch_warnings(action="error"):
        assert place.range(NAME, 3, 5) == CONTENT[3:5]
        assert failing.asked == 1
        place = opened()
        place.range(NAME, 0, 5)
        assert place._ranges is not None
        place._ranges._store = failing
        for n in (2, 3):
            assert place.range(NAME, 3, 5) == CONTENT[3:5]
            assert failing.asked == n


def read_elsewhere(place: ObjectStore, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    place._fs.cat_file = None
    assert place.range(NAME, 3, 5) == CONTENT[3:5]


@pytest.mark.usefixtures("fs")
def test_in_another_process() -> None:
    place = opened()
    place.range(NAME, 3, 5)
    assert status(read_elsewhere, place, dict(os.environ)) == 0


@pytest.mark.usefixtures("fs")
def test_after_a_fork() -> None:
    """A place that was used before refuses, as s3fs does; a new one reads. Neither waits for threads that are gone."""
    place = opened()
    place.range(NAME, 3, 5)
    if not (child := os.fork()):
        signal.alarm(20)
        try:
            try:
                place.range(NAME, 3, 5)
            except StoreError as error:
                if "fork" in str(error) and opened().range(NAME, 3, 5) == CONTENT[3:5]:
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


def asked_with(store: Any) -> tuple[Any, ...]:
    config, keys = store.config, {} if store.credential_provider is None else store.credential_provider()
    address = config["endpoint_url_s3"], config["region"], config["skip_signature"]
    return *address, keys.get("access_key_id"), keys.get("secret_access_key"), keys.get("token")


def test_asks_where_s3fs_does(configured: pytest.MonkeyPatch) -> None:
    amazon = "https://s3.eu-central-1.amazonaws.com"
    keys = {"key": "k", "secret": "s"}
    client = {"endpoint_url": "https://h", "region_name": "r"}
    assert asked_with(made(**keys, client_kwargs=client)) == ("https://h", "r", "false", "k", "s", None)
    assert asked_with(made(**keys)) == ("https://s3.amazonaws.com", "us-east-1", "false", "k", "s", None)
    assert asked_with(made(anon=True, client_kwargs={"region_name": "eu-central-1"})) == (
        *(amazon, "eu-central-1", "true"),
        *(None, None, None),
    )
    configured.setenv("AWS_PROFILE", "other")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    assert asked_with(made()) == ("http://127.0.0.1:1", "eu-central-1", "false", "mine", "secret", "token")
    configured.setenv("AWS_ENDPOINT_URL_S3", "http://elsewhere")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    assert asked_with(made())[0] == "http://elsewhere"


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"version_aware": True},
        {"client_kwargs": {"verify": False}},
        {"s3_additional_kwargs": {"SSECustomerKey": "x"}},
        {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {"config_kwargs": {"signature_version": "s3"}},
        {"config_kwargs": {"proxies": {"http": "http://h"}}},
    ],
)
@pytest.mark.usefixtures("configured")
def test_what_is_left_to_s3fs(options: dict[str, Any]) -> None:
    assert made(key="k", secret="s") is not None
    assert made(key="k", secret="s", **options) is None
