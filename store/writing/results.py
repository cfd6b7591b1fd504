"""Results in a folder that may hold files of others: written next to it, then put in place of what their run found there."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from store.errors import StoreError
from store.places.disk import content_of, exchange, make_folder, place_file

UNFINISHED = ".unfinished"  # folder next to results, for what is being written


class ResultFolder:
    """A folder of results as its run finds it. Only files that the same kind of result has are ever replaced or removed.

    Args:
        folder: of the results.
        mark: the file by which two results are distinguished, and which decides between two runs that finish at once.
        of_earlier: patterns of files of an earlier result that this one may lack; or the files, once they are asked for.
        seal: the file that says that a result is whole, if there is one: removed first, and put in its place last.
    """

    def __init__(self, folder: Path, mark: str, of_earlier: Iterable[str] | Callable[[], Iterable[Path]] = (), seal: str = ""):
        self.folder, self._mark, self._of_earlier, self._seal = folder, mark, of_earlier, seal
        self._found = content_of(folder / mark)

    @contextlib.contextmanager
    def written(self, is_whole: bool = True) -> Iterator[Path]:
        """A folder to write the result to; at the end of the block it is put in its place.

        Args:
            is_whole: what else an earlier result has is removed.

        Raises:
            StoreError: another result has come there since this object was made. It stays, and so does the one of this run.
        """
        scratch = self.folder.absolute().parent / UNFINISHED / f"{self.folder.name}.{uuid.uuid4().hex}"
        make_folder(scratch.parent)
        scratch.mkdir()
        try:
            yield scratch
        except BaseException:
            _remove(scratch)
            raise
        make_folder(self.folder)
        of_earlier = self._of_earlier
        files = of_earlier() if callable(of_earlier) else chain.from_iterable(map(self.folder.glob, of_earlier))
        earlier = list(files) if is_whole else []
        if not self._may_publish(scratch):
            raise StoreError(
                f"{self.folder} holds another result than when this run began, and keeps it; that of this run is in {scratch}: "
                "move it where you want it"
            )
        self._found = content_of(self.folder / self._mark)
        if self._seal:
            (self.folder / self._seal).unlink(missing_ok=True)
        for old in earlier:
            if old.name != self._mark and not (scratch / old.relative_to(self.folder)).exists():
                old.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other files are there
                    old.parent.rmdir()
        for path in sorted(scratch.rglob("*"), key=lambda path: (path == scratch / self._seal, path)):  # folders first
            place = self.folder / path.relative_to(scratch)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(path, place)
        _remove(scratch)

    def _may_publish(self, scratch: Path) -> bool:
        """Whether this result may take the place: its mark is there, and replaced none but the one that was found."""
        new, mark = scratch / self._mark, self.folder / self._mark
        if not os.path.lexists(mark):  # nobody's, or removed since
            return place_file(new, mark)
        if self._found is None:
            return False
        exchange(new, mark)
        if content_of(new) == self._found:
            new.unlink()
            return True
        exchange(new, mark)
        return False


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch)
    with contextlib.suppress(OSError):  # others are at work, or were refused
        scratch.parent.rmdir()
