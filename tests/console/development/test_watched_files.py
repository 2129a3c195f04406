"""The files that `agentrt dev` watches."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrt.console.development.watched_files import ImportWatcher, WatchedFiles, stamp_of


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """The files below the folder that imports lead to."""
    stamps: dict[str, object] = {}
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    watcher = ImportWatcher([str(tmp_path)], stamps.update)
    monkeypatch.setattr(sys, "meta_path", [watcher, *sys.meta_path])
    before = set(sys.modules)
    yield stamps
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_imported_modules_of_the_folder_are_found(tmp_path: Path, found: dict[str, object]):
    (tmp_path / "watched_shop").mkdir()
    for path in ("watched_app.py", "watched_shop/__init__.py", "watched_shop/tools.py", "watched_other.py"):
        (tmp_path / path).write_text("")
    (tmp_path / "watched_app.py").write_text("import colorsys\nfrom watched_shop import tools\n")
    importlib.import_module("watched_app")
    paths = sorted(os.path.relpath(path, tmp_path) for path in found)
    assert paths == ["watched_app.py", "watched_shop/__init__.py", "watched_shop/tools.py"]


def test_files_of_environments_are_left_out(tmp_path: Path, found: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    packages = tmp_path / ".venv" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "watched_library.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr("agentrt.console.development.watched_files.get_path", lambda name: str(packages))
    sys.meta_path[0].__init__([str(tmp_path)], found.update)  # type: ignore[misc]
    importlib.import_module("watched_library")
    assert not found


def test_module_that_cannot_be_imported_is_watched(tmp_path: Path, found: dict[str, object]):
    (tmp_path / "watched_broken.py").write_text("x = (")
    with pytest.raises(SyntaxError):
        importlib.import_module("watched_broken")
    assert list(found) == [str(tmp_path / "watched_broken.py")]


def test_place_of_a_missing_module_is_watched(tmp_path: Path, found: dict[str, object]):
    watcher = sys.meta_path[0]
    assert isinstance(watcher, ImportWatcher)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("watched_missing")
    assert not found
    watcher.report_missing()
    assert found == {
        str(tmp_path / "watched_missing.py"): None,
        str(tmp_path / "watched_missing" / "__init__.py"): None,
    }


def test_each_change_is_returned_once(tmp_path: Path):
    path, later = str(tmp_path / "app.py"), str(tmp_path / "later.py")
    Path(path).write_text("one")
    files = WatchedFiles()
    files.add({path: stamp_of(path), later: stamp_of(later)})
    assert files.take_changed() == []
    Path(path).write_text("three")
    Path(later).write_text("")
    assert files.take_changed() == [path, later]
    assert files.take_changed() == []
    os.unlink(path)
    assert files.take_changed() == [path]


def test_stale_bytecode_of_a_changed_file_is_deleted(tmp_path: Path):
    path = tmp_path / "app.py"
    path.write_text("one")
    bytecode = Path(importlib.util.cache_from_source(str(path)))
    bytecode.parent.mkdir(parents=True, exist_ok=True)
    bytecode.write_bytes(b"of the first version")
    files = WatchedFiles()
    files.add({str(path): stamp_of(str(path))})
    status = path.stat()
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert files.take_changed() == [str(path)]
    assert not bytecode.exists()
