"""Commands that do not wait for their imports: each is a fork of one process that has imported packages.

They are `beyondcls`, `dvc` (as quick_dvc.py runs it) and `python`, in a folder that is put first on the path. What they run
is the project of their own PYTHONPATH, read anew each time; only what others make is shared. A project that nobody edits
meanwhile may be imported once, too. Packages that the Python of the process lacks, its commands lack. A command that is
killed ends a moment later.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

# What takes long to import; torch loads `torch._dynamo` when it first counts operations.
DVC = (
    "quick_dvc",
    "dvc.commands.repro",
    "dvc.repo.push",
    "dvc.repo.pull",
    "dvc.stage.serialize",
    "dvc.output",
    "dvc_data.index",
)
PACKAGES = ("cv2", "sklearn.metrics", "timm", "torch._dynamo", "webdataset", "zarr", *DVC)
ROOMS = ("store", "extract", "probe", "pipelines")
COMMANDS = ("beyondcls", "dvc", "python")

# No site-packages: it begins at once.
COMMAND = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    socket.send_fds(asked, [json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()], [1, 2])
    sys.exit(int(asked.makefile().read()))
"""


def serve(address: str, project: str, packages: Sequence[str]) -> None:
    """Answer until the process that started this one ends it."""
    for package in packages:
        with suppress(ModuleNotFoundError):  # a command that needs it says so
            import_module(package)
    sys.path.remove(str(Path(__file__).parent))
    if project:
        sys.path.insert(0, project)
        for file in (file for room in ROOMS for file in Path(project, room).rglob("[!_]*.py")):
            import_module(".".join(file.relative_to(project).with_suffix("").parts))

    metadata.entry_points = cache(metadata.entry_points)  # nothing is installed while a command runs
    gc.freeze()  # or each command looks through what was imported for garbage
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            if not os.fork():  # so that one command can start another
                answer(asked)
            asked.close()


def answer(asked: socket.socket) -> None:
    """Run a command and say how it ended; end it if nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, shown, _, _ = socket.recv_fds(asked, 1 << 20, 2)
    if not (child := os.fork()):
        asked.close()
        run(*json.loads(message), shown)
    ready, _, _ = select.select([asked, os.pidfd_open(child)], [], [])
    if asked in ready:
        os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):
        asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def run(argv: list[str], folder: str, environment: dict[str, str], shown: list[int]) -> None:
    """The command, as if it were started there."""
    for number, target in zip(shown, (1, 2), strict=True):
        os.dup2(number, target)
        os.close(number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    status = 1
    try:
        status = called(Path(argv[0]).name, environment.get("PYTHONPATH", folder).split(os.pathsep))
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def called(name: str, path: list[str]) -> int:
    if name == "dvc":
        from quick_dvc import main  # type: ignore[import-not-found]

        return main(sys.argv[1:])
    sys.path[:0] = path
    if name == "beyondcls":
        from pipelines.cli import run

        run()
        return 0
    arguments = sys.argv[2 if sys.argv[1] in ("-u", "-P") else 1 :]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


@contextmanager
def commands_in(
    folder: Path, project: Path | None = None, python: Path = Path(sys.executable), packages: Sequence[str] = PACKAGES
) -> Iterator[Path]:
    """Write the commands into a folder, and answer them for as long; gives the folder.

    Args:
        project: is not edited meanwhile.
        python: of the process that answers.
        packages: that it imports first.
    """
    folder.mkdir(parents=True)
    address = str(folder / "socket")
    for name in COMMANDS:
        (folder / name).write_text(COMMAND.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # In a folder with nothing in it, so that no project is imported here.
    command = [str(python), __file__, address, str(project or ""), *packages]
    with subprocess.Popen(command, cwd=folder, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield folder
        finally:
            process.terminate()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3:])
