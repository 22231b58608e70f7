"""All operations of the API. Routes and the OpenAPI document are made from this table."""

from __future__ import annotations

from typing import Any

from jaxserve.server.api import (
    admin,
    chat,
    completions,
    embeddings,
    engine_events,
    health,
    lora,
    messages,
    models,
    responses,
    tokenization,
)
from jaxserve.server.api.shared.operation import Operation
from jaxserve.server.middleware.admission import EVENTS_PATH
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.chat.response import ChatChunk, ChatCompletion
from jaxserve.server.wire.completions.request import COMPLETION_UNSUPPORTED, CompletionRequest
from jaxserve.server.wire.completions.response import Completion
from jaxserve.server.wire.messages import response as messages_response
from jaxserve.server.wire.messages.request import (
    MESSAGES_UNSUPPORTED,
    CountTokensRequest,
    MessagesRequest,
)
from jaxserve.server.wire.responses.request import RESPONSES_UNSUPPORTED, ResponsesRequest
from jaxserve.server.wire.responses.response import Response

OPERATIONS = (
    Operation(
        *("POST", "/v1/chat/completions", chat.create_chat_completion),
        "Generates the next message of a conversation.",
        ChatCompletion,
        ChatCompletionRequest,
        event=ChatChunk,
        unsupported=CHAT_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/completions", completions.create_completion),
        "Continues texts.",
        Completion,
        CompletionRequest,
        event=Completion,
        unsupported=COMPLETION_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/responses", responses.create_response),
        "Generates a response to a conversation.",
        Response,
        ResponsesRequest,
        event=dict[str, Any],
        unsupported=RESPONSES_UNSUPPORTED,
    ),
    Operation(
        *("GET", "/v1/responses/{id}", responses.get_response),
        "A response that is stored.",
        Response,
    ),
    Operation(
        *("DELETE", "/v1/responses/{id}", responses.delete_response),
        "Removes a response that is stored.",
        responses.DeletedResponse,
    ),
    Operation(
        *("POST", messages_response.PATH, messages.create_message),
        "Generates the next message of a conversation, in Anthropic's API.",
        messages_response.Message,
        MessagesRequest,
        event=dict[str, Any],
        unsupported=MESSAGES_UNSUPPORTED,
    ),
    Operation(
        *("POST", f"{messages_response.PATH}/count_tokens", messages.count_tokens),
        "Counts the tokens of a conversation, in Anthropic's API.",
        messages_response.TokensCounted,
        CountTokensRequest,
        unsupported=MESSAGES_UNSUPPORTED,
    ),
    Operation(
        *("POST", "/v1/embeddings", embeddings.create_embeddings),
        "The embeddings of texts.",
        embeddings.Embeddings,
        embeddings.EmbeddingRequest,
    ),
    Operation(
        *("GET", EVENTS_PATH, engine_events.engine_events),
        "What the engine does with its blocks, as server-sent events.",
        event=engine_events.EngineEvent,
    ),
    Operation(
        *("GET", "/v1/models", models.list_models),
        "The names of the served model.",
        models.ModelList,
    ),
    Operation(
        *("GET", "/v1/models/{id:.+}", models.show_model),
        "The model of a name.",
        models.Model,
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
    Operation(
        "GET",
        "/health",
        health.health,
        "Whether the engine process is alive and makes progress.",
        health.Health,
    ),
    Operation("GET", "/ping", health.health, "The same as /health.", health.Health),
    Operation("POST", "/ping", health.health, "The same as /health.", health.Health),
    Operation("GET", "/ready", health.ready, "Whether new requests are accepted.", health.Health),
    Operation("GET", "/load", health.load, "Requests in flight.", health.Load),
    Operation("GET", "/metrics", health.metrics, "Metrics for Prometheus."),
    Operation("GET", "/version", health.version, "The server's version.", health.Version),
)

# Only with --enable-dev-endpoints.
ADMIN_OPERATIONS = (
    Operation(
        *("POST", "/reset_prefix_cache", admin.reset_prefix_cache),
        "Empties the prefix cache.",
        admin.AdminResponse,
    ),
    Operation(
        *("POST", "/v1/load_lora_adapter", lora.load_lora_adapter),
        "Loads an adapter under a name.",
        lora.LoraAdapterResponse,
        lora.LoadLoraAdapterRequest,
    ),
    Operation(
        *("POST", "/v1/unload_lora_adapter", lora.unload_lora_adapter),
        "Takes an adapter's name away.",
        lora.LoraAdapterResponse,
        lora.UnloadLoraAdapterRequest,
    ),
    Operation(
        *("POST", "/start_profile", admin.start_profile),
        "Starts JAX's profiler in the engine process.",
        admin.AdminResponse,
    ),
    Operation(
        *("POST", "/stop_profile", admin.stop_profile),
        "Stops the profiler and writes its trace.",
        admin.AdminResponse,
    ),
    Operation(
        *("GET", "/server_info", admin.server_info),
        "All settings, without API keys.",
        dict[str, Any],
    ),
)
