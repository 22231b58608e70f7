"""Every operation of the API, once: the routes and their description are made from these."""

from __future__ import annotations

from typing import Any

from jaxserve.server.api import (
    admin,
    chat,
    completions,
    embeddings,
    health,
    models,
    responses,
    tokenization,
)
from jaxserve.server.api.openapi import Operation
from jaxserve.server.wire import answers, requests

OPERATIONS = (
    Operation(
        *("POST", "/v1/chat/completions", chat.create_chat_completion),
        "Answers a conversation.",
        answers.ChatCompletion,
        requests.ChatCompletionRequest,
        event=answers.ChatChunk,
        refused=requests.CHAT_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/completions", completions.create_completion),
        "Continues texts.",
        answers.TextCompletion,
        requests.CompletionRequest,
        event=answers.TextCompletion,
        refused=requests.COMPLETION_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/responses", responses.create_response),
        "Answers a conversation; stores nothing.",
        responses.Response,
        responses.ResponsesRequest,
        event=dict[str, Any],
        refused=responses.UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/embeddings", embeddings.create_embeddings),
        "The embeddings of texts.",
        embeddings.Embeddings,
        embeddings.EmbeddingRequest,
    ),
    Operation(
        *("GET", "/v1/models", models.list_models),
        "The names of the model that is served.",
        answers.ModelList,
    ),
    Operation(
        *("GET", "/v1/models/{id:.+}", models.show_model),
        "The model behind a name.",
        answers.Model,
    ),
    Operation(
        *("POST", "/tokenize", tokenization.tokenize),
        "The tokens of a text or a conversation.",
        tokenization.Tokens,
        tokenization.TokenizeRequest,
    ),
    Operation(
        *("POST", "/detokenize", tokenization.detokenize),
        "The text of tokens.",
        tokenization.Text,
        tokenization.DetokenizeRequest,
    ),
    Operation("GET", "/health", health.health, "Whether the engine process lives.", health.Health),
    Operation("GET", "/ping", health.health, "The same as /health.", health.Health),
    Operation("POST", "/ping", health.health, "The same as /health.", health.Health),
    Operation("GET", "/ready", health.ready, "Whether requests are let in.", health.Health),
    Operation("GET", "/load", health.load, "Requests in flight.", health.Load),
    Operation("GET", "/metrics", health.metrics, "Figures for Prometheus."),
    Operation("GET", "/version", health.version, "The server's version.", health.Version),
)

# For operators alone.
OPERATORS = (
    Operation(
        *("POST", "/reset_prefix_cache", admin.reset_prefix_cache),
        "Forgets all cached text.",
        admin.Done,
    ),
    Operation(
        *("POST", "/start_profile", admin.start_profile),
        "Starts JAX's profiler in the engine.",
        admin.Done,
    ),
    Operation(
        *("POST", "/stop_profile", admin.stop_profile),
        "Stops it and writes what it saw.",
        admin.Done,
    ),
    Operation(
        *("GET", "/server_info", admin.server_info),
        "Every setting, but for the keys.",
        dict[str, Any],
    ),
)
