"""Plain data as TOML, which Python itself can only read."""

import json
import re
from collections.abc import Mapping
from datetime import date, time

from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(data: Mapping[str, object]) -> str:
    """Return the data as TOML: a table for each dict at the top, one for each dict of a list there.

    Raises `ConfigError` for a value that TOML has no form for, such as `None`.
    """
    values, tables = [], []
    for key, value in data.items():
        name = _write_key(key)
        if isinstance(value, dict):
            tables.append(_write_table(f"[{name}]", value))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            tables += [_write_table(f"[[{name}]]", item) for item in value]
        else:
            values.append(f"{name} = {_write_value(value)}\n")
    return "\n".join(["".join(values), *tables] if values else tables)


def _write_table(header: str, table: Mapping[str, object]) -> str:
    return "\n".join([header, *(f"{_write_key(key)} = {_write_value(value)}" for key, value in table.items()), ""])


def _write_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _write_string(key)


def _write_string(text: str) -> str:
    # A JSON string is one of TOML as well, except for one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write_value(value: object) -> str:
    if isinstance(value, str):
        return _write_string(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, dict):
        items = ", ".join(f"{_write_key(key)} = {_write_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    raise ConfigError(f'TOML has no form for {repr_of(value)}: write {{ ref = "module:name" }} in its place')
