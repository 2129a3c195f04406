"""Patterns as RE2 compiles them."""

from functools import lru_cache
from typing import Any

from agentrt.errors import MiddlewareConfigError

_MAX_MEMORY = 64 << 20  # bytes, of one pattern; it takes what it needs


@lru_cache(maxsize=512)  # RE2 takes milliseconds for the larger ones, and a program may make many middlewares
def compile_for_re2(*patterns: str, at_end: bool = False) -> Any:
    """Return one pattern of RE2 for any of these; with `at_end` their matches must reach the end of the text."""
    try:
        import re2
    except ImportError as error:
        raise MiddlewareConfigError(
            'RedactionMiddleware needs the package google-re2: pip install "agentrt[redaction]"'
        ) from error
    options = re2.Options()
    options.longest_match = True  # the shorter of two matches may end inside of a secret
    options.log_errors = False  # they go to standard error, pattern and all
    options.max_mem = _MAX_MEMORY
    # As bytes, so that places need not be converted; RE2 reads them as UTF-8 all the same.
    return re2.compile(f"(?:{'|'.join(patterns)}){chr(92) + 'z' if at_end else ''}".encode(), options)


def re2_problem(pattern: str) -> str | None:
    """Return why RE2 does not take the pattern, `None` if it does."""
    try:
        compile_for_re2(pattern)
    except MiddlewareConfigError:  # the extra is missing
        raise
    except Exception as error:  # noqa: BLE001  # RE2's own, which are not derived from one class; or no UTF-8
        text = error.args[0] if error.args else ""
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text) or type(error).__name__
    return None
