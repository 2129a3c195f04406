"""Runs one command as a child of this program; nothing of its process group is left afterwards."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from subprocess import PIPE

import anyio
from anyio.abc import ByteReceiveStream, Process

from agentrt._runtime.concurrency.event_loop import run_shielded
from agentrt._runtime.concurrency.process_group import close_pipes, has_ended, signal_group
from agentrt.errors import UsageError
from agentrt.workspace.sandbox.base import Launch, open_data
from agentrt.workspace.sandbox.command import Command, Outcome, Output

# The shell is the parent of the command, since a thread of this program may end before it does, and Linux tells a child
# of the death of the thread that has started it. Its own input is the lifeline: that ends when this program dies,
# however it dies, and then the inner shell kills the group. The command gets its input from the file that $1 names,
# and not the lifeline.
_SHELL_SCRIPT = """
exec 3<&0 </dev/null
input=$1
shift
( read -r _ <&3; kill -s KILL -- "-$$" ) >/dev/null 2>&1 &
guard=$!
"$@" <"$input" 3<&- &
command=$!
exec 3<&- 2>/dev/null
wait "$command"
code=$?
kill -s KILL "$guard"
exit "$code"
"""
_SHELL = "/bin/sh"
_GROUP_CHECK_SECONDS = 0.05
_LAST_OUTPUT_SECONDS = 0.5
_CLOSING_SECONDS = 10.0
_KILLED_CODE = 128 + signal.SIGKILL


async def run_process(launch: Launch, command: Command, max_output: int) -> Outcome:
    """Run the command to its end, to its timeout, or until its caller is cancelled.

    In each case all processes of its group have ended when this returns, and its output is what was written until then.
    """
    with ExitStack() as stack:
        source, descriptors = "/dev/null", list(launch.descriptors)
        if command.stdin is not None:
            descriptors.append(open_data(stack, command.stdin.encode()))
            source = f"/dev/fd/{descriptors[-1]}"
        try:
            process = await anyio.open_process(
                [_SHELL, "-c", _SHELL_SCRIPT, "sandbox", source, *launch.argv],
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=launch.env,
                cwd=launch.cwd,
                start_new_session=True,
                pass_fds=descriptors,
            )
        except OSError as error:
            raise UsageError(f"the command could not be started: {error.strerror}") from None
        running = _RunningCommand(process, Output(max_output), Output(max_output))
        try:
            timed_out = await running.run(command.timeout, launch.guard)
        finally:
            await run_shielded(_CLOSING_SECONDS, partial(running.close, launch.clean_up))
    code = process.returncode
    # A negative code is that of a signal, and `None` that of a process which cannot be killed.
    exit_code = _KILLED_CODE if code is None or code < 0 else code
    return Outcome(exit_code, running.stdout, running.stderr, timed_out)


class _RunningCommand:
    """A command while it runs, and the tasks that read its output."""

    __slots__ = ("_open_streams", "_over", "_process", "stderr", "stdout")

    def __init__(self, process: Process, stdout: Output, stderr: Output) -> None:
        self._process = process
        self._open_streams = 2
        self._over = anyio.Event()
        self.stdout, self.stderr = stdout, stderr

    async def run(self, timeout: float, guard: Callable[[], Awaitable[str]] | None) -> bool:  # noqa: ASYNC109
        """Wait for the end and read the output; returns whether the time was up."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, self._process.stdout, self.stdout)
            group.start_soon(self._read, self._process.stderr, self.stderr)
            if guard is not None:
                group.start_soon(self._stop_at_limit, guard)
            with anyio.move_on_after(timeout) as time_limit:
                # The streams end with the command, unless a process that has left its group keeps them open.
                while self._process.returncode is None and not self._over.is_set():
                    with anyio.move_on_after(_GROUP_CHECK_SECONDS):
                        await self._over.wait()
                if self._over.is_set():
                    await self._process.wait()  # which waits for the pipes as well, on asyncio
            signal_group(self._process, signal.SIGKILL)
            with anyio.move_on_after(_LAST_OUTPUT_SECONDS):
                await self._over.wait()
            group.cancel_scope.cancel()
        return time_limit.cancelled_caught

    async def close(self, clean_up: Callable[[], Awaitable[object]] | None) -> None:
        """Kill what is left of the group, and close this end of the pipes."""
        signal_group(self._process, signal.SIGKILL)
        await has_ended(self._process, _LAST_OUTPUT_SECONDS)
        await close_pipes(self._process)
        if clean_up is not None:
            await clean_up()

    async def _read(self, stream: ByteReceiveStream | None, output: Output) -> None:
        assert stream is not None
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                output.add(await stream.receive())
        self._open_streams -= 1
        if not self._open_streams:
            self._over.set()

    async def _stop_at_limit(self, guard: Callable[[], Awaitable[str]]) -> None:
        limit = await guard()
        signal_group(self._process, signal.SIGKILL)
        self.stderr.add(f"\nstopped: {limit}\n".encode())
