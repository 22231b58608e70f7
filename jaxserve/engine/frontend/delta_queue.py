"""DeltaQueue: the deltas that one reader hasn't taken yet."""

from __future__ import annotations

import asyncio

from jaxserve.errors import JaxserveError
from jaxserve.outputs import CompletionDelta


class DeltaQueue:
    """Deltas of one reader's choices that it hasn't taken yet.

    A slow reader delays no other, and costs no more memory than the text that it hasn't read: it
    gets everything that came meanwhile at once, joined to one delta a choice.

    Args:
        num_requests: requests that put deltas here.
    """

    def __init__(self, num_requests: int) -> None:
        self._num_running = num_requests
        self._deltas: dict[int, list[CompletionDelta]] = {}
        self._error: JaxserveError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_more(self) -> bool:
        """Whether take() has something to return or to raise, or will have."""
        return bool(self._num_running or self._deltas or self._error)

    def put(self, delta: CompletionDelta) -> None:
        if (waiting := self._deltas.get(delta.index)) is None:
            self._deltas[delta.index] = [delta]
        else:
            waiting.append(delta)
        self._wake()

    def end_request(self) -> None:
        """One of the requests has ended; its last delta or error may follow at once."""
        self._num_running -= 1

    def fail(self, error: JaxserveError) -> None:
        """Has take() raise the error, after it has returned what was put before."""
        self._error = self._error or error
        self._wake()

    async def take(self) -> list[CompletionDelta]:
        """Everything that was put since the last call; waits for something.

        Raises:
            JaxserveError: the first error given to fail().
        """
        if not self._deltas:
            if self._error is None:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if not self._deltas and self._error is not None:
                raise self._error
        deltas, self._deltas = self._deltas, {}
        return [d[0] if len(d) == 1 else CompletionDelta.join(d) for d in deltas.values()]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
