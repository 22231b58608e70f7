"""The model families in Flax NNX: layers, what they cache, and how config.json is read."""
