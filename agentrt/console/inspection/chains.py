"""`agentrt explain`: prints the chains of an agent, or compares them with those that a file has."""

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from agentrt.console.specs import load_agent
from agentrt.errors import ConfigError
from agentrt.text import encodable_text, escape_controls

__all__ = ["print_chains"]


def print_chains(options: argparse.Namespace) -> int:
    """Print the chains; with `options.check` print how they differ from that file, and return 1 if they do."""
    chains = escape_controls(load_agent(options.agent).explain(options.format))
    if options.check is None:
        print(encodable_text(chains, sys.stdout))
        return 0
    try:
        expected = Path(options.check).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{options.check!r} cannot be read ({error}): write it with `agentrt explain {options.agent} > FILE`"
        ) from error
    # A shell, an editor or a checkout on Windows may end the file in another way.
    before, after = expected.rstrip().splitlines(), chains.rstrip().splitlines()
    difference = list(unified_diff(before, after, options.check, options.agent, lineterm=""))
    for line in difference:
        print(encodable_text(line, sys.stdout))
    return 1 if difference else 0
