"""The tools for files: what they return, and how they are bounded."""

from pathlib import Path

import pytest

from agentrt import Agent, Toolkit
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolContext, workspace_tools
from agentrt.tool.files import find
from agentrt.types import ChatResponse
from tests.loop.helpers import call
from tests.tool.files.helpers import Desk, ask


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "root")


def test_tools_that_write_and_run_are_asked_for() -> None:
    reading = ["read_file", "list_files", "glob_files", "search_files"]
    assert [tool.name for tool in workspace_tools()] == reading
    assert all(tool.is_read_only for tool in workspace_tools())
    everything = workspace_tools(write=True, run=True)
    assert [tool.name for tool in everything] == [*reading, "write_file", "edit_file", "run_command"]
    assert not any(tool.is_read_only for tool in everything[4:])


async def test_written_file_can_be_read_edited_listed_and_found(desk: Desk) -> None:
    assert (
        await desk.text("write_file", path="docs/plan.md", content="one\ntwo\n") == "wrote 8 characters to docs/plan.md"
    )
    assert (
        await desk.text("edit_file", path="docs/plan.md", old="two", new="three") == "replaced 1 place in docs/plan.md"
    )
    assert await desk.text("read_file", path="docs/plan.md") == "one\nthree\n"
    assert await desk.text("list_files") == "docs/"
    assert await desk.text("glob_files", pattern="**/*.md") == "docs/plan.md"
    assert await desk.text("search_files", pattern="^t\\w+e$") == "docs/plan.md:2: three"


async def test_sub_agent_uses_the_files_of_its_own_namespace(desk: Desk) -> None:
    writing = ChatResponse([call("c1", "write_file", path="a.txt", content="x")])
    writer = Agent("writer", model=ScriptedChatModel([writing, "done"]), tools=workspace_tools(write=True))
    lead = Agent(
        "lead",
        model=ScriptedChatModel([ChatResponse([call("c1", "writer", query="go")]), "done"]),
        tools=[writer.as_tool("Writes.")],
        workspace=desk.files,
    )
    question = await ask(lead)
    await lead.reply(question.approve())
    assert await desk.files.read_text("subagents/writer/a.txt") == "x"


async def test_long_file_is_read_in_parts(desk: Desk) -> None:
    await desk.files.write_text("a", "".join(f"{number}\n" for number in range(1, 5_001)))
    text = await desk.text("read_file", path="a")
    assert text.startswith("1\n2\n")
    assert text.endswith("2000\n[... lines 1 to 2,000 of 5,000: read on with first_line ...]")
    assert await desk.text("read_file", path="a", first_line=4_999) == "4999\n5000\n"
    assert (await desk.text("read_file", path="a", first_line=7, max_lines=1)).startswith("7\n[... lines 7 to 7")
    assert "5,000 lines" in (await desk.call("read_file", path="a", first_line=5_001)).text


@pytest.mark.parametrize("content", ["", "\n", "a", "a\n", "a\r\nb\x0cc\u2028d\n"])
async def test_short_file_is_read_as_it_is(content: str, desk: Desk) -> None:
    await desk.files.write_text("a", content)
    assert await desk.text("read_file", path="a") == content


@pytest.mark.parametrize(
    ("old", "words"), [("", "is empty"), ("x", "does not have the old text"), ("aa", "more than once"), ("b", None)]
)
async def test_edit_needs_text_that_is_there_exactly_once(old: str, words: str | None, desk: Desk) -> None:
    await desk.files.write_text("a", "aaab")
    result = await desk.call("edit_file", path="a", old=old, new="c")
    assert words is None or words in result.text
    assert await desk.files.read_text("a") == ("aaab" if words else "aaac")


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "internal/a", "link", "folder/a", "a\0", "~/a", "C:\\a"])
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_files", "glob_files", "search_files"])
async def test_no_tool_leaves_the_workspace(tool: str, path: str, desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("secret")
    desk.files.root.mkdir()
    (desk.files.root / "link").symlink_to(outside / "a")
    (desk.files.root / "folder").symlink_to(outside)
    others = {"write_file": {"content": "x"}, "edit_file": {"old": "secret", "new": "x"}}
    others |= {"glob_files": {"pattern": "**"}, "search_files": {"pattern": "secret"}}
    result = await desk.call(tool, path=path, **others.get(tool, {}))
    assert result.state == "error"
    assert "secret" not in result.text
    assert (outside / "a").read_text() == "secret"


async def test_search_passes_over_links_binaries_and_made_folders(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("word")
    for path in ("a.txt", "node_modules/b.txt", ".git/c.txt"):
        await desk.files.write_text(path, "word")
    await desk.files.write_bytes("d.bin", b"word\0")
    await desk.files.write_bytes("e.txt", b"\xff word")
    (desk.files.root / "link").symlink_to(tmp_path / "secret")
    assert await desk.text("search_files", pattern="word") == "a.txt:1: word\ne.txt:1: \ufffd word"
    assert await desk.text("search_files", pattern="word", path="node_modules") == "node_modules/b.txt:1: word"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**", ["src/b.py", "src/deep/c.py", "src/deep/d.txt"]),
        ("**/deep/?.[pt]*", ["src/deep/c.py", "src/deep/d.txt"]),
        ("./src/**/b.py", ["src/b.py"]),
        ("B.py", ["(no file fits)"]),
    ],
)
async def test_pattern_stands_for_names_and_folders(pattern: str, found: list[str], desk: Desk) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/deep/d.txt"):
        await desk.files.write_text(path, "")
    assert (await desk.text("glob_files", pattern=pattern)).split("\n") == found


