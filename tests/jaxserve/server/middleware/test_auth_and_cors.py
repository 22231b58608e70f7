"""API keys, and which web pages may use the server. No engine is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError
from jaxserve.server.api.route_table import ADMIN_OPERATIONS, OPERATIONS
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app
from jaxserve.server.middleware.auth import PUBLIC_PATHS

PAGE = "https://page.example"


async def client_of(config: ServerConfig, keys: ApiKeys) -> AsyncIterator[TestClient[Any, Any]]:
    app = create_app(cast(EngineClient, None), config, keys)
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.fixture
async def http() -> AsyncIterator[TestClient[Any, Any]]:
    config = ServerConfig(served_model_names=("m",), allowed_origins=(PAGE,))
    async for client in client_of(config, ApiKeys(["secret", "other"])):
        yield client


@pytest.mark.parametrize(
    "header", [None, "secret", "Basic secret", "Bearer", "Bearer wrong", "Bearer secret x"]
)
async def test_requests_without_a_valid_key_are_refused(
    http: TestClient[Any, Any], header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/v1/models/m", "/load", "/nowhere"):
        response = await http.get(path, headers=headers)
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        error = (await response.json())["error"]
        assert error["code"] == "invalid_api_key"
        assert "wrong" not in error["message"]


@pytest.mark.parametrize("header", ["Bearer secret", "bearer other", "Bearer  secret "])
async def test_each_valid_key_is_accepted(http: TestClient[Any, Any], header: str) -> None:
    response = await http.get("/load", headers={"Authorization": header})
    assert response.status == 200
    assert await response.json() == {"server_load": 0}


async def test_every_route_but_the_public_ones_needs_a_key() -> None:
    config = ServerConfig(served_model_names=("m",), enable_dev_endpoints=True)
    operations = [operation.route() for operation in (*OPERATIONS, *ADMIN_OPERATIONS)]
    assert len(operations) > 15
    refused = set()
    async for http in client_of(config, ApiKeys(["secret"])):
        for route in operations:
            path = route.path.replace("{id:.+}", "m")
            response = await http.request(route.method, path)
            if response.status == 401:
                refused.add(path)
            else:
                assert path in PUBLIC_PATHS
        for path in ("/docs", "/openapi.json"):
            assert (await http.get(path)).status == 200
    assert not refused & PUBLIC_PATHS
    assert {"/v1/chat/completions", "/v1/models", "/load", "/reset_prefix_cache"} <= refused


async def test_credentials_are_allowed_only_with_the_setting() -> None:
    for allowed in (False, True):
        config = ServerConfig(allowed_origins=(PAGE,), allow_credentials=allowed)
        async for http in client_of(config, ApiKeys()):
            response = await http.get("/version", headers={"Origin": PAGE})
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            found = response.headers.get("Access-Control-Allow-Credentials")
            assert found == ("true" if allowed else None)


async def test_probes_need_no_key(http: TestClient[Any, Any]) -> None:
    for path in ("/version", "/metrics"):
        assert (await http.get(path)).status == 200


def test_keys_come_from_settings_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("two\n\n  three  \n")
    config = ServerConfig(api_key=("one",), api_key_file=str(file))
    keys = ApiKeys.load(config, {"JAXSERVE_API_KEY": "four, five"})
    salts = [keys.find(key) for key in ("one", "two", "three", "four", "five")]
    assert None not in salts
    assert len(set(salts)) == 5
    assert keys.find("six") is None
    assert keys.find("") is None
    assert not ApiKeys.load(ServerConfig(), {})
    with pytest.raises(ConfigError, match="JAXSERVE_API_KEY"):
        ApiKeys.load(ServerConfig(), {"JAXSERVE_API_KEY": " ,"})
    assert "'one'" not in repr(config)
    for broken in (ServerConfig(api_key_file=str(tmp_path / "none")), ServerConfig(api_key=("",))):
        with pytest.raises(ConfigError, match="api_key"):
            ApiKeys.load(broken, {})


async def test_preflight_requests(http: TestClient[Any, Any]) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a, y"}
    response = await http.options("/v1/chat/completions", headers={"Origin": PAGE, **asks})
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == "x-a, y"
    stranger = await http.options("/v1/chat/completions", headers={"Origin": "https://x", **asks})
    assert stranger.status == 401
    assert "Access-Control-Allow-Origin" not in stranger.headers


async def test_cors_headers_of_responses_and_errors(http: TestClient[Any, Any]) -> None:
    for path, status in (("/version", 200), ("/load", 401)):
        response = await http.get(path, headers={"Origin": PAGE})
        assert response.status == status
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert response.headers["Vary"] == "Origin"
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_any_origin() -> None:
    async for http in client_of(ServerConfig(allowed_origins=("*",)), ApiKeys()):
        response = await http.get("/version", headers={"Origin": PAGE})
        assert response.headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://{own}"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://before.the.proxy"}, 200),
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 200),
        ({"Origin": "https://other.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://{own}"}, 403),
    ],
)
async def test_pages_of_other_sites_cannot_use_admin_endpoints(
    headers: dict[str, str], status: int
) -> None:
    class Engine:
        async def run_admin_command(self, *command: str) -> bool:
            return True

    config = ServerConfig(
        served_model_names=("m",), allowed_origins=(PAGE,), enable_dev_endpoints=True
    )
    async with TestClient(TestServer(create_app(cast(EngineClient, Engine()), config))) as http:
        own = f"{http.host}:{http.port}"
        sent = {name: value.format(own=own) for name, value in headers.items()}
        for path in ("/reset_prefix_cache", "/start_profile", "/stop_profile"):
            response = await http.post(path, headers=sent)
            assert response.status == status
            if status == 403:
                assert (await response.json())["error"]["code"] == "cross_site"
