"""Content hashes of full blocks, chained: H(parent, tokens, extra keys), BLAKE2b with 256 bits.

A digest covers all tokens up to the end of its block, so equal digests mean equal KV. The extra
keys, adapter and cache salt, are in the root and so, by the chain, in every block. They are tagged
and length-prefixed, so that no key can be mistaken for another.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from scheduler.request import Request

DIGEST_SIZE = 32  # bytes


def root_digest(request: Request) -> bytes:
    """Parent of a request's first block."""
    digest = blake2b(b"jaxserve", digest_size=DIGEST_SIZE)
    for tag, value in ((b"adapter", request.adapter), (b"salt", request.cache_salt)):
        if value is not None:
            data = value.encode() if isinstance(value, str) else value
            digest.update(b"%s:%d:%s" % (tag, len(data), data))
    return digest.digest()


def block_digests(parent: bytes, token_ids: list[int], block_size: int) -> list[bytes]:
    """Digests of the full blocks of token_ids, which follow the block with digest `parent`.

    What is hashed is the parent and the token ids as native unsigned ints.
    """
    data = array("I", token_ids).tobytes()
    width = block_size * array("I").itemsize
    digests = []
    for offset in range(0, len(data) - width + 1, width):
        content = parent + data[offset : offset + width]
        parent = blake2b(content, digest_size=DIGEST_SIZE).digest()
        digests.append(parent)
    return digests
