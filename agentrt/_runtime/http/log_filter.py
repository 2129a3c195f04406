"""Keeps the headers of HTTP requests and responses out of the logs of the libraries that send them."""

import logging
import re
from collections.abc import Mapping

from agentrt._runtime.text import lazy_pattern

_HEADERS_MASK = "(headers left out)"
_LOGGERS = (
    *("httpx", "httpx2"),
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in ("connection", "http11", "http2", "proxy")),
)
_HEADERS_OF_TRACE = lazy_pattern(r"(_headers\.(?:complete|failed)) .*", re.DOTALL)
# Of HTTP/2, and of AWS's SDK, which writes whole requests and answers that hold keys.
_DROPPED_LOGGERS = (
    *("hpack.hpack", "hpack.table", "hpack.huffman"),
    *("botocore.auth", "botocore.endpoint", "botocore.parsers"),
)


class _HeaderFilter(logging.Filter):
    """Passes each record on without its headers."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_HEADERS_MASK if _are_headers(value) else value for value in record.args)
        elif _are_headers(record.args):
            record.args = (_HEADERS_MASK,)
        if isinstance(record.msg, str):
            record.msg = _HEADERS_OF_TRACE.sub(r"\1", record.msg)
        if record.exc_info:
            # An error about a header quotes it. Nothing is lost: the caller of the model gets the error itself.
            kind = record.exc_info[0]
            record.msg, record.args = f"{record.getMessage()} ({kind.__name__ if kind else None})", ()
            record.exc_info = record.exc_text = None
        return True


class _DropFilter(logging.Filter):
    """Drops every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        return False


def keep_headers_out_of_logs() -> None:
    """Keep headers out of every record of the client libraries, at any level; a second call changes nothing.

    The filters are set on the loggers, for the whole process, since handlers belong to the program.
    """
    for names, kind in ((_LOGGERS, _HeaderFilter), (_DROPPED_LOGGERS, _DropFilter)):
        for name in names:
            logger = logging.getLogger(name)
            if not any(isinstance(present, kind) for present in logger.filters):
                logger.addFilter(kind())


def _are_headers(value: object) -> bool:
    return isinstance(value, Mapping) and hasattr(value, "multi_items")
