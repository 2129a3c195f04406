"""Text and schemas that a server sent: cleaned for models and people, and removed from the logs of the SDK."""

import json
import logging
import re
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import category

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt._runtime.text import short_repr
from agentrt.types import JSONSchema

_MAX_SCHEMA = 100_000
_SHOWN_TO_MODELS = ("description", "title", "$comment")

# Removed with their parameters, so that no "[31m" is left.
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_VISIBLE = frozenset("\n\t")
_JOINERS = frozenset("\u200c\u200d")  # part of the spelling of some languages, and of emoji
# Loggers whose records quote an answer that cannot be parsed.
_SDK_LOGGERS = (
    "client",
    *(f"mcp.client.{part}" for part in ("client", "session", "streamable_http")),
    "mcp.client.auth.oauth2",  # answers of authorization servers, which may repeat a code or a secret
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


def validator_of(schema: object) -> Validator:
    """Return what checks values by a schema of a server; raises `SchemaError` for one that cannot be used."""
    if not isinstance(schema, dict):
        raise SchemaError(f"its schema is {short_repr(schema)}, not a JSON object")
    try:
        # First, since all that follows walks through it, and each request to a model has it.
        size = len(json.dumps(schema))
        if size > _MAX_SCHEMA:
            raise SchemaError(f"it has {size:,} bytes, and at most {_MAX_SCHEMA:,} are allowed")
        return Validator(schema, formats=False)  # the server checks those, by its own idea of them
    except RecursionError:
        raise SchemaError("its schema cannot be used: it is nested too deep") from None
    except SchemaError as error:
        raise SchemaError(f"its schema cannot be used: {error}") from None


def clean_schema(schema: JSONSchema, max_text: int) -> JSONSchema:
    """Return the schema with descriptions of at most `max_text` characters, and without hidden characters in them.

    Raises `SchemaError` for hidden characters anywhere else, such as in the names of properties.
    """
    return {key: _clean(key, value, max_text) for key, value in schema.items()}


def _clean(key: str, value: Any, max_text: int) -> Any:
    # The name of a property is read by the model, and sent back as it is.
    if has_hidden_characters(key):
        raise SchemaError("its schema has hidden characters in a name")
    if isinstance(value, dict):
        return {name: _clean(name, part, max_text) for name, part in value.items()}
    if isinstance(value, list):
        return [_clean("", part, max_text) for part in value]
    if isinstance(value, str):
        if key in _SHOWN_TO_MODELS:
            return clean_text(value, max_text)
        if has_hidden_characters(value):
            raise SchemaError("its schema has hidden characters in a value")
    return value


def fingerprint_of(name: str, description: str | None, schema: object) -> str:
    """Return a digest of a tool as its server describes it."""
    # Made before anything is cleaned, so that hidden characters count as well.
    text = json.dumps([name, description, schema], sort_keys=True)
    return sha256(text.encode()).hexdigest()


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
