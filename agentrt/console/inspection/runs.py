"""`agentrt runs` and `agentrt audit`: lists, shows, exports, deletes and verifies the recorded runs of a store."""

import argparse
import sys
from pathlib import Path

import anyio

from agentrt._runtime.text import encodable_text
from agentrt._runtime.timestamp import timestamp_text
from agentrt.console.inspection.sessions import open_named_store, print_out, quote_id
from agentrt.errors import ConfigError, UsageError
from agentrt.runs import Run, RunStore
from agentrt.state.store import find_session


def run_runs(options: argparse.Namespace) -> int:
    """Run `options.action`; returns the exit code, which is 1 for a run that does not exist."""
    return anyio.run(_act_on_runs, options)


def run_audit(options: argparse.Namespace) -> int:
    """Verify the runs of one session or of all; prints the first wrong line of each session, and then returns 1."""
    key = None
    if options.key_file is not None:
        try:
            key = Path(options.key_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"--key-file {options.key_file!r} cannot be read: {error.strerror}") from None
    return anyio.run(_verify_runs, options, key)


async def _act_on_runs(options: argparse.Namespace) -> int:
    async with open_named_store(options) as store:
        runs: RunStore = store.runs  # type: ignore[attr-defined]  # all shipped stores have it
        if options.action == "list":
            cursor, is_last = None, False
            while not is_last:
                page = await runs.list(session_id=options.session, text=options.text, cursor=cursor)
                for info in page.runs:
                    cost = "" if info.cost is None else f"{info.cost:.4f}"
                    tokens = info.usage.input_tokens + info.usage.output_tokens
                    numbers = f"{timestamp_text(info.begun_at)}  {info.status:11}  {tokens:8}  {cost:>9}"
                    print_out(f"{numbers}  {quote_id(info.session_id)}  {quote_id(info.reply_id)}  {info.title}")
                cursor, is_last = page.cursor, page.cursor is None
            return 0
        try:
            run = await runs.load(options.session, options.reply)
            if options.action == "show":
                _show_run(run, 0)
            elif options.action == "export":
                await _export_lines(runs, run)
            else:
                count = await runs.delete(options.session, options.reply)
                print_out(f"deleted {count} runs of {quote_id(options.session)}")
        except UsageError:
            which = "no run" if options.reply is None else f"no run {options.reply!r}"
            text = f"agentrt: session {options.session!r} has {which} in this store"
            print(encodable_text(text, sys.stderr), file=sys.stderr)
            return 1
        return 0


def _show_run(run: Run, depth: int) -> None:
    """Print a run: requests with the changes of layers, and the runs below it, indented."""
    indent = "  " * depth
    cost = "unknown cost" if run.cost is None else f"cost {run.cost:.4f}"
    seconds = "" if run.seconds is None else f", {run.seconds:.2f} s"
    tokens = f"{run.usage.input_tokens} + {run.usage.output_tokens} tokens"
    name = f"background call of {run.title}" if run.is_task else run.agent
    print_out(f"{indent}{name}: {run.status}, {run.calls} calls, {tokens}, {cost}{seconds}")
    if not run.has_content:
        print_out(f"{indent}  recorded without content")
        return
    for message in run.inputs:
        print_out(f"{indent}  {message.name}: {message.get_text_content() or ''}")
    for request in run.requests:
        outcome = "" if request.error is None else f", failed: {request.error}"
        purpose = "" if request.purpose is None else f" for {request.purpose}"
        print_out(f"{indent}  [request] {request.model}{purpose}, {len(request.messages)} messages{outcome}")
        for change in request.changes:
            print_out(f"{indent}    [changed] {change.where} by {change.layer}")
    for below in [*run.children, *run.tasks]:
        _show_run(below, depth + 1)
    if run.message is not None:
        print_out(f"{indent}  {run.message.name}: {run.message.get_text_content() or ''}")


async def _export_lines(runs: RunStore, run: Run) -> None:
    """Write the lines of a run and of those below it as they are stored, so that their hashes can be checked."""
    for line in await runs.raw_lines(run.session_id, run.reply_id):
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    for below in [*run.children, *run.tasks]:
        await _export_lines(runs, below)


async def _verify_runs(options: argparse.Namespace, key: bytes | None) -> int:
    async with open_named_store(options) as store:
        runs: RunStore = store.runs  # type: ignore[attr-defined]  # all shipped stores have it
        sessions = {options.session: None} if options.session is not None else {}
        cursor, is_listed = None, options.session is not None
        while not is_listed:
            page = await runs.list(limit=1_000, cursor=cursor)
            sessions |= dict.fromkeys(info.session_id for info in page.runs)
            cursor = page.cursor
            is_listed = cursor is None
        code = lines = 0
        for session_id in sessions:
            found = await runs.verify(session_id, key=key)
            lines += found.lines
            # The end is missing while the reply has not ended.
            info = await find_session(store, session_id) if found.reason == "no end" else None
            if not found.ok and (info is None or info.status == "idle"):
                place = "" if found.first_wrong is None else f", line {found.first_wrong}"
                run = "" if found.reply_id is None else f", run {quote_id(found.reply_id)}"
                print_out(f"{quote_id(session_id)}{run}{place}: {found.reason}")
                code = 1
        print_out(f"{lines} lines of {len(sessions)} sessions: {'all as written' if not code else 'not as written'}")
        return code
