"""jaxserve: LLM serving on JAX/XLA. The offline API. Names are imported on first use, so that
processes without a model (the HTTP server, the command line) don't import jax."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxserve.engine.frontend.async_llm import AsyncLLM
    from jaxserve.engine.frontend.llm import LLM
    from jaxserve.outputs import CompletionOutput, RequestOutput
    from jaxserve.sampling.params import (
        BeamSearchParams,
        SamplingParams,
        StructuredOutputsParams,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]
__version__ = "0.1.0"

_MODULES = {
    "AsyncLLM": "jaxserve.engine.frontend.async_llm",
    "LLM": "jaxserve.engine.frontend.llm",
    "CompletionOutput": "jaxserve.outputs",
    "RequestOutput": "jaxserve.outputs",
    "BeamSearchParams": "jaxserve.sampling.params",
    "SamplingParams": "jaxserve.sampling.params",
    "StructuredOutputsParams": "jaxserve.sampling.params",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'jaxserve' has no attribute {name!r}")
