"""How many threads calls run on, and that they sleep while there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cpu_kernels
from cpu_kernels import thread_pool


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(thread_pool.WORKER)]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    cpu_kernels.use_threads(cpu_kernels.default_threads())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_products_are_the_same_on_any_number_of_threads(count: int) -> None:
    random = np.random.default_rng(0)
    x, w = random.standard_normal((9, 200), np.float32), random.standard_normal((500, 200))
    w = w.astype(np.float32)
    want = np.asarray(cpu_kernels.linear(x, w))
    cpu_kernels.use_threads(count)
    assert len(workers()) == count - 1
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(cpu_kernels.linear(x, w)), want)


def state(thread: threading.Thread) -> str:
    """Linux's letter for what a thread does: R runs, S sleeps."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


def test_threads_sleep_while_there_is_no_call() -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("this system doesn't tell what its threads do")
    cpu_kernels.use_threads(3)
    x = np.ones((9, 200), np.float32)
    np.asarray(cpu_kernels.linear(x, x))
    assert len(workers()) == 2
    deadline = time.monotonic() + 100
    while any(state(worker) != "S" for worker in workers()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_a_containers_share_of_the_cores(
    files: dict[str, str], cores: float, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert thread_pool._share(tmp_path) == cores
