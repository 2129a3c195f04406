"""`python -m agentrt.console`: the `agentrt` command."""

import sys

from agentrt.console.cli import main

if __name__ == "__main__":
    sys.exit(main())
