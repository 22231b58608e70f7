"""/v1/embeddings by OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_both_formats_and_all_inputs(server: Any, client: openai.OpenAI) -> None:
    texts = [
        "A cat sat on the mat.",
        "A kitten lay on the rug.",
        "The bond market fell today. " * 9,
    ]
    # By default the client asks for base64, and decodes it.
    answer = client.embeddings.create(model=server.model, input=texts)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 60
    vectors = [entry.embedding for entry in answer.data]
    assert {len(vector) for vector in vectors} == {576}

    def similarity(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    for vector in vectors:
        assert similarity(vector, vector) == pytest.approx(1, abs=1e-5)
    assert similarity(vectors[0], vectors[1]) > similarity(vectors[0], vectors[2])

    floats = client.embeddings.create(model=server.model, input=texts[0], encoding_format="float")
    assert similarity(floats.data[0].embedding, vectors[0]) == pytest.approx(1, abs=1e-5)
    by_ids = client.embeddings.create(model=server.model, input=[[1, 2, 3], [4]], dimensions=576)
    assert len(by_ids.data) == 2
    assert by_ids.usage.prompt_tokens == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 64, "input": ""}, "dimensions"),  # refused before anything is computed
        ({"input": []}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ""}, "input"),
        ({"input": "x " * 3000}, "input"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"extra_body": {"priority": 2**31}}, "priority"),
    ],
)
def test_bad_requests_name_the_field(
    server: Any, client: openai.OpenAI, fields: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(**{"model": server.model, "input": "x", **fields})
    assert refused.value.param == param
