"""Converts a message of a memory to JSON values, and back."""

from contextlib import suppress

from pydantic_core import ValidationError

from agentrt.errors import SessionCorrupt, SessionUnserializable
from agentrt.memory.arguments import strings_of
from agentrt.message import Msg, message_adapter, message_serializer

MarkedMessage = tuple[Msg, list[str]]


def message_to_json(number: int, msg: Msg) -> object:
    """Return a message as JSON values; raises `SessionUnserializable` for one that JSON cannot hold."""
    # Not through JSON text, which cannot hold surrogates, though a model may have written some. Pydantic's errors,
    # which are ValueErrors, may quote the message: none leaves this function.
    with suppress(ValueError):  # only loadable values are saved
        # A number that is not finite stays as it is, for the save to refuse, and does not become `None`.
        fields: object = message_serializer().to_python(msg, mode="json", warnings="none")
        message_adapter().validate_python(fields)
        return fields
    raise SessionUnserializable(
        f"message {number} of a memory holds something that JSON cannot hold, or not the type that it should have, "
        f"most likely in its metadata: keep strings, finite numbers, lists and dicts there"
    )


def marked_message_from_json(number: int, saved: object) -> MarkedMessage:
    """Return a message and its marks; raises `SessionCorrupt` for anything else."""
    fields, marks = saved, []  # the format before there were marks
    if not isinstance(saved, dict):
        if not (isinstance(saved, list) and len(saved) == 2 and isinstance(saved[1], list)):
            raise SessionCorrupt(f"message {number} of a memory must be a pair of a message and a list of its marks")
        fields, marks = saved[0], strings_of("marks", saved[1])
    try:
        return message_adapter().validate_python(fields), marks
    except ValidationError as exc:
        place = ".".join(map(str, exc.errors(include_input=False)[0]["loc"]))
    # Raised here, since pydantic's error, which quotes the refused value, would become the context of this one.
    raise SessionCorrupt(f"message {number} of a memory cannot be read: something is wrong with its {place!r:.100}")
