"""The programs in the documentation run and print what it says, its links lead somewhere, its tables are complete."""

import ast
import contextlib
import inspect
import io
import re
import subprocess
import sys

import pytest

from agentrt import middleware
from agentrt.console.cli import main
from agentrt.hooks import HOOKS, MiddlewareBase
from tests.documents import (
    CONFIG,
    NAVIGATION,
    PAGES,
    REPOSITORY,
    ROOT,
    SITE,
    all_programs,
    anchors_of,
    links_of,
    programs_of,
)
from tests.documents import name_of as name_of_page
from tests.sandboxes import needs_bubblewrap

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PROGRAM_FOLDERS = ("agentrt", "benchmarks", "examples", "middleware", "scripts")
TESTING = DOCS / "tutorials" / "testing.md"
HOOK_TABLES = [DOCS / "middlewares" / "index.md"]
SHIPPED = [
    thing
    for name in middleware.__all__
    if inspect.isclass(thing := getattr(middleware, name))
    and issubclass(thing, MiddlewareBase)
    and thing not in (MiddlewareBase, middleware.HookMiddleware)
]
NOT_OPTIONS = {"self", "clock", "random"}  # for tests


@pytest.mark.slow
@pytest.mark.parametrize("program", all_programs(), ids=lambda program: program.name)
def test_a_program_of_the_documentation_runs(program, program_runner):
    if "BubblewrapSandbox(" in program.source:
        needs_bubblewrap()
    done = program_runner.run(program.source)
    assert done.returncode == 0, done.stderr
    # What it logs surprises nobody: the program sets logging up, or the page says what it logs.
    logged = done.stderr.partition("\n")[0]
    assert "logging" in program.source or logged in program.page.read_text(encoding="utf-8")
    if program.output is not None:
        assert re.fullmatch(shape_of(program.output), without_places(done.stdout), re.DOTALL), done.stdout


@pytest.mark.slow
def test_the_test_file_of_the_tutorial_passes(tmp_path):
    [program] = [program for program in programs_of(TESTING) if "\npytestmark = " in program.source]
    file = tmp_path / "test_shop.py"
    file.write_text(program.source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"^3 passed in ", done.stdout, re.MULTILINE), done.stdout


def shape_of(output: str) -> str:
    """Return a pattern for what a page shows, in which a line "..." stands for any lines."""
    return "(?:.*\n)?".join(map(re.escape, re.split(r"^\.\.\.\n", without_places(output), flags=re.MULTILINE)))


def without_places(text: str) -> str:
    """Leave out where `explain()` says that a layer is defined: that changes with every edit."""
    return re.sub(r"(?m)  \S+:\d+$|<br/>[\w./]+:\d+", "", text)


def test_output_with_an_ellipsis_matches_any_lines_there():
    assert re.fullmatch(shape_of("a\n...\nz\n"), "a\nb\nc\nz\n", re.DOTALL)
    assert re.fullmatch(shape_of("a\n...\n"), "a\n", re.DOTALL)
    assert not re.fullmatch(shape_of("a\n...\nz\n"), "a\nb\n", re.DOTALL)
    assert not re.fullmatch(shape_of("a\n"), "a\nb\n", re.DOTALL)


