from __future__ import annotations

import asyncio

import pytest

from jaxserve.server.admission import Admission
from jaxserve.server.wire.errors import ApiError


async def test_idle_after_the_last_request() -> None:
    admission = Admission()
    await asyncio.wait_for(admission.wait_idle(), 1)
    with admission.admit():
        with admission.admit():
            assert admission.in_flight == 2
        waiting = asyncio.create_task(admission.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)
    assert admission.in_flight == 0


async def test_a_failed_request_is_no_longer_in_flight() -> None:
    admission = Admission()
    with pytest.raises(ZeroDivisionError), admission.admit():
        raise ZeroDivisionError
    assert admission.in_flight == 0


async def test_closed_admission_refuses_requests() -> None:
    admission = Admission()
    with admission.admit():
        admission.close()
        with pytest.raises(ApiError) as raised, admission.admit():
            pass
        assert raised.value.status == 503
        assert admission.in_flight == 1
