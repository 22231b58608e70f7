"""jaxserve: LLM serving on JAX/XLA. The offline API; names load on first use, so that light
processes (the HTTP server, the command line) never import jax by accident."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxserve.engine.frontend.llm import LLM
    from jaxserve.outputs import CompletionOutput, RequestOutput
    from jaxserve.sampling.params import (
        BeamSearchParams,
        SamplingParams,
        StructuredOutputsParams,
    )

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]
__version__ = "0.1.0"

_HOMES = {
    "LLM": "jaxserve.engine.frontend.llm",
    "CompletionOutput": "jaxserve.outputs",
    "RequestOutput": "jaxserve.outputs",
    "BeamSearchParams": "jaxserve.sampling.params",
    "SamplingParams": "jaxserve.sampling.params",
    "StructuredOutputsParams": "jaxserve.sampling.params",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxserve' has no attribute {name!r}")