@pytest.mark.time_limit(20)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(?:a*)*c", "a{0,900}b"])
async def test_no_expression_hangs(pattern: str, desk: Desk) -> None:
    await desk.files.write_text("a", "a" * 100_000 + "!")
    result = await desk.call("search_files", pattern=pattern)
    assert result.state in ("success", "error")


@pytest.mark.time_limit(20)
async def test_no_path_pattern_hangs(desk: Desk) -> None:
    await desk.files.write_text("/".join(["a" * 60] * 12).removesuffix("a") + "b", "")
    assert await desk.text("glob_files", pattern="**/" * 30 + "*a" * 100 + "c") == "(no file fits)"
    (desk.files.root / "many").mkdir()
    for number in range(300):
        (desk.files.root / "many" / str(number)).touch()
    assert await desk.text("glob_files", pattern="**/" * 330 + "c") == "(no file fits)"


@pytest.mark.time_limit(20)
async def test_expression_slow_for_each_character_ends_with_a_note(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.files.write_text("a", "01" * 2_000_000 + "2")
    assert "[of a only the first 5,000 characters of each line were searched]" in await desk.text(
        "search_files", pattern="1[01]{2000}2"
    )
    await desk.files.write_text("b", "0\n")
    monkeypatch.setattr(find, "_SECONDS_SEARCHED", 0.0)
    text = await desk.text("search_files", pattern="0", path="", files="b")
    assert text == "b:1: 0\n[stopped after 0 seconds: give a simpler expression]"


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", r"(a)\1", "", "a" * 1_001, "a{999999}"])
async def test_expression_that_cannot_be_used_is_an_error(pattern: str, desk: Desk) -> None:
    result = await desk.call("search_files", pattern=pattern)
    assert result.state == "error"
    assert "regular expression" in result.text


async def test_matches_and_their_lines_are_cut_with_a_note(desk: Desk) -> None:
    await desk.files.write_text("a", ("x" * 1_000 + "\n") * 500)
    lines = (await desk.text("search_files", pattern="x")).split("\n")
    assert len(lines) == 201
    assert max(map(len, lines)) < 320
    assert "first 200" in lines[-1]


async def test_search_is_bounded_in_files_bytes_and_paths(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        await desk.files.write_text(f"{number:02}.txt", "x\n")
    monkeypatch.setattr(find, "_FILES_SEARCHED", 10)
    assert (await desk.text("glob_files", pattern="*")).count(".txt") == 10
    assert "[stopped after 10 files" in await desk.text("search_files", pattern="y")
    monkeypatch.setattr(find, "_BYTES_SEARCHED", 5)
    assert "[stopped after 5 bytes" in await desk.text("search_files", pattern="y")
    monkeypatch.setattr(find, "_FOLDERS_SEARCHED", 2)
    for name in "abc":
        await desk.files.write_text(f"folders/{name}/file", "")
    text = await desk.text("glob_files", pattern="**/file", path="folders")
    assert text.startswith("folders/a/file\nfolders/b/file\n[only the first 2 folders were looked at")
    monkeypatch.setattr(find, "_PATHS_LISTED", 3)
    assert "[only the first 3 are shown" in await desk.text("glob_files", pattern="*")


async def test_folder_too_large_to_list_is_noted_and_passed_over(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.workspace.local._MAX_ENTRIES", 100)
    await desk.files.write_text("z.txt", "word")
    (desk.files.root / "large").mkdir()
    for number in range(101):
        (desk.files.root / "large" / str(number)).touch()
    text = await desk.text("search_files", pattern="word")
    assert text.startswith("z.txt:1: word\n[large/ was left out")
    assert (await desk.call("list_files", path="large")).state == "error"


async def test_file_too_large_to_read_is_noted_and_passed_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files.max_file_size = 10
    (tmp_path / "large.txt").write_text("word" * 10)
    await desk.files.write_text("z.txt", "word")
    text = await desk.text("search_files", pattern="word")
    assert text.startswith("z.txt:1: word\n[large.txt was left out")


async def test_agent_without_a_workspace_says_how_to_give_one() -> None:
    toolkit = Toolkit(tools=workspace_tools())
    context = ToolContext(ToolCallBlock("c", "list_files", "{}"))
    [response] = [item async for item in toolkit.call_tool_function(context.tool_call, context)]
    assert "Agent(workspace=LocalWorkspace(folder))" in response.text
