"""The HTTP server: an aiohttp application that speaks OpenAI's API in front of one engine."""
