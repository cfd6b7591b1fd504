"""Features from the GPU to their place in memory, while the next batch is computed."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from extract.buffers import Buffers
from extract.stages import COPYING_BACK, ENCODING, Course
from extract.streams import Event, Streams
from store.loading.memory import is_out_of_memory

Key = TypeVar("Key")


class Copies:
    """Converts features and keeps them, beside a GPU on a separate thread and stream, one batch behind.

    Without a GPU there is nothing to wait for, and it runs at once.

    Args:
        streams: of the GPU where features are computed.
        course: what the thread that computes does.
        on_memory: called where the device has too little memory to convert features, before it is tried once more.
    """

    def __init__(self, streams: Streams | None, course: Course, on_memory: Callable[[], None] = lambda: None):
        self._on_memory = on_memory
        self._streams, self._course, self._of_thread = streams, course, Course()
        self._thread = ThreadPoolExecutor(1, "beyondcls-copies") if streams is not None else None
        self._buffers = Buffers(streams.allocate) if streams is not None else None
        self._running: Future[None] | None = None
        self.has_failed = False

    @property
    def run_behind(self) -> bool:
        """Whether `run` returns before all is kept."""
        return self._thread is not None

    def run(
        self,
        convert: Callable[[], Iterable[tuple[Key, Tensor]]],
        keep: Callable[[Key, Tensor], None],
        began: Event | None = None,
    ) -> None:
        """Begin to convert features that were just computed, and to keep the results, once those before are kept.

        Args:
            convert: gives what is to be kept, by key, on the device. It holds on to the features, so that their memory is not
                used for others.
            keep: called with each in main memory, which is used again after the call.
            began: when the device began to compute the features.

        Raises:
            Exception: what came of the features before.
        """
        if self._streams is None or self._thread is None:
            with self._course.doing(COPYING_BACK):
                for key, values in convert():
                    keep(key, values.cpu())
            return
        computed = self._streams.mark()
        self.wait()
        self._running = self._thread.submit(self._run_after, began, computed, convert, keep)

    def wait(self) -> None:
        """Wait until all is kept.

        Raises:
            Exception: what came of the last features.
        """
        if self._running is not None:
            running, self._running = self._running, None
            with self._course.waiting_for(self._of_thread, COPYING_BACK):
                self.has_failed = running.exception() is not None
                running.result()

    def _run_after(
        self,
        began: Event | None,
        computed: Event,
        convert: Callable[[], Iterable[tuple[Key, Tensor]]],
        keep: Callable[[Key, Tensor], None],
    ) -> None:
        assert self._streams is not None
        with self._of_thread.doing(ENCODING):
            computed.synchronize()
        if began is not None:
            self._course.computed(self._streams.seconds(began, computed))
        with self._of_thread.doing(COPYING_BACK):
            try:
                copies = self._copied(computed, convert)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                copies = None
            if copies is None:  # outside of `except`, whose traceback holds on to the memory
                self._on_memory()
                copies = self._copied(computed, convert)
            assert self._buffers is not None
            for key, buffer, n in copies:
                keep(key, buffer[:n])
                self._buffers.give_back(buffer)

    def _copied(self, computed: Event, convert: Callable[[], Iterable[tuple[Key, Tensor]]]) -> list[tuple[Key, Tensor, int]]:
        """What is to be kept, by key, in buffers of main memory, and how many rows of each."""
        assert self._streams is not None
        assert self._buffers is not None
        copies = []
        with self._streams.behind(computed):
            for key, values in convert():
                buffer = self._buffers.take(len(values), values.shape[1:], values.dtype)
                self._streams.copy_out(values, buffer[: len(values)])
                copies.append((key, buffer, len(values)))
                del values  # the same stream may use its memory again, after this copy
            copied = self._streams.copied_out()
        copied.synchronize()
        return copies
