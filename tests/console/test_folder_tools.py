"""The tools that look into one folder: what they show, what they leave alone, and where they stop."""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentrt.console import folder_tools
from agentrt.console.folder_tools import calculate
from agentrt.errors import ConfigError
from agentrt.message import ToolResultState
from agentrt.types import ToolResponse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "notes"
    (place / "garden").mkdir(parents=True)
    (place / "top.txt").write_text("One\nA Zebra\n")
    (place / "garden" / "oak.md").write_text("# Oaks\n")
    return place


def tool(folder: Path, name: str) -> Callable[..., Any]:
    return next(each for each in folder_tools(folder) if each.__name__ == name)


def refusal(result: str | ToolResponse) -> str:
    assert isinstance(result, ToolResponse)
    assert result.state is ToolResultState.ERROR
    return "".join(block.text for block in result.content)


def test_files_are_listed_with_their_folders(folder):
    assert tool(folder, "list_files")() == "top.txt\ngarden/oak.md"


def test_an_empty_folder_has_no_files_and_no_changes(tmp_path):
    assert tool(tmp_path, "list_files")() == "no files"
    assert tool(tmp_path, "recent_files")() == "no changes"
    assert tool(tmp_path, "search_text")("x") == "nothing found"


def test_a_folder_that_was_deleted_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"the folder '\.' cannot be found \(No such file.*: change to another"):
        folder_tools()


def test_a_search_ignores_case_and_names_the_lines(folder):
    assert tool(folder, "search_text")("zebra") == "top.txt:2: A Zebra"


def test_changes_are_those_of_the_last_days_newest_first(folder):
    now = datetime.now()
    for name, days in (("top.txt", 0), ("garden/oak.md", 3)):
        time = (now - timedelta(days=days)).timestamp()
        os.utime(folder / name, (time, time))
    recent = tool(folder, "recent_files")

    assert recent() == f"{now:%Y-%m-%d %H:%M} top.txt"
    assert [line.split()[-1] for line in recent(4).splitlines()] == ["top.txt", "garden/oak.md"]
    assert recent(-1) == recent()
    assert recent(10**12) == recent(4)


@pytest.mark.parametrize("name", ["list_files", "search_text", "recent_files"])
def test_hidden_and_generated_files_are_left_out(name, folder):
    for path in (".env", ".git/config", "node_modules/code.js", "garden/.secret"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("the treasure\n")
    (folder / "garden" / "here.txt").write_text("the treasure\n")
    shown = tool(folder, name)(*["treasure"] * (name == "search_text"))

    assert "here.txt" in shown
    assert not [path for path in (".env", "config", "code.js", ".secret") if path in shown]


def test_a_link_that_leads_outside_is_not_followed(folder):
    (folder.parent / "secret.txt").write_text("the treasure\n")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "linked").symlink_to(folder.parent, target_is_directory=True)

    for path in ("link.txt", "linked/secret.txt", "../secret.txt", str(folder.parent / "secret.txt")):
        assert refusal(tool(folder, "read_file")(path)) == f"{path!r} is outside of the folder"
    assert tool(folder, "search_text")("treasure") == "nothing found"
    assert tool(folder, "list_files")() == "top.txt\ngarden/oak.md"


def test_a_link_to_a_file_of_the_folder_is_read(folder):
    (folder / "link.txt").symlink_to(folder / "top.txt")
    assert tool(folder, "read_file")("link.txt") == "One\nA Zebra\n"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".env", "is hidden"),
        ("visible", "is hidden"),
        ("missing.txt", "does not exist"),
        ("garden", "does not exist"),
        ("", "does not exist"),
        ("a\0b", "null"),
        ("x" * 5000, "too long"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(path, reason, folder):
    (folder / ".env").write_text("KEY=hunter2\n")
    (folder / "visible").symlink_to(folder / ".env")
    assert reason in refusal(tool(folder, "read_file")(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_never_waited_for(folder):
    os.mkfifo(folder / "pipe")
    assert "does not exist" in refusal(tool(folder, "read_file")("pipe"))
    assert tool(folder, "search_text")("zebra") == "top.txt:2: A Zebra"


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="there is no file system of processes here")
def test_another_file_system_is_not_entered():
    found = tool(Path("/"), "list_files")()
    assert not [line for line in found.splitlines() if line.startswith("proc/")]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_others_stops_no_search(folder):
    (folder / "closed.txt").write_text("zebra")
    (folder / "closed.txt").chmod(0)
    assert tool(folder, "search_text")("zebra") == "top.txt:2: A Zebra"
    assert "Permission denied" in refusal(tool(folder, "read_file")("closed.txt"))


def test_a_large_result_is_cut_and_says_so(folder):
    (folder / "large.txt").write_text("zebra\n" * 200_000)
    read, found = tool(folder, "read_file")("large.txt"), tool(folder, "search_text")("zebra")

    assert len(read) < 110_000
    assert read.endswith("\n... and more")
    assert "top.txt" not in found  # what comes after the limit
    assert found.endswith("\n... and more")
    assert len(found) < 110_000


def test_a_file_of_any_bytes_is_text(folder):
    (folder / "picture.bin").write_bytes(bytes(range(256)))
    assert "\ufffd" in tool(folder, "read_file")("picture.bin")


def test_sums_are_calculated():
    assert calculate(" 2 * (3 + 4) ** 2 - 7 // 2 % 5 ") == "95"
    assert calculate("-1 / 4") == "-0.25"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("9**999999999", "the power is too large"),
        ("1+" * 100 + "1", "longer than 200 characters"),
        ("10**400 * 1.5", "too large"),
        ("__import__('os')", "is not arithmetic"),
        ("two", "is not arithmetic"),
        ("1 +", "invalid syntax"),
        ("", "invalid syntax"),
    ],
)
def test_what_is_not_a_sum_is_refused_with_a_reason(expression, reason):
    assert reason in refusal(calculate(expression))
