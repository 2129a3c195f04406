"""The programs in the documentation run, its links lead somewhere, and its tables say what the runtime does."""

import re
import subprocess
import sys

import pytest

from agentrt.hooks import HOOKS
from tests.documents import PAGES, ROOT, Program, all_programs, anchors_of, links_of, name_of, programs_of

HOOK_TABLES = ["README.md", "middleware/README.md"]


def run(program: Program) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program.source]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("program", all_programs(), ids=lambda program: program.name)
def test_a_program_of_the_documentation_runs(program):
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_the_first_readme_program_prints_chains_and_answer():
    first = programs_of(ROOT / "README.md")[0]
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in links_of(page):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found), f"{target}#{anchor}"
