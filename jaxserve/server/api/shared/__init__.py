"""What several endpoints use: reading a request, conversations, generation, logprobs."""
