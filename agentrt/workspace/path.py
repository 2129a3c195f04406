"""The rules for paths in a workspace, the same on every platform."""

from agentrt._runtime.text import lazy_pattern, repr_of
from agentrt.errors import AccessDenied

_MAX_PATH = 1_024  # characters
_MAX_PART = 240  # bytes: file systems take 255, and the temporary file of a write has a longer name
_MAX_FOLDERS = 32
_INTERNAL = "internal"
_DEVICE = lazy_pattern(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
# Windows ends a name before a colon, and takes a backslash for a slash.
_REFUSED_CHARACTERS = lazy_pattern(r"[\x00-\x1f\x7f\\:]")


def access_denied(path: object, location: str, why: str) -> AccessDenied:
    """Return the error for a path, naming the namespace."""
    return AccessDenied(
        f"access to {repr_of(path)} was denied: {why}; give a path inside of {location!r}, such as 'notes/today.md'"
    )


def parts_of(path: str, location: str) -> tuple[str, ...]:
    """Return the names along a relative path; raises `AccessDenied` for one that could lead out of its namespace.

    The rules do not depend on the platform, so that a conversation can continue on another one.
    """
    why = _problem_of_path(path)
    parts = () if why else tuple(part for part in path.split("/") if part not in ("", "."))
    if not why and len(parts) > _MAX_FOLDERS:
        why = f"it is more than {_MAX_FOLDERS} folders deep"
    for part in parts:
        why = why or _problem_of_part(part)
    if why:
        raise access_denied(path, location, why)
    return parts


def can_be_named(name: str) -> bool:
    """Say whether a name found on the disk is valid as a path."""
    name = name.removesuffix("/")
    return not (_problem_of_path(name) or _problem_of_part(name))


def is_reserved(parts: tuple[str, ...]) -> bool:
    """Say whether a path from the root leads to the program's own files, which no workspace shows."""
    # Case is ignored: some file systems ignore it.
    return bool(parts) and parts[0].casefold() == _INTERNAL


def _problem_of_path(path: object) -> str:
    if not isinstance(path, str):
        return f"a path is a str, not {type(path).__name__}"
    if len(path) > _MAX_PATH:
        return f"it has more than {_MAX_PATH} characters"
    if path.startswith(("/", "~")):
        return "it is absolute"
    if _REFUSED_CHARACTERS.search(path):
        return "it has a control character, a backslash or a colon"
    return ""


def _problem_of_part(part: str) -> str:
    if part == "..":
        return "'..' leads out of a folder"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    if size > _MAX_PART:
        return f"it has a name of more than {_MAX_PART} bytes"
    if part[-1] in ". " or _DEVICE.fullmatch(part):
        return f"{part!r:.60} is not a name that every platform has"
    return ""
