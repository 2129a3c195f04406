"""What a user installs, what every public module promises, and the script that runs the jobs."""

import ast
import importlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
import trove_classifiers
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import agentrt
import agentrt_middleware
import dev
from tests.documents import REPOSITORY

ROOT = Path(__file__).resolve().parents[1]


def uv(*arguments: str | Path) -> None:
    finished = run(sys.executable, "-m", "uv", *arguments, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # The package under test is the installed one, so nothing of this checkout may be on its path.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def files_of_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_of_sdist(built: Path) -> set[str]:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        return {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}


def test_wheel_holds_both_packages_and_their_type_markers(wheel: Path) -> None:
    assert {
        "agentrt/__init__.py",
        "agentrt/py.typed",
        "agentrt_middleware/__init__.py",
        "agentrt_middleware/py.typed",
    } <= files_of_wheel(wheel)


def test_wheel_holds_nothing_but_the_packages_and_their_metadata(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in files_of_wheel(wheel)}

    assert tops == {"agentrt", "agentrt_middleware", f"agentrt-{agentrt.__version__}.dist-info"}


def with_requirements(name: str, found: set[str]) -> set[str]:
    """Return the name, and those of what it needs without any extra, and of what these need."""
    if name not in found:
        found.add(name)
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                with_requirements(canonicalize_name(requirement.name), found)
    return found


def test_what_is_installed_without_extras_is_small(wheel: Path) -> None:
    names = with_requirements("agentrt", set())
    assert len(names) <= 16, names
    with zipfile.ZipFile(wheel) as archive:  # agentrt itself is installed here as a link
        sizes = {"agentrt": sum(file.file_size for file in archive.infolist())}
    for name in names - {"agentrt"}:
        files = [Path(str(file.locate())) for file in importlib.metadata.files(name) or ()]
        # Bytecode is made by the installer, or on first use.
        sizes[name] = sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
        assert sizes[name] > 0
    assert sum(sizes.values()) < 32 * 10**6, sizes


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"agentrt-{agentrt.__version__}.dist-info/METADATA").decode()
    return HeaderParser().parsestr(text)


def test_wheel_metadata_tells_version_licence_and_extras(wheel: Path) -> None:
    folder = f"agentrt-{agentrt.__version__}.dist-info"
    metadata = metadata_of(wheel)

    assert (metadata["Version"], metadata["License-Expression"]) == (agentrt.__version__, "Apache-2.0")
    extras = {"all", "anthropic", "console", "openai", "otel", "prices", "redis"}
    assert extras <= set(metadata.get_all("Provides-Extra", []))
    assert f"{folder}/licenses/LICENSE" in files_of_wheel(wheel)


def test_wheel_metadata_tells_who_wrote_it_and_where_it_lives(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))

    assert metadata["Author"] == "The agentrt authors"
    assert set(urls) == {"Changelog", "Documentation", "Homepage", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())


def test_links_of_the_readme_are_absolute_on_the_package_index(wheel: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    description = str(metadata_of(wheel).get_payload())
    paths = re.findall(r"\]\(([^)]*)\)", readme)

    assert paths
    assert re.findall(r"\]\(([^)]*)\)", description) == [f"{REPOSITORY}/blob/main/{path}" for path in paths]
    assert "```mermaid" not in description


def test_classifiers_are_those_that_the_index_knows(wheel: Path) -> None:
    assert set(metadata_of(wheel).get_all("Classifier", [])) <= trove_classifiers.classifiers


def test_all_files_name_the_same_versions_of_python(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    classifiers = " ".join(metadata.get_all("Classifier", []))
    supported = re.findall(r"Python :: (3\.\d+)", classifiers)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")

    assert f"python: {json.dumps(supported)}" in workflow
    assert metadata["Requires-Python"] == f">={supported[0]}"
    assert tuple(int(part) for part in supported[0].split(".")) == dev.OLDEST_PYTHON


def test_hooks_for_commits_are_local_and_download_nothing() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")

    assert re.findall(r"repo: (.*)", config) == ["local"]
    assert set(re.findall(r"language: (.*)", config)) == {"pygrep", "system"}
    assert all(entry.startswith(("python3 dev.py ", "'")) for entry in re.findall(r"entry: (.*)", config))


@pytest.mark.parametrize(
    ("subject", "is_accepted"),
    [
        ("tool: refuse a name twice", True),
        ("tool, docs: refuse a name twice", True),
        ("fixup! tool: refuse a name twice", True),
        ("refuse a name twice", False),
        ("Tool: refuse a name twice", False),
        (f"tool: {'x' * 66}", True),
        (f"tool: {'x' * 67}", False),
    ],
)
def test_hook_for_subjects_wants_a_scope_and_72_characters(subject: str, is_accepted: bool) -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    [pattern] = re.findall(r"entry: '(.*)'", config)

    assert (re.search(pattern, f"{subject}\n\nThe body.\n", re.MULTILINE) is not None) == is_accepted


def test_sdist_holds_what_its_tests_need(built: Path) -> None:
    assert {
        ".ci/run",
        ".github/workflows/ci.yml",
        ".pre-commit-config.yaml",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "SECURITY.md",
        "dev.py",
        "docs/index.md",
        "examples/quickstart.py",
        "mkdocs.yml",
        "pyproject.toml",
        "scripts/reference/__init__.py",
        "tests/test_package.py",
    } <= files_of_sdist(built)


def test_sdist_holds_no_junk(built: Path) -> None:
    junk = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "__pycache__", "dist"}

    assert not [name for name in files_of_sdist(built) if junk & set(PurePosixPath(name).parts)]


def test_quickstart_runs_from_an_installed_wheel_in_any_folder(wheel: Path, tmp_path: Path) -> None:
    venv, scripts, notes, elsewhere = (tmp_path / name for name in ("venv", "scripts", "notes", "elsewhere"))
    for folder in (scripts, notes, elsewhere):
        folder.mkdir()
    quickstart = shutil.copy(ROOT / "examples" / "quickstart.py", scripts)
    (notes / "animals.txt").write_text("lion-41\nzebra-42\n", encoding="utf-8")
    (notes / "plants.txt").write_text("oak-1\n", encoding="utf-8")
    python = dev.program_in(venv, "python", windows=os.name == "nt")

    uv("venv", "--quiet", "--python", sys.executable, venv)
    uv("pip", "install", "--quiet", "--python", python, wheel)
    finished = run(python, quickstart, "Which file contains the word zebra-42?", notes, cwd=elsewhere)

    assert finished.returncode == 0, finished.stderr
    assert "animals.txt" in finished.stdout


def modules_of(package: ModuleType) -> list[str]:
    walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [package.__name__, *(module.name for module in walked)]


MODULES = [*modules_of(agentrt), *modules_of(agentrt_middleware)]
PUBLIC_MODULES = [name for name in MODULES if "._" not in name]


def place_in_all(name: str) -> tuple[bool, bool, str]:
    """Constants, classes, the rest: the order that ruff's RUF022 keeps."""
    return not name.isupper(), not name[0].isupper(), name


def test_all_names_what_exists_once_and_sorted() -> None:
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [])
        assert list(public) == sorted(set(public), key=place_in_all), name
        assert not [each for each in public if not hasattr(module, each)], name


