"""Capabilities by the name of a model."""

import re
from functools import cache
from urllib.parse import urlsplit

from agentrt._runtime.model_interface.capabilities import ModelCapabilities
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError

_MAKER_PREFIX = lazy_pattern(r"^(?:anthropic|google|openai|x-ai)/")
_DATE_SUFFIX = lazy_pattern(r"[-@]\d{4}-?\d{2}-?\d{2}$")
_INPUTS = {"i": "image", "a": "audio", "v": "video", "p": "pdf"}
_MARKS = {"-": False, "?": None}
# As in "us.anthropic.claude-sonnet-4-5-20250929-v1:0", with or without the region and an ARN in front of it.
_ON_BEDROCK = lazy_pattern(r"^(?:arn:.*/)?(?:[a-z-]+\.)?(?:anthropic\.|(?=amazon\.))(.+?)(?:-v\d+(?::\d+k?)*)?$")
_SERVERS = {"groq": (".groq.com",), "bedrock": (".api.aws", ".amazonaws.com")}
"""The servers in the table, with the ends of their host names."""


def known_capabilities(model: str, base_url: str | None = None) -> ModelCapabilities:
    """Return the known capabilities of the model with this name; none, if it is not in the table.

    The name is looked up as it is, for the server and then for all servers; then without the maker's name in front,
    as OpenRouter writes it ("openai/gpt-5-mini"), or without what Bedrock adds to it, and without a date at the end
    ("gpt-5-mini-2025-08-07"). The versions of Claude may be written with dots.
    """
    models = read_table()
    if not isinstance(model, str):
        raise ConfigError(f"known_capabilities() takes the name of a model as a str, not {model!r:.100}")
    # Only makers that serve their own models: an open model has the limits of its server.
    name = _ON_BEDROCK.sub(r"\1", _MAKER_PREFIX.sub("", model))
    if name.startswith("claude-"):
        name = name.replace(".", "-")
    # By the end of the host name, since regions and gateways come before it.
    host = urlsplit(base_url or "").hostname or ""
    server = next((server for server, ends in _SERVERS.items() if host.endswith(ends)), "")
    for candidate in (f"{server}:{model}", model, name, _DATE_SUFFIX.sub("", name)):
        if candidate in models:
            return models[candidate]
    return ModelCapabilities()


@cache  # read once, when it is first needed
def read_table() -> dict[str, ModelCapabilities]:
    """Return the capabilities of each model in the table, by the names that stand there."""
    from agentrt.model.catalog.table import MODELS

    models: dict[str, ModelCapabilities] = {}
    # A text instead of calls: readable, and no slower to import.
    for line in filter(None, MODELS.splitlines()):
        names, *counts, inputs, abilities, _month = re.split(r"\s*\|\s*", line)
        context_size, max_input, max_output = (None if count == "?" else int(count) for count in counts)
        tools, schema, reasoning = (_MARKS.get(letter, True) for letter in abilities)
        inputs_taken = frozenset(_INPUTS[letter] for letter in inputs if letter in _INPUTS)
        capabilities = ModelCapabilities(
            context_size=context_size,
            max_input_tokens=max_input,
            max_output_tokens=max_output,
            inputs=None if inputs == "?" else inputs_taken,
            tools=tools,
            schema=schema,
            reasoning=reasoning,
        )
        # One object for all names of a line, since it is frozen.
        models |= dict.fromkeys(names.split(), capabilities)
    return models
