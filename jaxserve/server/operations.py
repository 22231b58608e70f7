"""Every operation of the API, once: the routes and their description are made from these."""

from __future__ import annotations

from typing import Any

from jaxserve.server import (
    chat,
    completions,
    embeddings,
    health,
    models,
    operators,
    requests,
    responses,
    responses_api,
    tokens,
)
from jaxserve.server.openapi import Operation

OPERATIONS = (
    Operation(
        *("POST", "/v1/chat/completions", chat.create_chat_completion),
        "Answers a conversation.",
        responses.ChatCompletion,
        requests.ChatCompletionRequest,
        event=responses.ChatChunk,
        refused=requests.CHAT_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/completions", completions.create_completion),
        "Continues texts.",
        responses.TextCompletion,
        requests.CompletionRequest,
        event=responses.TextCompletion,
        refused=requests.COMPLETION_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/responses", responses_api.create_response),
        "Answers a conversation; stores nothing.",
        responses_api.Response,
        responses_api.ResponsesRequest,
        event=dict[str, Any],
        refused=responses_api.UNSUPPORTED,
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
        responses.ModelList,
    ),
    Operation(
        *("GET", "/v1/models/{id:.+}", models.show_model),
        "The model behind a name.",
        responses.Model,
    ),
    Operation(
        *("POST", "/tokenize", tokens.tokenize),
        "The tokens of a text or a conversation.",
        tokens.Tokens,
        tokens.TokenizeRequest,
    ),
    Operation(
        *("POST", "/detokenize", tokens.detokenize),
        "The text of tokens.",
        tokens.Text,
        tokens.DetokenizeRequest,
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
        *("POST", "/reset_prefix_cache", operators.reset_prefix_cache),
        "Forgets all cached text.",
        operators.Done,
    ),
    Operation(
        *("POST", "/start_profile", operators.start_profile),
        "Starts JAX's profiler in the engine.",
        operators.Done,
    ),
    Operation(
        *("POST", "/stop_profile", operators.stop_profile),
        "Stops it and writes what it saw.",
        operators.Done,
    ),
    Operation(
        *("GET", "/server_info", operators.server_info),
        "Every setting, but for the keys.",
        dict[str, Any],
    ),
)
