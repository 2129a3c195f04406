"""Bodies of responses: decoded, bounded and closed, over sockets."""

import gzip
import tracemalloc
import zlib
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import anyio
import pytest

from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.limits import CallTimer, Timeouts
from agentrt._runtime.http.peer import HTTPPeer, HTTPResponse
from agentrt.errors import Malformed, Transient
from tests.conftest import _generators
from tests.http.raw_server import HANG, bomb, head, raw_server

TEXT = b"".join(b"%d is a number. " % number for number in range(20_000))


async def open_response(url: str, peer: HTTPPeer, max_bytes: float = 1_000_000) -> HTTPResponse:
    return await peer.send("GET", url, None, {}, CallTimer(Timeouts(), "the server"), max_bytes)


def new_peer(**options: Any) -> HTTPPeer:
    return HTTPPeer("its URL", Credentials("the server"), **options)


async def body_of(pieces: Iterable[Any], max_bytes: float = 1_000_000) -> list[bytes]:
    """Return the pieces of a body that a server sends in these."""
    peer, read = new_peer(), []
    async with raw_server(lambda: pieces) as server:
        response = await open_response(server.url, peer, max_bytes)
        try:
            while (piece := await response.read()) is not None:
                read.append(piece)
        finally:
            await response.aclose()
            await peer.aclose()
    return read


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity, GZip", gzip.compress),
        ("identity", bytes),
    ],
)
@pytest.mark.parametrize("size", [1, 50_000])
async def test_a_body_is_decoded_however_it_is_cut(encoding: str, encode: Any, size: int) -> None:
    sent = encode(TEXT)
    # Cut finely at its beginning and its end alone: each piece is a packet.
    cuts = [
        0,
        *range(1, 20, size),
        *range(20, len(sent) - 20, max(size, 10_000)),
        *range(len(sent) - 20, len(sent), size),
    ]
    pieces = [sent[start:end] for start, end in zip(cuts, [*cuts[1:], len(sent)], strict=True)]

    read = await body_of([head(f"content-encoding: {encoding}"), *pieces])

    assert b"".join(read) == TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip, br", "br, gzip", "x"])
async def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    with pytest.raises(Malformed, match=f"the server: the answer is encoded as '{encoding}', not as gzip or deflate"):
        await body_of([head(f"content-encoding: {encoding}"), gzip.compress(TEXT)])


async def test_what_is_not_gzip_is_malformed() -> None:
    with pytest.raises(Malformed, match="cannot be decoded as gzip"):
        await body_of([head("content-encoding: gzip"), b"plain words"])


async def test_a_bomb_ends_at_the_limit_and_takes_no_memory() -> None:
    sent = bomb()
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="more than 1,000,000 bytes: to take more, give max_bytes="):
            await body_of([head("content-encoding: gzip"), sent])
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


async def test_compressed_bytes_that_decode_to_nothing_are_bounded_too() -> None:
    nothing = zlib.compressobj(wbits=31)
    begin = nothing.compress(b"") + nothing.flush(zlib.Z_FULL_FLUSH)
    empty_block = b"\x00\x00\x00\xff\xff"

    with anyio.fail_after(20), pytest.raises(Malformed, match="more than 1,000,000 bytes"):
        await body_of(chain([head("content-encoding: gzip"), begin], repeat(empty_block * 10_000)))


async def test_a_body_that_is_cut_is_transient_and_says_how_much_came() -> None:
    with pytest.raises(Transient, match="the server: its answer was cut after 4 bytes: RemoteProtocolError"):
        await body_of([head("content-length: 9"), b"half"])


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("is_read", [True, False])
async def test_a_body_that_is_left_leaves_nothing_suspended(encoding: str, is_read: bool, anyio_backend: str) -> None:
    sent = gzip.compress(TEXT)[:-100] if encoding == "gzip" else TEXT
    peer = new_peer()
    async with raw_server(lambda: [head(f"content-encoding: {encoding}"), sent, HANG]) as server:
        response = await open_response(server.url, peer)
        if is_read:
            assert await response.read()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await response.aclose()
        await peer.aclose()
        left = [each.__qualname__ for each in _generators(anyio_backend) if each.ag_frame and is_of_client(each)]
    assert left == []


def is_of_client(generator: Any) -> bool:
    return str(generator.ag_frame.f_globals.get("__name__", "")).partition(".")[0] in ("httpx2", "httpcore2")
