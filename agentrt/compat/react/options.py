"""Options and methods of 1.x agents that `ReActAgent` does not have, and what to use in their place."""

import warnings
from collections.abc import Iterable, Mapping

from agentrt.errors import ConfigError, UnknownKeywordError

_REPLACEMENTS = {
    "compression_config": "an agent shortens a long conversation by itself, see context_config=ContextConfig(...)",
    "instructions": "it goes by the name sys_prompt here",
    "system_prompt": "it goes by the name sys_prompt here",
    "tts_model": "write a middleware with on_print",
}
_NEVER_CALLED = {
    "_compress_memory_if_needed": _REPLACEMENTS["compression_config"],
    "_retrieve_from_knowledge": "write knowledge=..., and override search() of the KnowledgeBase",
    "_retrieve_from_long_term_memory": "write long_term_memory=..., and override retrieve() of the memory",
    "_summarizing": "after max_iters the model is asked once more, without tools, through on_reasoning",
    "generate_response": "a reply ends with the model's text, and one with a form with structured_model=...",
}


def check_react_options(cls: type, limits: Mapping[str, object], options: Iterable[str]) -> None:
    """Raise `ConfigError` for an option that goes by another name here, or says what another one says.

    `limits` are the options that a `ReActConfig` has as well, `None` where they are not given. The others go to the
    constructor of `Agent`, whose words for unknown keywords are those for an `Agent`.
    """
    for option in options:
        if option in _REPLACEMENTS:
            raise UnknownKeywordError(f"{cls.__name__}({option}=...) is not an option: {_REPLACEMENTS[option]}")
    for name, value in limits.items():
        if value is not None and "react_config" in options:
            raise ConfigError(
                f"{cls.__name__} takes {name} or react_config, not both: write ReActConfig({name}={value!r:.100})"
            )


def warn_of_uncalled_methods(cls: type) -> None:
    """Warn of methods that 1.x programs override and the runtime never calls."""
    for name in dir(cls):
        if name in _NEVER_CALLED or name.startswith("_retrieve_"):
            remedy = _NEVER_CALLED.get(name, "write a middleware with on_reply or on_system_prompt, or a tool")
            # Of the caller of the constructor.
            warnings.warn(f"the runtime never calls {cls.__name__}.{name}(): {remedy}", UserWarning, stacklevel=3)
