"""An S3 server in a thread, by moto."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest


@contextmanager
def served(bucket: str) -> Iterator[Any]:
    """The file system of a server with this bucket; who uses s3:// in this process, or begins another, gets there."""
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server to test with")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    with pytest.MonkeyPatch.context() as patch:
        running = moto.ThreadedMotoServer(port=0, verbose=False)
        running.start()
        _, port = running.get_host_and_port()
        # What an earlier server of this process holds would be here, too.
        urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")).close()
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(bucket)
        yield s3fs.S3FileSystem()
        s3fs.S3FileSystem.clear_instance_cache()
        running.stop()


@contextmanager
def ignoring_conditions() -> Iterator[None]:
    """The servers of this process meanwhile write what is there already, whatever the request says, as some services do."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    real = DomainDispatcherApplication.__call__

    def call(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return real(self, environ, start_response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DomainDispatcherApplication, "__call__", call)
        yield
