"""Compiling: stopped early, and from traced programs on disk."""

from __future__ import annotations

import os
import time
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp
import pytest

from jaxserve.engine.device.compilation import traced_programs
from jaxserve.engine.device.compilation.compile_jobs import CompileJob, compile_jobs
from jaxserve.engine.device.compilation.traced_programs import TracedPrograms

SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)


def test_no_program_is_begun_once_it_is_stopped() -> None:
    stop, traced = Event(), []

    def stop_compiling(x: jax.Array) -> jax.Array:
        traced.append("first")
        stop.set()
        return x

    def second(x: jax.Array) -> jax.Array:
        traced.append("second")
        return x

    jobs = {1: CompileJob(stop_compiling, (SHAPE,)), 2: CompileJob(second, (SHAPE,))}
    with pytest.raises(CancelledError):
        compile_jobs(jobs, False, stop)
    assert traced == ["first"]
    done = compile_jobs({2: jobs[2]}, False, Event())
    assert done[2](jnp.ones(2)).tolist() == [1, 1]


def test_a_program_on_disk_isnt_traced_again(tmp_path: Path) -> None:
    times = []

    def run(origin: int, key: str) -> list[float]:
        def double(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            times.append(len(times))
            return 2 * x, x

        lower = TracedPrograms(tmp_path, origin).lower
        (done,) = compile_jobs(
            {key: CompileJob(double, (SHAPE,), (0,))}, False, Event(), lower
        ).values()
        assert done.memory_analysis().alias_size_in_bytes == 8
        return done(jnp.ones(2))[0].tolist()

    assert run(1, "a") == run(1, "a") == [2, 2]
    assert len(times) == 1
    assert run(1, "b") == run(2, "a") == [2, 2]
    assert len(times) == 3
    assert run(1, "a") == run(1, "b") == [2, 2]
    assert len(times) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "one byte", "foreign"])
def test_a_damaged_program_on_disk_is_traced_again_and_replaced(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = []

    def run() -> list[float]:
        def double(x: jax.Array) -> jax.Array:
            times.append(len(times))
            return 2 * x

        lower = TracedPrograms(tmp_path, 1).lower
        (done,) = compile_jobs(
            {"a": CompileJob(double, (SHAPE,), ())}, False, Event(), lower
        ).values()
        return done(jnp.ones(2)).tolist()

    assert run() == [2, 2]
    (file,) = tmp_path.glob("*/*")
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(
        {
            "cut": whole[:-100],
            "empty": b"",
            "one byte": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "foreign": b"a file of somebody else's, longer than a digest",
        }[damage]
    )
    assert run() == run() == [2, 2]
    assert len(times) == 2
    assert file.read_bytes() == whole
    assert "damaged" in caplog.text


def test_the_least_recently_used_origins_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_programs, "KEPT", 3)

    def use(*origins: str) -> None:
        for origin in origins:
            used = TracedPrograms(tmp_path, origin)._folder
            (used / "program").write_text(origin)
            now[0] += 10
            os.utime(used, (now[0], now[0]))

    now = [time.time() - 1000]
    use("a", "b", "c", "a", "d", "a")
    assert sorted(path.read_text() for path in tmp_path.glob("*/program")) == ["a", "c", "d"]
