"""`beyondcls` for stages of DVC, without waiting for torch: each command is a fork of one process that has imported packages.

What it runs is the project of its own PYTHONPATH, read anew each time; only what others make is shared. A project that nobody
edits meanwhile may be imported once, too.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

# What takes long to import; torch loads `torch._dynamo` when it first counts operations.
PACKAGES = ("cv2", "sklearn.metrics", "timm", "torch._dynamo", "webdataset", "zarr")
ROOMS = ("store", "extract", "probe", "pipelines")

# No site-packages: it begins at once.
COMMAND = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    socket.send_fds(asked, [json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()], [1, 2])
    sys.exit(int(asked.makefile().read()))
"""


def serve(address: str, project: str) -> None:
    """Answer until the process that started this one closes its standard input."""
    for package in PACKAGES:
        import_module(package)
    if project:
        sys.path.insert(0, project)
        for file in (file for room in ROOMS for file in Path(project, room).rglob("[!_]*.py")):
            import_module(".".join(file.relative_to(project).with_suffix("").parts))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            message, shown, _, _ = socket.recv_fds(asked, 1 << 20, 2)
            if not (child := os.fork()):
                run(*json.loads(message), shown)
            _, status = os.waitpid(child, 0)
            asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            asked.close()
            for number in shown:
                os.close(number)


def run(argv: list[str], folder: str, environment: dict[str, str], shown: list[int]) -> None:
    """The command, as if it were started there."""
    for number, target in zip(shown, (1, 2), strict=True):
        os.dup2(number, target)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[:0] = argv, environment["PYTHONPATH"].split(os.pathsep)
    status = 1
    try:
        from pipelines.cli import run

        run()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def beyondcls_in(folder: Path, project: Path | None = None) -> Iterator[None]:
    """Write FOLDER/beyondcls, and answer it for as long.

    Args:
        project: is not edited meanwhile.
    """
    address = str(folder / "socket")
    (folder / "beyondcls").write_text(COMMAND.format(python=sys.executable, address=address))
    (folder / "beyondcls").chmod(0o755)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # In a folder with nothing in it, so that no project is imported here.
    with subprocess.Popen([sys.executable, "-P", __file__, address, str(project or "")], cwd=folder, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    serve(*sys.argv[1:])
