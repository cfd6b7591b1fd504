"""Ranges of objects in S3 through obstore, configured as s3fs is: in less time, and less of the processor's."""

import os
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

CREDENTIALS_S = 600.0  # for which botocore's are valid at least; obstore asks again some minutes before
RETRIES = 2  # then s3fs tries five times
# What s3fs may be configured with; with anything else it is asked alone.
TRANSLATED = {
    "client_kwargs": {"endpoint_url", "region_name"},
    "config_kwargs": {"max_pool_connections", "read_timeout", "connect_timeout"},
    "s3_additional_kwargs": set[str](),
    "req_kw": set[str](),
}
_opening, _is_usable = Lock(), True


def _after_fork() -> None:
    """obstore's threads do not survive it: a request would wait for ever."""
    global _opening, _is_usable
    _opening, _is_usable = Lock(), _is_usable and "obstore" not in sys.modules


os.register_at_fork(after_in_child=_after_fork)


class S3Ranges:
    """Through obstore where that is installed; what it cannot read is asked of s3fs, whose errors are raised.

    Where it has never succeeded, and s3fs does, something is configured that it does not know: a warning says so, and it is
    asked no more.

    Args:
        fs: s3fs's `S3FileSystem`.
        root: BUCKET or BUCKET/FOLDER.
    """

    def __init__(self, fs: Any, root: str):
        self._fs, self._root = fs, root
        self._store: Any | None = None
        self._is_opened = self._has_answered = False

    def __reduce__(self) -> tuple[type["S3Ranges"], tuple[Any, str]]:
        return S3Ranges, (self._fs, self._root)

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of the object `name` below the root; fewer where it ends."""
        failure: Exception | None = None
        try:
            if (store := self._opened()) is not None:
                data = memoryview(store.get_range(name, start=start, end=stop))
                self._has_answered = True
                return data
        except Exception as error:  # each cause has its own
            failure = error
        data = memoryview(self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop))
        if failure is not None and not self._has_answered and len(data) == stop - start:
            self._store, self._is_opened = None, True
            reason = str(failure).partition("\n")[0]
            text = f"s3://{self._root} is read through s3fs, in twice the time, as obstore fails ({reason})"
            warnings.warn(f"{text}; if AWS_DEFAULT_REGION is not the bucket's, set it", RuntimeWarning, stacklevel=2)
        return data

    def _opened(self) -> Any | None:
        if not _is_usable:
            return None
        with _opening:
            if not self._is_opened:
                self._store, self._is_opened = s3_store(self._fs, self._root), True
            return self._store


def s3_store(fs: Any, root: str) -> Any | None:
    """obstore's `S3Store` of what is below `root`, which sends its requests where s3fs does, signed with the same credentials.

    None where obstore is missing, or s3fs is configured with what is not translated.
    """
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    from fsspec.asyn import sync  # type: ignore[import-untyped]

    bucket, _, folder = root.partition("/")
    fs.connect()
    client = sync(fs.loop, fs.get_s3, bucket)
    config, endpoint = client.meta.config, client.meta.endpoint_url
    addressing = dict(config.s3 or {})
    if (
        ":" in bucket  # an access point
        or addressing.pop("addressing_style", "path") == "virtual"
        or addressing
        or any(getattr(fs, name).keys() - known for name, known in TRANSLATED.items())
        or fs.version_aware
        or config.proxies
        or not (fs.anon or config.signature_version == "s3v4")
    ):
        return None

    async def of_session() -> Any:
        return await (await fs.session.get_credentials()).get_frozen_credentials()

    def credentials() -> dict[str, Any]:
        if fs.key:
            key, secret, token = fs.key, fs.secret, fs.token
        else:
            now = sync(fs.loop, of_session)
            key, secret, token = now.access_key, now.secret_key, now.token
        expires = datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S)
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": expires}

    roots = fs.session.get_config_variable("ca_bundle") if endpoint.startswith("https:") else None
    options: Any = {
        "config": {
            "aws_endpoint_url_s3": endpoint,
            "region": client.meta.region_name.replace("aws-global", "us-east-1"),
            "virtual_hosted_style_request": False,
            "skip_signature": bool(fs.anon),
        },
        "credential_provider": None if fs.anon else credentials,
        "client_options": {
            "allow_http": endpoint.startswith("http:"),
            "timeout": "1day",  # of a whole answer, however slow the network is
            "read_timeout": f"{config.read_timeout}s",
            "connect_timeout": f"{config.connect_timeout}s",
            **({"root_certificate": Path(roots).read_bytes()} if roots else {}),
        },
        "retry_config": {"max_retries": RETRIES},
    }
    return S3Store(bucket, prefix=folder or None, **options)
