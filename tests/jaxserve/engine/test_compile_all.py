"""Compiling that is given up."""

from __future__ import annotations

from concurrent.futures import CancelledError
from threading import Event

import jax
import jax.numpy as jnp
import pytest

from jaxserve.engine.compile_all import Job, compile_together

SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)


def test_no_program_is_begun_once_it_is_given_up() -> None:
    given_up, traced = Event(), []

    def give_up(x: jax.Array) -> jax.Array:
        traced.append("first")
        given_up.set()
        return x

    def second(x: jax.Array) -> jax.Array:
        traced.append("second")
        return x

    jobs = {1: Job(give_up, (SHAPE,)), 2: Job(second, (SHAPE,))}
    with pytest.raises(CancelledError):
        compile_together(jobs, False, given_up)
    assert traced == ["first"]
    done = compile_together({2: jobs[2]}, False, Event())
    assert done[2](jnp.ones(2)).tolist() == [1, 1]
