"""The coding agent mends the program in the sandbox, asks, and continues where its process was killed."""

import subprocess
import sys

import dev
from tests.sandboxes import needs_bubblewrap

AGENT = dev.ROOT / "examples" / "coding_agent" / "agent.py"
OUTPUT = """\
run_command: exit code 1
search_files: shop/total.py:4: def total(prices: list[int], discount: int = 0) -> int:
read_file: \"\"\"What a basket costs.\"\"\"
edit_file: replaced 1 place in shop/total.py
(killed)
may it run {"argv": ["pip", "install", "pytest"]}? no
run_command: The user denied this call: The sandbox has no network: use unittest.
run_command: exit code 0
The discount is a percentage now, and all tests pass.
"""


def test_coding_agent_continues_after_a_kill_and_asks() -> None:
    needs_bubblewrap()
    source = (AGENT.parent / "repository" / "shop" / "total.py").read_text()
    done = subprocess.run(
        [sys.executable, "-W", "error", AGENT], capture_output=True, text=True, timeout=100, check=False, cwd="/"
    )
    assert (done.stdout, done.stderr) == (OUTPUT, "")
    assert (AGENT.parent / "repository" / "shop" / "total.py").read_text() == source
