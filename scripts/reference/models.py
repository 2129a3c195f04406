"""The page of all models whose capabilities are known."""

from agentrt._runtime.model_interface.capabilities import INPUTS, ModelCapabilities
from agentrt.model.catalog.lookup import read_table
from agentrt.model.catalog.table import MODELS
from scripts.reference.markdown import GENERATED, table

__all__ = ["pages"]

_WORDS = {True: "yes", False: "no", None: ""}


def pages() -> dict[str, str]:
    """Return the text of the page by its file name."""
    known = read_table()
    lines = [line.split("|") for line in MODELS.splitlines() if line]
    names: dict[tuple[ModelCapabilities, str], list[str]] = {}
    for listed, *_, month in lines:
        for name in listed.split():
            names.setdefault((known[name], month.strip()), []).append(f"`{name}`")
    head = ("models", "context", "request", "answer", "takes", "tools", "schema", "reasoning", "looked up")
    rows = [(", ".join(models), *_cells(capabilities), month) for (capabilities, month), models in names.items()]
    text = f"""# Known models

{GENERATED}
What `known_capabilities(name)` knows, and so `model.capabilities` of a model with that name; an empty cell is unknown.
[What a model can do](../how-to/models.md#what-a-model-can-do) says what it is for, and how to say something else.
Tokens are the most in all, of a request where that is less, and of an answer. A name with a server in front, such as
`groq:`, is that of a model on this server. Dates at the end of names may be left out or added.
The facts are those of [models.dev](https://models.dev), with corrections of our own.

{table(head, *rows)}"""
    return {"models.md": text}


def _cells(known: ModelCapabilities) -> tuple[str, ...]:
    counts = (known.context_size, known.max_input_tokens, known.max_output_tokens)
    taken = "" if known.inputs is None else ", ".join(word for word in INPUTS if word in known.inputs)
    abilities = (known.tools, known.schema, known.reasoning)
    return (*("" if count is None else f"{count:,}" for count in counts), taken, *(_WORDS[word] for word in abilities))
