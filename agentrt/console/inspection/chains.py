"""`agentrt explain`: prints the chains of an agent, or compares them with those in a file."""

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from agentrt._runtime.text import encodable_text, escape_controls
from agentrt.console.specs import load_named_agent
from agentrt.errors import ConfigError


def print_chains(options: argparse.Namespace) -> int:
    """Print the chains, or the configuration.

    With `options.check`, print the differences from that file, and return 1 if there are any.
    """
    agent = load_named_agent(options)
    if options.format != "toml":
        chains = escape_controls(agent.explain(options.format))
    elif agent.config is not None:
        chains = escape_controls(agent.config.to_toml().rstrip())
    else:
        raise ConfigError(f"{options.agent!r} is an agent of a program, not of a file: write --config FILE")
    if options.check is None:
        print(encodable_text(chains, sys.stdout))
        return 0
    name = options.agent or f"--config {options.config}"
    try:
        expected = Path(options.check).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{options.check!r} cannot be read ({error}): write it with `agentrt explain {name} > FILE`"
        ) from error
    # A shell, an editor or a checkout on Windows may change the line ends.
    before, after = expected.rstrip().splitlines(), chains.rstrip().splitlines()
    difference = list(unified_diff(before, after, options.check, name, lineterm=""))
    for line in difference:
        print(encodable_text(line, sys.stdout))
    return 1 if difference else 0
