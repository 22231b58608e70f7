"""DeltaQueue: where one reader's deltas wait for it."""

from __future__ import annotations

import asyncio

from jaxserve.errors import JaxserveError
from jaxserve.outputs import CompletionDelta


class DeltaQueue:
    """Deltas of one reader's choices that it has yet to take.

    A reader that is slow holds nobody up, and costs no more than the text it hasn't read: it gets
    everything that came meanwhile at once, joined to one delta a choice.

    Args:
        running: requests that have yet to end.
    """

    def __init__(self, running: int) -> None:
        self.running = running
        self._deltas: dict[int, list[CompletionDelta]] = {}
        self._error: JaxserveError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def more(self) -> bool:
        """Whether take() has or will have something."""
        return bool(self.running or self._deltas or self._error)

    def put(self, delta: CompletionDelta) -> None:
        if (waiting := self._deltas.get(delta.index)) is None:
            self._deltas[delta.index] = [delta]
        else:
            waiting.append(delta)
        self._wake()

    def fail(self, error: JaxserveError) -> None:
        """Raised to the reader once it has what came before."""
        self._error = self._error or error
        self._wake()

    async def take(self) -> list[CompletionDelta]:
        """Everything that has come since the last call; waits for something."""
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