def test_every_module_that_users_import_says_what_is_public() -> None:
    names = [info.name for info in pkgutil.iter_modules(agentrt.__path__) if not info.name.startswith("_")]
    doors = [importlib.import_module(f"agentrt.{name}") for name in names]
    assert not [door for door in (agentrt, *doors) if not isinstance(getattr(door, "__all__", None), list)]


def test_a_module_behind_a_door_lists_names_only_to_pass_them_on() -> None:
    behind = {name for name in MODULES if name.count(".") > 1 or name.startswith("agentrt_middleware.")}
    listing = [module for name in behind if hasattr(module := importlib.import_module(name), "__all__")]
    assert not [module for module in listing if not passed_on(module)]


def test_a_package_behind_a_door_passes_no_names_on() -> None:
    behind = [name for name in MODULES if name.count(".") > 1 and name != "agentrt.model.remote"]  # which has a page
    packages = [module for name in behind if hasattr(module := importlib.import_module(name), "__path__")]
    assert not [module for module in packages if hasattr(module, "__all__")]


def passed_on(module: ModuleType) -> set[str]:
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names}.intersection(module.__all__)


@pytest.mark.parametrize("arguments", [[], ["fly"], ["check", "agentrt"]])
def test_a_job_that_is_not_known_exits_2_and_lists_the_jobs(arguments: list[str], tmp_path: Path) -> None:
    finished = run(sys.executable, ROOT / "dev.py", *arguments, cwd=tmp_path)

    assert finished.returncode == 2
    assert all(f"\n  {job} " in finished.stderr for job in dev.JOBS)


def test_dashes_before_the_arguments_of_a_job_are_dropped_once() -> None:
    assert dev.strip_dashes(["--", "-k", "chain", "--", "x"]) == ["-k", "chain", "--", "x"]
    assert dev.strip_dashes(["-k", "chain"]) == ["-k", "chain"]


def test_programs_of_an_environment_lie_in_scripts_on_windows() -> None:
    assert dev.program_in(Path("env"), "ruff", windows=True) == Path("env", "Scripts", "ruff.exe")


def test_programs_of_an_environment_lie_in_bin_elsewhere() -> None:
    assert dev.program_in(Path("env"), "ruff", windows=False) == Path("env", "bin", "ruff")


def test_an_environment_with_the_wanted_stamp_is_kept() -> None:
    assert dev.what_to_do("python 3.11.7\nproject a\n", "python 3.11.7\nproject a\n") == "keep"


def test_an_environment_of_another_project_file_is_updated() -> None:
    assert dev.what_to_do("python 3.11.7\nproject a\n", "python 3.11.7\nproject b\n") == "update"


@pytest.mark.parametrize("found", ["", "python 3.11.6\nproject a\n"])
def test_interrupted_or_outdated_environment_is_rebuilt(found: str) -> None:
    assert dev.what_to_do(found, "python 3.11.7\nproject a\n") == "rebuild"


def test_a_python_that_is_too_old_is_told_which_one_is_needed() -> None:
    assert "3.10 is too old, 3.11" in dev.find_obstacle((3, 10), has_venv=True)


def test_a_python_without_venv_is_told_what_to_install() -> None:
    assert "python3-venv" in dev.find_obstacle((3, 11), has_venv=False)


def test_a_python_that_fits_draws_no_complaint() -> None:
    assert dev.find_obstacle((3, 11), has_venv=True) == ""


IMPORTED = """
import re, sys
compile, patterns = re.compile, []
def compile_and_note(*arguments):
    if sys._getframe(1).f_globals["__name__"].startswith("agentrt"):
        patterns.append(arguments)
    return compile(*arguments)
re.compile = compile_and_note
import agentrt
print(patterns)
print([name for name in sys.modules if name.startswith(("agentrt.model.", "agentrt.formatter", "agentrt_middleware"))])
"""


def test_import_loads_no_provider_and_compiles_no_pattern(tmp_path: Path) -> None:
    finished = run(sys.executable, "-c", IMPORTED, cwd=tmp_path)
    assert finished.stdout.split() == ["[]", "[]"], finished.stderr