@pytest.mark.parametrize("page", HOOK_TABLES, ids=name_of_page)
def test_documented_hook_tables_are_those_of_the_runtime(page):
    text = page.read_text(encoding="utf-8")
    table = text[text.index("\n| hook | ") :].partition("\n\n")[0]
    rows = re.findall(r"^\| `(on_\w+)` \|(.*)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [spec.name for spec in HOOKS]
    for (_, row), spec in zip(rows, HOOKS, strict=True):
        wanted = [key for key in spec.keys if key != "agent"]
        assert all(f"`{key}`" in row for key in wanted)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, anchor in links_of(page):
            assert target.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors_of(target), f"{page}: {target}#{anchor}"


def test_links_of_the_readme_are_relative():
    links = re.findall(r"\]\(([^()\s]*)\)", README.read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if ":" in link]


def test_links_to_files_of_the_repository_are_relative():
    for page in PAGES:
        assert not re.search(rf"{REPOSITORY}/(?:blob|tree)/", page.read_text(encoding="utf-8")), page


def test_nothing_leads_to_the_site_before_it_is_published():
    programs = [file for folder in PROGRAM_FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files = [*PAGES, *programs, *ROOT.glob(".github/**/*.yml"), ROOT / "pyproject.toml"]
    found = [name_of_page(file) for file in files if SITE in file.read_text(encoding="utf-8")]
    assert not found, "link to the page's file in the repository, such as docs/start.md"


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "tutorials" / "untrusted-text.md"], ids=name_of_page)
def test_the_picture_of_an_agent_is_that_of_its_program(page):
    [*_, program] = [program for program in programs_of(page) if "middlewares=" in program.source]
    [picture] = re.findall(r"^```mermaid\n(.*?)\n```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    drawn = agent_of(program).explain("mermaid")
    assert without_places(picture) == without_places(drawn), f"{name_of_page(page)} should have:\n{drawn}"


def agent_of(program):
    """Return the `agent` that a program makes, as if it were the file `chat.py`."""
    names = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(program.source, "chat.py", "exec"), names)
    return names["agent"]


def test_a_page_begins_with_a_sentence():
    for page in NAVIGATION:
        *_, text = re.split(r"^# .*\n", page.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
        prose = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).lstrip()
        assert re.match(r"[\w`*\[]|--8<--", prose), page


def test_the_command_line_page_lists_all_options(capsys):
    with pytest.raises(SystemExit):
        main(["chat", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out))
    text = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert options
    assert not [option for option in options if option not in text]


def test_the_readme_is_short_and_begins_with_two_commands():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150
    assert all(command in "\n".join(lines[:40]) for command in ("pip install agentrt", "python3 dev.py demo"))


def test_navigation_names_each_page_of_the_site_once():
    assert sorted(NAVIGATION) == [page for page in PAGES if DOCS in page.parents]


def test_navigation_names_no_page_as_another_one_or_its_section():
    for section in re.split(r"^  - ", CONFIG[CONFIG.index("\nnav:") :], flags=re.MULTILINE)[1:]:
        assert not [name for name in re.findall(r"^ +- (\S+\.md)$", section, re.MULTILINE) if "index.md" not in name]
        titles = re.findall(r"^ +- (.*?):(?: |$)", section, re.MULTILINE)
        assert sorted(titles) == sorted(set(titles))


def test_readme_and_catalogue_list_all_shipped_middlewares():
    for page in (README, DOCS / "middlewares" / "catalogue.md"):
        text = page.read_text(encoding="utf-8")
        assert not [shipped.__name__ for shipped in SHIPPED if f"[{shipped.__name__}](" not in text]


@pytest.mark.parametrize("shipped", SHIPPED)
def test_the_page_of_a_middleware_lists_its_options_and_defaults(shipped):
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    own_page = re.compile(rf"\A# {shipped.__name__}\n.*", re.DOTALL)
    section = re.compile(rf"^## {shipped.__name__}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    [text] = [found[0] for text in texts for found in [own_page.search(text) or section.search(text)] if found]
    [table] = re.findall(r"^\| option \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    parameters = inspect.signature(shipped.__init__).parameters
    listed = set()
    for options, defaults in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE):
        names, values = re.findall(r"`(\w+)`", options), re.findall(r"`([^`]*)`", defaults)
        listed |= {*names}
        for name, value in zip(names, values, strict=False):
            with contextlib.suppress(ValueError):  # a name, such as INFO
                assert ast.literal_eval(value) == parameters[name].default or parameters[name].default is None
    assert set(parameters) - NOT_OPTIONS == listed
