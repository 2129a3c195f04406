"""No path leads out of its namespace, whatever it is, and the error names both."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import AccessDenied, AgentRTError
from agentrt.workspace import LocalWorkspace
from agentrt.workspace.path import parts_of

REFUSED: dict[str, Any] = {
    "parent": "../secret",
    "parent inside": "a/../b",
    "parent at the end": "a/..",
    "absolute": "/etc/passwd",
    "own root": "/workspace/subagents/ann/a",
    "internal, absolute": "/internal/keys",
    "home": "~/a",
    "null": "a\0b",
    "newline": "a\nb",
    "drive": "C:\\Windows\\a",
    "drive, relative": "C:a",
    "stream": "a.txt:hidden",
    "backslash": "..\\secret",
    "share": "\\\\server\\share",
    "device": "NUL",
    "device with an ending": "com1.txt",
    "trailing dot": "a.",
    "three dots": "...",
    "trailing blank": "a ",
    "long path": "a/" * 600 + "b",
    "long name": "a" * 241,
    "long name in bytes": "月" * 81,
    "deep": "a/" * 32 + "b",
    "surrogate": "a\ud800",
    "bytes": b"a",
    "path object": Path("a"),
    "nothing": None,
    "number": 1,
    "empty": "",
    "dot": ".",
}
USES = {
    "read_text": lambda files, path: files.read_text(path),
    "read_bytes": lambda files, path: files.read_bytes(path),
    "write_text": lambda files, path: files.write_text(path, "new"),
    "write_bytes": lambda files, path: files.write_bytes(path, b"new"),
    "delete": lambda files, path: files.delete(path),
    "list": lambda files, path: files.list(path),
    "exists": lambda files, path: files.exists(path),
}


def everything_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("use", USES)
async def test_refused_path_is_named_and_changes_nothing(use: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old")
    (tmp_path / "internal").mkdir()
    before = everything_in(tmp_path)
    files = LocalWorkspace(tmp_path).namespace("subagents/ann")
    for name, path in REFUSED.items():
        if path in ("", ".") and use in ("list", "exists"):
            continue  # the namespace itself
        with pytest.raises(AccessDenied) as caught:
            await USES[use](files, path)
        assert "'/workspace/subagents/ann'" in str(caught.value), name
        assert repr(path)[:50] in str(caught.value), name
        assert str(tmp_path) not in str(caught.value), name
        assert everything_in(tmp_path) == before, name


@pytest.mark.parametrize("name", REFUSED)
def test_namespace_is_refused_like_a_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(AccessDenied):
        LocalWorkspace(tmp_path).namespace(REFUSED[name])


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("path", ["internal", "internal/a", "Internal/a", "./internal/a"])
async def test_internal_folder_of_the_root_is_out_of_reach(path: str, use: str, tmp_path: Path) -> None:
    (tmp_path / "internal").mkdir()
    (tmp_path / "internal" / "a").write_text("old")
    files = LocalWorkspace(tmp_path)
    with pytest.raises(AccessDenied, match="internal"):
        await USES[use](files, path)
    with pytest.raises(AccessDenied):
        files.namespace(path)
    assert await files.list() == []
    assert (tmp_path / "internal" / "a").read_text() == "old"


async def test_internal_is_a_name_like_any_other_in_a_namespace(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path).namespace("ann")
    await files.write_text("internal/a", "new")
    assert await files.list() == ["internal/"]


def test_access_denied_is_in_the_tree_and_is_a_permission_error(tmp_path: Path) -> None:
    with pytest.raises(PermissionError) as caught:
        LocalWorkspace(tmp_path).namespace("..")
    assert isinstance(caught.value, AgentRTError)


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "\\", "b.", "C:"])).map("/".join))
def test_parts_lead_nowhere_else_whatever_the_path(path: str) -> None:
    try:
        parts = parts_of(path, "/workspace")
    except AccessDenied:
        return
    assert not {"", ".", ".."} & {*parts}
    assert not any(set("/\\:\0") & {*part} for part in parts)
