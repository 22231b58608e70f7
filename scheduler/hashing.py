"""Content hashes of full blocks, chained: H(parent, tokens, extra keys), BLAKE2b with 256 bits.

A digest stands for everything up to the end of its block, so equal digests mean equal KV. The
extra keys are tagged and length-prefixed, so that no key can pass for another: the adapter and the
cache salt go into the root (and by the chain into every block), media into the blocks they touch.
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


def block_digests(
    request: Request, parent: bytes, token_ids: list[int], start: int, block_size: int
) -> list[bytes]:
    """Digests of the full blocks of token_ids, whose first token is at position `start`.

    What is hashed is the parent, the token ids as native unsigned ints, and the media keys.
    """
    data = array("I", token_ids).tobytes()
    width = block_size * array("I").itemsize
    digests = []
    for offset in range(0, len(data) - width + 1, width):
        content = data[offset : offset + width]
        if request.media:
            content += _media_key(request, start + offset // width * block_size, block_size)
        parent = blake2b(parent + content, digest_size=DIGEST_SIZE).digest()
        digests.append(parent)
    return digests


def _media_key(request: Request, start: int, block_size: int) -> bytes:
    return b"".join(
        b"media:%d:%d:%s" % (span.start - start, len(span.digest), span.digest)
        for span in request.media
        if span.start < start + block_size and start < span.start + span.length
    )
