"""Remote tars: indexed once, then read image by image; and tars that a command writes."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.reading import RemoteFile
from store import BeyondClsError
from tests.extract.pictures import picture, samples, write_file, write_tar, write_text


def same(first: ImageSet, second: ImageSet) -> bool:
    def contents(images: ImageSet) -> list[tuple[Any, ...]]:
        return [(s.id, s.labels, s.offset, s.size, s.read()) for s in images.samples]

    return contents(first) == contents(second) and first.digest == second.digest and first.classes == second.classes


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write_tar(tmp_path / "tars" / "t-0.tar", samples(3))
    write_tar(tmp_path / "tars" / "t-1.tar", samples(3, 3))
    write_file(tmp_path / "tars" / "classes.txt", b"ape\nbee\ncat\n")
    return tmp_path / "tars"


@pytest.fixture
def memory(tars: Path) -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    for file in tars.iterdir():
        fs.pipe(f"/tars/{file.name}", file.read_bytes())
    yield fs
    fs.rm("/tars", recursive=True)


class TestMemory:
    @pytest.mark.parametrize("name", ["", "/t-{0..1}.tar", "/t-[01].tar"])
    def test_as_local_tars(self, name: str, tars: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        images = open_images(f"memory://tars{name}")
        assert same(images, open_images(str(tars)))
        assert (images.classes, images.all_problems()) == (["ape", "bee", "cat"], [])
        assert images.image(4).size == (36, 40)
        monkeypatch.setattr(RemoteFile, "read", lambda *_: pytest.fail("read again"))
        assert images.part(range(6)).digest == images.digest, "of bytes that were read when the set was opened"

    @pytest.mark.parametrize(("name", "of"), [("x-*.tar", r"'.*x-\*"), ("t-{0..2}.tar", r"'.*t-2\.tar"), ("empty", "in '")])
    def test_no_such_tar(self, name: str, of: str, memory: Any) -> None:
        memory.pipe("/tars/empty/readme.txt", b"hello")
        with pytest.raises(DataError, match=f"there is no tar {of}"):
            open_images(f"memory://tars/{name}")

    def test_what_happens_after_the_index(self, memory: Any) -> None:
        """Bytes change, and are gone; which is no damaged image: with --on-error record a sound one would be lost."""
        images = open_images("memory://tars/t-0.tar")
        content = bytearray(memory.cat_file("/tars/t-0.tar"))
        content[images.samples[1].offset + 50] ^= 1
        memory.pipe("/tars/t-0.tar", bytes(content))
        assert images.samples[0].read() == picture(0)
        with pytest.raises(BeyondClsError, match=r"'0001' in memory://tars/t-0\.tar has changed since its tar was opened"):
            images.image(1)
        memory.rm("/tars/t-0.tar")
        with pytest.raises(BeyondClsError, match=r"memory://tars/t-0\.tar cannot be read: .*; check the address") as caught:
            images.image(1)
        assert not isinstance(caught.value, DataError)

    def test_unknown_protocol(self) -> None:
        with pytest.raises(BeyondClsError, match=r"nowhere://x/a\.tar cannot be opened: .*nowhere"):
            open_images("nowhere://x/a.tar")


class Ranges(SimpleHTTPRequestHandler):
    """Gives ranges of bytes, unlike Python's own server."""

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path.partition("?")[0])).read_bytes()
        asked = self.headers.get("Range") or f"bytes=0-{len(content) - 1}"
        start, end = (int(n) for n in asked.removeprefix("bytes=").split("-"))
        part = content[start : end + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(part)


@contextlib.contextmanager
def served(folder: Path, handler: type[SimpleHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class TestHttp:
    def test_as_local_tars(self, tars: Path) -> None:
        with served(tars, Ranges) as url:
            images = open_images(f"{url}/t-{{0..1}}.tar")
            assert same(images, open_images(str(tars)))
            assert images.image(4).size == (36, 40)
            with pytest.raises(DataError, match=r"there is no tar 'http://.*t-9\.tar'"):
                open_images(f"{url}/t-9.tar")

    def test_server_that_gives_whole_files_only(self, tars: Path) -> None:
        message = r"http://.*t-0\.tar returned \d+ bytes for the \d+ from \d+; copy it here first, or give it as 'pipe:curl"
        with served(tars, SimpleHTTPRequestHandler) as url, pytest.raises(BeyondClsError, match=message):
            open_images(f"{url}/t-0.tar")

    def test_messages_hold_no_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("extract.datasets.reading.PAUSES", (0,))
        file = RemoteFile("https://me:password@host/data/a.tar?signature=abc")
        assert (str(file), file.name) == ("https://host/data/a.tar", "a.tar")
        assert str(file.parent / "classes.txt") == "https://host/data/classes.txt"
        with pytest.raises(BeyondClsError, match=r"^(?!.*(password|abc))"):
            RemoteFile("https://me:password@127.0.0.1:1/a.tar?signature=abc").read(0, 1)


class TestPipe:
    def test_as_local_tars_as_long_as_the_images_live(self, tars: Path) -> None:
        images, local = open_images(f"pipe:cat {tars}/t-{{0..1}}.tar"), open_images(str(tars))
        assert (images.digest, images.all_problems(), images.classes) == (local.digest, [], None)
        assert [s.read() for s in images.samples] == [s.read() for s in local.samples]
        file = images.samples[0].file
        assert isinstance(file, Path)
        assert file.is_file()
        del images
        assert not file.exists()

    def test_commands(self, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several; and a script that imports what lies beside it, though our own processes do not."""
        tar = str(tars / "t-0.tar")
        write_text(tmp_path / "beside.py", f"content = open({tar!r}, 'rb').read()")
        write_text(tmp_path / "fetch.py", "import beside, sys", "sys.stdout.buffer.write(beside.content)")
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
        images = open_images(f"pipe:{sys.executable} {tmp_path}/fetch.py | cat")
        assert images.digest == open_images(tar).digest

    def test_commands_that_fail_or_end_early(self, tars: Path) -> None:
        with pytest.raises(DataError, match=r"the command of 'pipe:exit 3' ended with status 3; try it in a shell"):
            open_images("pipe:exit 3")
        half = (tars / "t-0.tar").stat().st_size // 2
        assert "is truncated" in open_images(f"pipe:head -c {half} {tars}/t-0.tar").all_problems()[0]

    def test_only_where_the_source_begins_with_it(self, tmp_path: Path) -> None:
        """A name in a list or a part behind `::` runs nothing."""
        ran = tmp_path / "ran"
        with pytest.raises(DataError, match="there is no"):
            open_images(f"{tmp_path}/a.tar::pipe:touch {ran}")
        assert not ran.exists()
