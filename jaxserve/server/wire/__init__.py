"""What is sent and received over HTTP: request and response types, their validation, errors, SSE.

Types of the endpoints that generate text have a folder each. Types of the smaller endpoints are
beside their handlers in `api`.
"""
