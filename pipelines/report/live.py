"""The page while results come in: written again whenever what it reads has changed."""

import os
import time
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from pipelines.report.collect import Folders, Inputs
from pipelines.report.content import Section
from pipelines.report.files import place_of, write, write_page
from store import BeyondClsError

POLL_S, RELOAD_S = 2.0, 5.0  # seconds after which files are looked at again, and after which the page loads itself again
READ = (".csv", ".json", ".npy", ".npz", ".png", ".yaml")  # of what the stages write, what the page may read
State = dict[str, tuple[int, int]]  # nanoseconds of the last change, and bytes, by path


def keep_written(
    out: Path,
    read: Callable[[], Inputs],
    build: Callable[[Inputs], Sequence[Section]],
    places: Iterable[Path],
    say: Callable[[str], None],
    opens: bool = False,
) -> None:
    """Write the page, and again after every change of results, until Ctrl-C; then once more, so that it stays as it is.

    Args:
        read: the inputs, as they are by now.
        places: that `read` reads at least; others follow from the folders of its inputs.
        say: shows one line.
        opens: the page in the browser, once it is written.
    """
    watched, shown, is_open, place = list(places), list[Section](), False, place_of(out)

    def again() -> None:
        nonlocal watched, shown, is_open
        inputs = read()
        watched = list(dict.fromkeys([*watched, *folders_read(inputs.folders)]))
        sections = list(build(inputs))
        write(place, inputs, sections, RELOAD_S)
        shown = sections
        say(f"{datetime.now():%H:%M:%S} {out / 'index.html'}: {len(inputs.probes)} heads")
        if opens and not is_open:
            is_open = True
            try:
                open_page(out / "index.html")
            except BeyondClsError as error:
                say(str(error))

    follow(again, lambda: state(watched, out), say)
    if shown:
        write_page(place, shown)
        say(f"report: {out / 'index.html'}")


def follow(write: Callable[[], None], look: Callable[[], State], say: Callable[[str], None]) -> None:
    """Call `write` now, and whenever what `look` sees has changed; returns on Ctrl-C (KeyboardInterrupt).

    Stages remove and write files at any time: where something is missing, half written or damaged, that is said, and `write` is
    called again after the next change.
    """
    written: State | None = None
    try:
        while True:
            if (now := look()) != written:
                written = now  # as it was before: what changes while the page is written is seen the next time
                try:
                    write()
                except (BeyondClsError, OSError) as error:
                    say(f"{datetime.now():%H:%M:%S} waiting for files to change: {error}")
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return


def state(places: Sequence[Path], but: Path) -> State:
    """Of all files below these places that the page may read; of folders that do not exist, of none.

    Args:
        but: a folder that is left out.
    """
    below = (Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in names)
    found: State = {}
    for file in (*places, *below):
        if file.suffix in READ and but.resolve() not in file.resolve().parents:
            with suppress(OSError):  # those that vanish meanwhile are left out
                status = file.stat()
                found[str(file)] = status.st_mtime_ns, status.st_size
    return found


def folders_read(folders: Folders) -> list[Path]:
    """All folders of results; images are not looked at."""
    values = [getattr(folders, field.name) for field in fields(folders)]
    several = [path for value in values if isinstance(value, tuple) for path in value]
    return [path for path in (*values, *several) if isinstance(path, Path)]


def open_page(file: Path) -> None:
    """Open the page in the browser.

    Raises:
        BeyondClsError: there is no browser that can be opened.
    """
    try:
        opened = webbrowser.open(file.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        raise BeyondClsError(
            f"{file} is written, but no browser could be opened on this machine, expected one for --open; open the page "
            "yourself, it is one file that can be copied anywhere, or name a browser in the variable BROWSER"
        )
