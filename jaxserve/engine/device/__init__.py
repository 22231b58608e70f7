"""What runs on the device: step shapes, compiled programs, KV cache and sampling state."""
