"""The page of a server in Chromium, under load (needs jaxserve[dev] and a Chromium)."""
