"""Secrets in attributes, which `vars()`, a debugger and `asdict` do not show, and which no pickle holds."""

from typing import NoReturn, Self, TypeVar

from agentrt.errors import UsageError

_Hidden = TypeVar("_Hidden")


class NotPickled:
    """An object with secrets, which is not written down. It never changes, so a copy is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            f"{self!r} cannot be pickled, nor can what holds it, since it has a secret, such as a key or a password: "
            f"keep the options without it, and make the object again where it is used"
        )


class HiddenStr(NotPickled, str):
    """Text that is shown only where it is used."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class HiddenDict(NotPickled, dict[str, _Hidden]):
    """Values that are shown only where they are used."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "{'***': '***'}"
