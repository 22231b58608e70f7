"""KV memory: the block pool, each sequence's block tables, content hashes and cache events."""
