"""Features from the GPU to their place in memory, while the next batch is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class Copies:
    """Runs what waits for a GPU (checks, conversion, copies) on a separate thread and stream, one batch behind.

    Without a GPU there is nothing to wait for, and it runs at once.

    Args:
        device: where features are computed.
    """

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "beyondcls-copies") if self._stream is not None else None
        self._running: Future[None] | None = None

    def run(self, job: Callable[[], None]) -> None:
        """Begin a job on tensors that were just computed, once the one before is done.

        Raises:
            Exception: what the job before raised.
        """
        if self._thread is None:
            job()
            return
        computed = torch.cuda.current_stream(self._stream.device).record_event() if self._stream is not None else None
        self.wait()
        self._running = self._thread.submit(self._run_after, computed, job)

    def wait(self) -> None:
        """Wait until all jobs are done.

        Raises:
            Exception: what the last job raised.
        """
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def _run_after(self, computed: torch.cuda.Event | None, job: Callable[[], None]) -> None:
        # The job holds on to its tensors until it has copied them: their memory is not reused before that.
        with torch.cuda.stream(self._stream):
            if computed is not None and self._stream is not None:
                self._stream.wait_event(computed)
            job()
