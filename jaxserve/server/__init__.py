"""The HTTP face: an aiohttp app that speaks OpenAI's API in front of one `EngineClient`."""
