"""Keeps the words of servers out of the logs of the SDK, which quotes an answer that it cannot read."""

import logging

__all__ = ["keep_words_out_of_logs"]

_LOGGERS = (
    "client",
    *(f"mcp.client.{part}" for part in ("client", "session", "streamable_http")),
    *(f"mcp.shared.{part}" for part in ("direct_dispatcher", "dispatcher", "jsonrpc_dispatcher")),
)


class _WordsFilter(logging.Filter):
    """Lets each record pass without what it quotes: the text after a colon, and that of an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage().partition(": ")[0]
        kind = record.exc_info[0] if record.exc_info else None
        record.msg, record.args = text if kind is None else f"{text} ({kind.__name__})", ()
        record.exc_info = record.exc_text = None
        return True


def keep_words_out_of_logs() -> None:
    """Have every record of the SDK's clients pass a filter; a second call changes nothing.

    The filters stand on the loggers, for the whole process, since handlers belong to the program.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(present, _WordsFilter) for present in logger.filters):
            logger.addFilter(_WordsFilter())
