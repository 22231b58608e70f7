"""RequestStream: one request between the engine's outputs and its reader."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from jaxserve.engine.core import protocol
from jaxserve.engine.frontend.delta_queue import DeltaQueue
from jaxserve.engine.frontend.output_processor import OutputProcessor
from jaxserve.engine.frontend.request_observer import (
    ChoiceTimes,
    EndReason,
    RequestObserver,
    RequestTimes,
)
from jaxserve.errors import EngineError, JaxserveError

log = logging.getLogger(__name__)


class RequestStream:
    """Puts what the outputs of one request make into its reader's queue, and tells the observers.

    ended: whether nothing further is put into the queue.
    """

    def __init__(
        self,
        processor: OutputProcessor,
        times: RequestTimes,
        queue: DeltaQueue,
        observers: Sequence[RequestObserver],
    ) -> None:
        self._processor, self._times, self._queue = processor, times, queue
        self._observers = observers
        self.ended = False

    def take(self, output: protocol.Output) -> protocol.Abort | None:
        """Takes the engine's next output of this request.

        Returns:
            An Abort to send, if the request or a choice of it has ended here and the engine doesn't
            know it yet.
        """
        if self.ended:
            return None
        if output.error is not None:
            self.fail(protocol.as_error(output))
            return None
        if output.queue_s is not None:
            self._times.queue_s = output.queue_s
        try:
            delta = self._processor.take(output)
        except Exception as error:  # an error in one request's text must not end all streams
            log.exception("request %s failed", output.request_id)
            self.fail(EngineError(f"its output could not be read: {error}"))
            return protocol.Abort(output.request_id)
        if delta is None:
            return None
        if delta.token_ids:
            self._count_tokens(output.index, len(delta.token_ids))
        if delta.finish_reason == "abort":
            self._end_choice(output.index, "abort")
            self.fail(EngineError("it was aborted"))
            return None
        if delta.finish_reason is not None:
            self._end_choice(output.index, delta.finish_reason)
            if not self._processor.open:
                self.ended = True
                self._queue.end_request()
        self._queue.put(delta)
        if delta.finish_reason is not None and output.finish_reason is None:  # a stop string
            return protocol.Abort(output.request_id, output.index)
        return None

    def fail(self, error: JaxserveError) -> None:
        """Ends the request with an error, unless it has ended."""
        if not self.ended:
            self.ended = True
            self._queue.end_request()
            self._queue.fail(error)
            self.end_open_choices("error")

    def end_open_choices(self, reason: EndReason) -> None:
        """Tells the observers that the choices that haven't ended end now."""
        for index in self._processor.open:
            self._end_choice(index, reason)

    def _end_choice(self, index: int, reason: EndReason) -> None:
        self._times.ended += 1
        for observer in self._observers:
            observer.on_choice_end(self._times, index, reason)

    def _count_tokens(self, index: int, tokens: int) -> None:
        now = time.monotonic()
        choice = self._times.choices.get(index)
        if choice is None:
            self._times.choices[index] = ChoiceTimes(now, now, tokens)
            for observer in self._observers:
                observer.on_first_tokens(self._times, now - self._times.arrived, tokens)
            return
        for observer in self._observers:
            observer.on_next_tokens(now - choice.last, tokens)
        choice.last = now
        choice.tokens += tokens
