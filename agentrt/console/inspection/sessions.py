"""`agentrt sessions`: lists, shows and deletes the sessions of a store."""

import argparse
import sys

import anyio

from agentrt._runtime.conversation.question import open_question
from agentrt._runtime.text import encodable_text, escape_controls
from agentrt._runtime.timestamp import timestamp_text
from agentrt.console.render.call_description import describe_call
from agentrt.console.specs import load_named_agent
from agentrt.errors import ConfigError
from agentrt.message import DataBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.state import SessionStore, state_store


def run_sessions(options: argparse.Namespace) -> int:
    """Run `options.action`; returns the exit code, which is 1 for a session that does not exist."""
    return anyio.run(_Sessions(open_named_store(options)).run, options)


def open_named_store(options: argparse.Namespace) -> SessionStore:
    """Return the store at `options.store`, or that of the agent; raises `ConfigError`."""
    if options.store is not None:
        return state_store(options.store)
    own: object = load_named_agent(options).state_store
    if not hasattr(own, "list"):
        raise ConfigError(
            f"the agent {options.agent!r} has no store that lists its sessions: write --store sqlite:agent.db"
        )
    return own  # type: ignore[return-value]  # one that lists them has the other methods


class _Sessions:
    """The sessions of a store, as lines of text, safe for a terminal."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def run(self, options: argparse.Namespace) -> int:
        async with self._store:
            if options.action == "list":
                await self.list(options.prefix)
                return 0
            act = self.show if options.action == "show" else self.delete
            return 0 if all([await act(session_id) for session_id in options.ids]) else 1

    async def list(self, prefix: str) -> None:
        cursor = None
        while True:
            page = await self._store.list(prefix=prefix, cursor=cursor)
            for info in page.sessions:
                columns = [f"{timestamp_text(info.updated_at)}", f"{info.status:7}", f"{info.messages:5}"]
                labels = [f"{quote_id(name)}={quote_id(value)}" for name, value in sorted(info.labels.items())]
                print_out("  ".join([*columns, quote_id(info.session_id), *labels]))
            cursor = page.cursor
            if cursor is None:
                return

    async def show(self, session_id: str) -> bool:
        state = await self._store.load(session_id)
        if state is None:
            return self.report_missing(session_id)
        if state.summary:
            print_out(f"[summary] {state.summary}")
        for message in state.context:
            self.show_message(message)
        if state.reply_context is not None:
            self.show_message(state.reply_context.message)
        question = open_question(state.reply_context)
        if question is not None:
            print_out(f"[waiting] for an answer about {', '.join(map(describe_call, question.tool_calls))}")
        return True

    def show_message(self, message: Msg) -> None:
        for block in message.get_content_blocks():
            if isinstance(block, TextBlock):
                print_out(f"{message.name}: {block.text}")
            elif isinstance(block, ToolCallBlock):
                print_out(f"[call] {describe_call(block)}")
            elif isinstance(block, ToolResultBlock):
                print_out(f"[result] {block.name}, {block.state}: {block.text}")
            elif isinstance(block, DataBlock):
                print_out(f"[data] {block.source.media_type}")

    async def delete(self, session_id: str) -> bool:
        if await self._store.load(session_id) is None:
            return self.report_missing(session_id)
        await self._store.delete(session_id)
        print_out(f"deleted {quote_id(session_id)}")
        return True

    def report_missing(self, session_id: str) -> bool:
        print(encodable_text(f"agentrt: the store has no session {session_id!r}", sys.stderr), file=sys.stderr)
        return False


def print_out(text: str) -> None:
    """Print a line that no terminal takes for an order."""
    print(encodable_text(escape_controls(text), sys.stdout))


def quote_id(text: str) -> str:
    """Return an id or a label unchanged if it can be read and typed in one line, else its `repr`."""
    return text if text.isprintable() else repr(text)
