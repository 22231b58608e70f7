"""AdapterSlots: which adapters are on the device, and in which slots."""

from __future__ import annotations

from scheduler.request import Sequence


class AdapterSlots:
    """A fixed number of slots, each with one adapter or none.

    Sequences that run hold the slots of their adapters. An adapter that nobody holds stays in its
    slot until another one needs it; the one that was released first gives way.

    Args:
        count: of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))  # without an adapter
        self._slots: dict[bytes, int] = {}
        self._holders: dict[bytes, int] = {}  # sequences that hold an adapter's slot
        self._idle: dict[bytes, None] = {}  # on the device and held by none, oldest first
        self._loads: list[tuple[int, Sequence]] = []
        self.num_loads = 0

    @property
    def resident(self) -> frozenset[bytes]:
        """The adapters on the device."""
        return frozenset(self._slots)

    @property
    def held(self) -> frozenset[bytes]:
        """The adapters of sequences that run."""
        return frozenset(self._holders)

    def can_start(self, adapter: bytes | None) -> bool:
        """Whether a sequence with this adapter would find a slot."""
        return adapter is None or adapter in self._slots or bool(self._free or self._idle)

    def acquire(self, sequence: Sequence) -> int | None:
        """The slot of a sequence's adapter, which it holds from now on; None without one.

        One must be there (can_start()).
        """
        adapter = sequence.request.adapter
        if adapter is None:
            return None
        if adapter not in self._slots:
            if not self._free:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                self._free.append(self._slots.pop(oldest))
            slot = self._slots[adapter] = self._free.pop()
            self._loads.append((slot, sequence))
            self.num_loads += 1
        self._idle.pop(adapter, None)
        self._holders[adapter] = self._holders.get(adapter, 0) + 1
        return self._slots[adapter]

    def release(self, sequence: Sequence) -> None:
        """A sequence that held its adapter's slot does so no longer."""
        adapter = sequence.request.adapter
        if adapter is None:
            return
        self._holders[adapter] -= 1
        if not self._holders[adapter]:
            del self._holders[adapter]
            self._idle[adapter] = None

    def take_loads(self) -> tuple[tuple[int, Sequence], ...]:
        """Slots that got another adapter since the last call, each with a sequence that has it."""
        loads = dict(self._loads)  # the last one counts
        self._loads.clear()
        return tuple(loads.items())

    def forget(self) -> None:
        """The slots' contents are lost. No sequence may hold one."""
        self._free += sorted(self._slots.values(), reverse=True)
        self._slots.clear()
        self._idle.clear()
        self._loads.clear()
