"""`python -m agentrt`: the same as the command `agentrt`."""

import sys

from agentrt.console.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
