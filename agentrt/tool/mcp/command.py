"""The command that starts an MCP server, whose words may be secrets."""

from collections.abc import Iterator, Sequence

from agentrt._runtime.hidden import HiddenStr
from agentrt._runtime.text import lazy_pattern, mask

_WORD_OF_SECRET = r"[\w-]{0,50}(?:token|key|secret|passw\w{0,50}|auth\w{0,50})"
_SECRET_OPTION = lazy_pattern(rf"(?i)-{_WORD_OF_SECRET}")
# In one word: `--token=x` and `TOKEN=x`, and in a command for a shell `--token x` as well.
_ASSIGNMENT = lazy_pattern(rf"(?i)(?P<name>-{_WORD_OF_SECRET}[ =]|\b{_WORD_OF_SECRET}=)(?P<value>\S+)")
_HIDDEN_WORD = "***"


def hide_secrets(command: Sequence[str]) -> list[str]:
    """Return the words of a command; those with a secret are shown only where they are used.

    Secrets are the values of options and variables whose names say so, and what looks like a key or a password.
    """
    return [word if word == text else HiddenStr(word) for word, text in zip(command, shown_words(command), strict=True)]


def shown_words(command: Sequence[str]) -> Iterator[str]:
    """Return the words of a command, with their secrets masked."""
    is_value = False
    for word in command:
        yield _HIDDEN_WORD if is_value else mask(_ASSIGNMENT.sub(rf"\g<name>{_HIDDEN_WORD}", word))
        is_value = not is_value and _SECRET_OPTION.fullmatch(word) is not None


def secrets_of(command: Sequence[str]) -> list[str]:
    """Return the secrets in the words of a command, to mask them where the server repeats them."""
    hidden = [str(word) for word in command if isinstance(word, HiddenStr)]
    return [*hidden, *(found["value"] for word in hidden for found in _ASSIGNMENT.finditer(word))]
