"""`agentrt sessions`: lists, shows and deletes what a store holds."""

import argparse
import sys

import anyio

from agentrt.console.render.call_description import describe_call
from agentrt.console.specs import load_agent
from agentrt.conversation.question import open_question
from agentrt.errors import ConfigError
from agentrt.message import DataBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.state import SessionStore, state_store
from agentrt.text import encodable_text, escape_controls
from agentrt.timestamp import timestamp_text

__all__ = ["run_sessions"]


def run_sessions(options: argparse.Namespace) -> int:
    """Do what `options.action` says; returns the exit code, which is 1 where a session does not exist."""
    if options.store is not None:
        store = state_store(options.store)
    else:
        own: object = load_agent(options.agent).state_store
        if not hasattr(own, "list"):
            raise ConfigError(
                f"the agent {options.agent!r} has no store that lists its sessions: write --store sqlite:agent.db"
            )
        store = own  # type: ignore[assignment]  # one that lists them has the other methods
    return anyio.run(_Sessions(store).run, options)


class _Sessions:
    """The sessions of a store, as lines of text that is safe for a terminal."""

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
                labels = [f"{_quote(name)}={_quote(value)}" for name, value in sorted(info.labels.items())]
                _write("  ".join([*columns, _quote(info.session_id), *labels]))
            cursor = page.cursor
            if cursor is None:
                return

    async def show(self, session_id: str) -> bool:
        state = await self._store.load(session_id)
        if state is None:
            return self.report_missing(session_id)
        if state.summary:
            _write(f"[summary] {state.summary}")
        for message in state.context:
            self.show_message(message)
        if state.reply_context is not None:
            self.show_message(state.reply_context.message)
        question = open_question(state.reply_context)
        if question is not None:
            _write(f"[waiting] for an answer about {', '.join(map(describe_call, question.tool_calls))}")
        return True

    def show_message(self, message: Msg) -> None:
        for block in message.get_content_blocks():
            if isinstance(block, TextBlock):
                _write(f"{message.name}: {block.text}")
            elif isinstance(block, ToolCallBlock):
                _write(f"[call] {describe_call(block)}")
            elif isinstance(block, ToolResultBlock):
                _write(f"[result] {block.name}, {block.state}: {block.text}")
            elif isinstance(block, DataBlock):
                _write(f"[data] {block.source.media_type}")

    async def delete(self, session_id: str) -> bool:
        if await self._store.load(session_id) is None:
            return self.report_missing(session_id)
        await self._store.delete(session_id)
        _write(f"deleted {_quote(session_id)}")
        return True

    def report_missing(self, session_id: str) -> bool:
        print(encodable_text(f"agentrt: the store has no session {session_id!r}", sys.stderr), file=sys.stderr)
        return False


def _write(text: str) -> None:
    print(encodable_text(escape_controls(text), sys.stdout))


def _quote(text: str) -> str:
    """Return an id or a label as it is where it can be read and typed in one line, and else as Python writes it."""
    return text if text.isprintable() else repr(text)
