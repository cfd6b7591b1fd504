"""An object store made of a local folder, as fsspec sees it: it counts, waits, and fails as configured."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]


class Service(fsspec.AbstractFileSystem):
    """service:///FOLDER; what is set and counted is the same for all of them."""

    protocol, cachable = "service", False
    asked: ClassVar[list[tuple[str, int, int]]] = []  # file, first byte, one past the last
    delay = 0.0  # seconds for each request
    answer: Callable[[str, bytes], bytes] = staticmethod(lambda _, data: data)  # may cut it, change it or raise
    in_flight = most = listed = 0
    lock = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.asked, cls.delay, cls.answer, cls.most = [], 0.0, staticmethod(lambda _, data: data), 0
        cls.listed = 0

    @classmethod
    def data(cls) -> list[tuple[str, int, int]]:
        return [one for one in cls.asked if not one[0].endswith("zarr.json")]

    @classmethod
    def nbytes(cls) -> int:
        return sum(stop - start for _, start, stop in cls.data())

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return str(path).removeprefix("service://").rstrip("/")

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        Service.listed += 1
        return {str(file): {"size": file.stat().st_size} for file in sorted(Path(path).rglob("*")) if file.is_file()}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"size": Path(path).stat().st_size, "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        cls = Service
        with cls.lock:
            cls.asked.append((path, start or 0, end or 0))
            cls.in_flight += 1
            cls.most = max(cls.most, cls.in_flight)
        try:
            time.sleep(cls.delay)
            return cls.answer(path, Path(path).read_bytes()[start:end])
        finally:
            with cls.lock:
                cls.in_flight -= 1


fsspec.register_implementation("service", Service, clobber=True)
