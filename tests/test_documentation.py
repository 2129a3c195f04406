"""The programs in the documentation run, and the hook tables say what the hook table says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrt.hooks import HOOKS

ROOT = Path(__file__).parent.parent
HOOK_TABLES = ["README.md", "middleware/README.md"]
PAGES = [
    *HOOK_TABLES,
    "docs/coming-from-agentscope.md",
    "docs/custom-agents.md",
    "docs/models.md",
    "docs/human-approval-and-interruption.md",
]


def programs():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), 1):
            yield pytest.param(program, id=f"{page}-{number}")


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_the_documentation_runs(program):
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_the_first_readme_program_prints_chains_and_answer():
    first = next(programs()).values[0]
    printed = run(first).stdout
    assert "on_reasoning (stream)" in printed
    assert "1. Shout" in printed
    assert "5" in printed.splitlines()[-1]


@pytest.mark.parametrize("page", HOOK_TABLES)
def test_documented_hook_tables_are_those_of_the_runtime(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index("\n| hook | ") :].partition("\n\n")[0]
    rows = re.findall(r"^\| `(on_\w+)` \|(.*)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [spec.name for spec in HOOKS]
    for (_, row), spec in zip(rows, HOOKS, strict=True):
        wanted = [key for key in spec.keys if key != "agent"]
        assert all(f"`{key}`" in row for key in wanted)


@pytest.mark.parametrize("page", [*PAGES, "ARCHITECTURE.md", "benchmarks/README.md"])
def test_links_between_pages_lead_somewhere(page):
    source = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", source.read_text(encoding="utf-8")):
        found = source.parent / target if target else source
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def anchors(page: Path) -> list[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
