"""Text that a server sent: cleaned for models and people, and removed from the logs of the SDK."""

import logging
import re
from pathlib import Path
from unicodedata import category

__all__ = ["clean_text", "has_hidden_characters", "redact_sdk_logs"]

# Removed with their parameters, so that no "[31m" is left.
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_VISIBLE = frozenset("\n\t")
_JOINERS = frozenset("\u200c\u200d")  # part of the spelling of some languages, and of emoji
# Loggers whose records quote an answer that cannot be parsed.
_SDK_LOGGERS = (
    "client",
    *(f"mcp.client.{part}" for part in ("client", "session", "streamable_http")),
    *(f"mcp.shared.{part}" for part in ("direct_dispatcher", "dispatcher", "jsonrpc_dispatcher")),
)


def _is_hidden(character: str) -> bool:
    if character in _VISIBLE or character in _JOINERS:
        return False
    # Controls, direction marks, tags and other formats, private use, and halves of pairs.
    return category(character) in ("Cc", "Cf", "Co", "Cs")


def has_hidden_characters(text: str) -> bool:
    """Say whether the text has characters that a reader does not see, or that a terminal obeys."""
    # Each character is tested once: to test all of a long text would block the event loop.
    return not (text.isascii() and text.isprintable()) and any(map(_is_hidden, set(text)))


def clean_text(text: str, longest: int | None = None) -> str:
    """Return the text without what a reader does not see or a terminal obeys, and cut to `longest` characters."""
    # Nearly all texts have none, and a look is cheap.
    if has_hidden_characters(text):
        text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n"))
        text = text.translate({ord(character): None for character in set(text) if _is_hidden(character)})
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}... ({len(text) - longest:,} more characters were left out)"
    return text


class _QuoteFilter(logging.Filter):
    """Removes the quotes from records: the text after a colon, and that of an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        # Other packages may use the name of this logger too.
        if record.name == "client" and "mcp" not in Path(record.pathname).parts:
            return True
        text = record.getMessage().partition(": ")[0]
        kind = record.exc_info[0] if record.exc_info else None
        record.msg, record.args = text if kind is None else f"{text} ({kind.__name__})", ()
        record.exc_info = record.exc_text = None
        return True


def redact_sdk_logs() -> None:
    """Filter the records of the SDK's clients; a second call changes nothing.

    The filters are on the loggers, for the whole process, since handlers belong to the program.
    """
    for name in _SDK_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(present, _QuoteFilter) for present in logger.filters):
            logger.addFilter(_QuoteFilter())
