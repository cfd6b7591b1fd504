"""DVC remotes on this machine: a folder, an S3-compatible server, and a host reached over SSH. Each counts what it served."""

import getpass
import re
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from tests.machines.machine import Machine

NAME, BUCKET = "shared", "features"
OBJECT = re.compile(r"files/md5/(\w\w)/(\w+(?:\.dir)?)")
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


class Remote(ABC):
    """A remote with nothing in it.

    Attributes:
        url: as `dvc remote add` takes it.
        options: what `dvc remote modify` sets.
    """

    url: str
    options: dict[str, str]

    @abstractmethod
    def served(self) -> dict[str, int] | None:
        """Bytes of objects that were sent so far, by MD5; None if it does not count."""

    @abstractmethod
    def received(self) -> int:
        """Bytes of the objects that it holds."""

    def close(self) -> None:  # noqa: B027 - a folder has nothing to stop
        """Stop serving."""

    def add_to(self, machine: Machine) -> None:
        """Make it the default remote of a machine; only there."""
        machine.dvc("remote", "add", "--local", "--default", "--force", NAME, self.url)
        for name, value in self.options.items():
            machine.dvc("remote", "modify", "--local", NAME, name, value)


class Folder(Remote):
    """A folder, on a disk that machines share."""

    def __init__(self, scratch: Path):
        self.url, self.options = str(scratch), {}

    def served(self) -> None:
        return None

    def received(self) -> int:
        return bytes_below(Path(self.url))


class S3(Remote):
    """moto's S3 server in a thread; traffic is counted between it and its sockets."""

    def __init__(self, scratch: Path):
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log_request(self, *arguments: Any) -> None: ...

        self._sent: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        backend = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._counted(backend), threaded=True, request_handler=Quiet)
        Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"s3://{BUCKET}/dvc"
        self.options = {
            "endpointurl": f"http://127.0.0.1:{self._server.server_port}",
            "access_key_id": "anybody",
            "secret_access_key": "anything",
            "region": "us-east-1",
        }
        self._make_bucket()

    def _make_bucket(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._server.server_port)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()

    def _counted(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def counting(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            match = OBJECT.search(environ["PATH_INFO"])
            if match and environ["REQUEST_METHOD"] in ("PUT", "POST"):
                self._taken["".join(match.groups())] += int(environ.get("CONTENT_LENGTH") or 0)
            for piece in app(environ, start_response):
                if match and environ["REQUEST_METHOD"] == "GET":
                    self._sent["".join(match.groups())] += len(piece)
                yield piece

        return counting

    def served(self) -> dict[str, int]:
        return dict(self._sent)

    def received(self) -> int:
        return self._taken.total()

    def close(self) -> None:
        self._server.shutdown()


class SSH(Remote):
    """sshd on a free port with new keys; its SFTP server logs how much it read of each file."""

    def __init__(self, scratch: Path):
        scratch.mkdir()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(scratch / key)], check=True)
        if getpass.getuser() == "root":  # sshd then separates privileges, and needs an empty folder
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._log, self._root, port = scratch / "log", scratch / "root", free_port()
        self._root.mkdir()
        config = {
            "ListenAddress": "127.0.0.1",
            "Port": port,
            "HostKey": scratch / "host",
            "AuthorizedKeysFile": scratch / "user.pub",
            "PidFile": "none",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "StrictModes": "no",  # anyone can write to temporary folders
            "MaxStartups": "100",
            "Subsystem": f"sftp {sftp_server()} -e -l VERBOSE 2>>{self._log}",
        }
        (scratch / "config").write_text("".join(f"{name} {value}\n" for name, value in config.items()))
        with (scratch / "sshd.log").open("wb") as log:
            command = [sshd() or "sshd", "-D", "-e", "-f", str(scratch / "config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.url = f"ssh://127.0.0.1:{port}{self._root}"
        self.options = {"user": getpass.getuser(), "keyfile": str(scratch / "user")}
        wait_for(port, self._process, scratch / "sshd.log")

    def served(self) -> dict[str, int]:
        sent: Counter[str] = Counter()
        if self._log.exists():
            for path, read in re.findall(r'close "([^"]*)" bytes read (\d+)', self._log.read_text()):
                if (match := OBJECT.search(path)) and int(read):
                    sent["".join(match.groups())] += int(read)
        return dict(sent)

    def received(self) -> int:
        return bytes_below(self._root)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


REMOTES: dict[str, Callable[[Path], Remote]] = {"local": Folder, "s3": S3, "ssh": SSH}
PACKAGES = {"local": (), "s3": ("dvc_s3", "moto", "flask"), "ssh": ("dvc_ssh", "asyncssh")}


def lacking(name: str) -> str | None:
    """Why this remote cannot be served here; None if it can."""
    for package in PACKAGES[name]:
        if find_spec(package) is None:
            return f"{package} is not installed"
    if name == "ssh":
        for program, path in (("sshd", sshd()), ("sftp-server", sftp_server()), ("ssh-keygen", shutil.which("ssh-keygen"))):
            if not path:
                return f"there is no {program} here"
    return None


def sshd() -> str | None:
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


def sftp_server() -> str | None:
    return next((path for path in SFTP_SERVERS if Path(path).exists()), None)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(100):
        if process.poll() is not None:
            break
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"sshd did not start:\n{log.read_text()}")


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "files/md5").glob("??/*"))
