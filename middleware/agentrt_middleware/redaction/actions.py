"""Replacements for matches."""

import hashlib
import hmac
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from agentrt.errors import MiddlewareConfigError, RedactionBlocked
from agentrt_middleware.redaction.detectors import Detector

ACTIONS = ("block", "redact", "hash", "token", "mask")
"""The actions; where several detectors have found a place, the one that comes first here is taken."""

_RESTORABLE = ("tools", "output")
_SHOWN = 4  # characters of a masked value, if it has twice as many
_HASH_LETTERS = str.maketrans(
    "0123456789abcdef", "abcdefghijklmnop"
)  # a hash of digits may look like a number of a card
_HASH_LENGTH = 16

MakeToken = Callable[[str, str], str]
"""Returns the token for what a detector of that name has found."""


def check_action(title: str, action: object) -> str:
    """Return the action; raises `MiddlewareConfigError` for any other word, with the nearest."""
    if action not in ACTIONS:
        nearest = get_close_matches(str(action), ACTIONS, 1, cutoff=0.4)
        hint = f": did you mean {nearest[0]!r}?" if nearest else ""
        raise MiddlewareConfigError(
            f"{title} must be one of {', '.join(map(repr, ACTIONS))}, not {action!r:.200}{hint}"
        )
    return str(action)


class Actions:
    """The actions for the matches of several detectors."""

    def __init__(self, detectors: Sequence[Detector], action: str, hash_key: str | bytes | None) -> None:
        self._names = [detector.name for detector in detectors]
        self._actions = [
            action if detector.action is None else check_action(f"the action of {detector.name}", detector.action)
            for detector in detectors
        ]
        self.uses_tokens = "token" in self._actions
        key: object = hash_key
        if key is not None and (not isinstance(key, (str, bytes)) or len(key) < 8):
            raise MiddlewareConfigError("hash_key must be a str or bytes of at least 8 characters")
        self._hash_key = hash_key.encode() if isinstance(hash_key, str) else hash_key
        if "hash" in self._actions and hash_key is None:
            raise MiddlewareConfigError(
                'action="hash" needs a key, since hashes without one can be undone by trying: give hash_key=..., '
                "a secret of at least 8 characters"
            )

    def replacer(self, place: str, make_token: MakeToken | None) -> Callable[[str, Collection[int]], str]:
        """Return what replaces a find, for one place; without tokens and errors where `make_token` is `None`."""

        def replace(text: str, detectors: Collection[int]) -> str:
            # The strictest action decides: what overlaps something that is to be blocked is blocked.
            number = min(detectors, key=lambda each: (ACTIONS.index(self._actions[each]), each))
            name, action = self._names[number], self._actions[number]
            if action == "mask":
                return f"****{text[-_SHOWN:]}" if len(text) >= 2 * _SHOWN else "****"
            if action == "hash":
                assert self._hash_key is not None
                digest = hmac.new(self._hash_key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
                return f"[{name}_{digest[:_HASH_LENGTH].translate(_HASH_LETTERS)}]"
            if make_token is not None and action == "token":
                return make_token(name, text)
            if make_token is not None and action == "block":
                raise RedactionBlocked(f"{place} was blocked: it holds what {name} finds", detector=name)
            return f"[{name}]"

        return replace

    def check_restore(self, restore: object) -> tuple[str, ...]:
        """Return the places where tokens are to become values again; raises `MiddlewareConfigError` for others."""
        places = (restore,) if isinstance(restore, str) else restore
        if not isinstance(places, (list, tuple, set, frozenset)) or not all(place in _RESTORABLE for place in places):
            raise MiddlewareConfigError(
                f'RedactionMiddleware(restore=...) must be of "tools" and "output", not {restore!r:.200}'
            )
        if places and not self.uses_tokens:
            raise MiddlewareConfigError(
                'RedactionMiddleware(restore=...) restores tokens, and no detector makes any: give action="token"'
            )
        return tuple(places)
