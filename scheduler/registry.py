"""Registry: the requests that haven't ended, their sequences, and all their stop ids."""

from __future__ import annotations

from collections import Counter

from scheduler.request import Request, Sequence, Status


class Registry:
    """The sequences that haven't ended, by request id."""

    def __init__(self) -> None:
        self.stops: set[int] = set()  # of all live requests: most sampled tokens are not in it
        self.num_live = 0  # sequences
        self.num_ended = 0  # sequences, since the start
        self._live: dict[str, list[Sequence]] = {}
        self._num_samples: dict[str, int] = {}  # that a live request ever had
        self._num_requests = 0
        self._stop_counts: Counter[int] = Counter()
        self.adapters: Counter[bytes] = Counter()  # of live requests

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def request_ids(self) -> list[str]:
        """Ids of the live requests, oldest first."""
        return list(self._live)

    def sequences(self, request_id: str) -> list[Sequence]:
        """A request's live sequences, oldest first; none for an unknown id."""
        return list(self._live.get(request_id, ()))

    def started(self, updated: int) -> list[str]:
        """Ids of requests of which a sequence holds a slot or blocks, or has a token in flight.

        Args:
            updated: the last step whose results are known.
        """
        return [
            request_id
            for request_id, sequences in self._live.items()
            if any(s.status >= Status.FORKED or s.last_step > updated for s in sequences)
        ]

    def add_request(self, request: Request, limit: int) -> list[Sequence]:
        """Creates its n sequences, of at most `limit` output tokens each."""
        samples = [
            Sequence(request, index, order=self._num_requests, limit=limit)
            for index in range(request.n)
        ]
        self._num_requests += 1
        self._live[request.request_id] = samples
        self._num_samples[request.request_id] = request.n
        self.num_live += request.n
        if request.adapter is not None:
            self.adapters[request.adapter] += 1
        for token in request.stop_token_ids:
            self._stop_counts[token] += 1
            self.stops.add(token)
        return list(samples)

    def add_fork(self, parent: Sequence) -> Sequence:
        """Creates one more sequence of a live request. The caller sets its output tokens."""
        request_id = parent.request.request_id
        child = Sequence(
            parent.request, self._num_samples[request_id], order=parent.order, limit=parent.limit
        )
        self._num_samples[request_id] += 1
        self._live[request_id].append(child)
        self.num_live += 1
        return child

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that has ended, and its request with the last of them."""
        request = sequence.request
        samples = self._live[request.request_id]
        samples.remove(sequence)
        self.num_live -= 1
        self.num_ended += 1
        if samples:
            return
        del self._live[request.request_id], self._num_samples[request.request_id]
        if request.adapter is not None:
            self.adapters[request.adapter] -= 1
            if not self.adapters[request.adapter]:
                del self.adapters[request.adapter]
        for token in request.stop_token_ids:
            self._stop_counts[token] -= 1
            if not self._stop_counts[token]:
                del self._stop_counts[token]
                self.stops.discard(token)
