"""`jaxserve bench`: load on any OpenAI-compatible server, offline runs, start-up time."""
