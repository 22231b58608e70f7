"""HostSwap: blocks in host memory, for sequences that lost theirs on the device."""

from __future__ import annotations

from scheduler.blocks import NULL_BLOCK
from scheduler.config import SchedulerConfig
from scheduler.request import Sequence

Copies = list[tuple[int, int]]


class HostSwap:
    """Decides whether to swap, and keeps account of the host blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._block_size = config.block_size
        self._costs = config.preemption_costs
        self._free = list(range(config.num_host_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def move_out(self, sequence: Sequence) -> Copies:
        """Gives host blocks to all that it has computed; returns (device block, host block) pairs.

        Empty, with nothing done, if that doesn't pay or doesn't fit. The caller then takes the
        device blocks back: the copies come before anything that the same plan writes.
        """
        stop = -(-sequence.num_computed // self._block_size)
        tables = [table[:stop] for table in sequence.tables]
        num_blocks = sum(len(table) - table.count(NULL_BLOCK) for table in tables)
        if not 0 < num_blocks <= len(self._free):
            return []
        if not self._costs.prefers_swap(sequence.num_computed, num_blocks):
            return []
        sequence.host_tables = tuple(
            [None if block == NULL_BLOCK else self._free.pop() for block in table]
            for table in tables
        )
        return [
            (block, host)
            for table, host_table in zip(tables, sequence.host_tables, strict=True)
            for block, host in zip(table, host_table, strict=True)
            if host is not None
        ]

    def move_in(self, sequence: Sequence) -> Copies:
        """(host block, device block) pairs into its new tables; the host blocks are free again."""
        pairs = [
            (host, block)
            for host_table, table in zip(sequence.host_tables, sequence.tables, strict=True)
            for host, block in zip(host_table, table, strict=False)
            if host is not None
        ]
        self.drop(sequence)
        return pairs

    def drop(self, sequence: Sequence) -> None:
        """Takes its host blocks back, if it has any."""
        for table in sequence.host_tables:
            self._free.extend(host for host in table if host is not None)
        sequence.host_tables = ()
