"""Tool result limit: stores a long result, whose rest the model reads with a tool."""

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, ToolError
from agentrt.hooks import ActingValues, MiddlewareBase, NextActing
from agentrt.message import DataBlock, TextBlock
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from agentrt.types import ToolChunk, ToolResponse
from agentrt.workspace import FileSystemBase
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.validation import check_number

_logger = logging.getLogger("agentrt")
_TOOL = "read_result"
_REF = re.compile(r"result-([1-9][0-9]{0,15})", re.ASCII)
_MAX_PUT_ASIDE = 5_000_000  # characters in the state of one conversation; the oldest results make room


class ToolResultLimitMiddleware(MiddlewareBase):
    """Gives the model the first `head` and the last `tail` characters of a result with more than `max_chars`.

    The whole text is stored, and the tool `read_result(ref, offset, limit)`, which this adds to the agent, reads any
    part of it: the parts joined are the result. It is stored in the state of the conversation, up to 5,000,000
    characters, where the oldest are dropped, or in files of `workspace`. Only this conversation can read it. Output
    that a tool streams is shown unchanged, and data in a result stays.
    """

    inherited = False
    wraps: ClassVar = {
        "GuardrailMiddleware": "what is put aside has been judged",
        "BudgetMiddleware": "reading the rest of a result counts as a call too",
        "RedactionMiddleware": "what is put aside is redacted",
        "CacheMiddleware": "a cache keeps whole results",
        "ToolErrorMiddleware": "what is said of a failure may be long too",
        "ToolRetryMiddleware": "it puts aside the last run alone",
        "ToolEmulatorMiddleware": "a made-up result may be long too",
    }

    def __init__(
        self, max_chars: int = 20_000, *, head: int = 4_000, tail: int = 1_000, workspace: FileSystemBase | None = None
    ) -> None:
        check_number("ToolResultLimitMiddleware(max_chars=...)", max_chars, whole=True)
        check_number("ToolResultLimitMiddleware(head=...)", head, least=0, whole=True)
        check_number("ToolResultLimitMiddleware(tail=...)", tail, least=0, whole=True)
        if head + tail > max_chars:
            raise MiddlewareConfigError(
                f"ToolResultLimitMiddleware(head={head}, tail={tail}) shows more than max_chars={max_chars}: give a "
                f"smaller head or tail"
            )
        files: object = workspace
        if files is not None and not isinstance(files, FileSystemBase):
            raise MiddlewareConfigError(
                f"ToolResultLimitMiddleware(workspace=...) must be a LocalWorkspace or another FileSystemBase, not "
                f"{files!r:.200}"
            )
        self.max_chars, self.head, self.tail, self.workspace = max_chars, head, tail, workspace
        self._tool = FunctionTool(self._read_result, name=_TOOL, is_read_only=True, max_output=max_chars + 1_000)

    def list_tools(self) -> Sequence[ToolBase]:
        return [self._tool]

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        is_reading = call_of(input_kwargs).name == _TOOL  # which itself keeps to the limit
        async for item in next_handler(**input_kwargs):
            if isinstance(item, ToolResponse) and not is_reading and len(item.text) > self.max_chars:
                item = await self._shorten(agent, item)
            yield item

    async def _shorten(self, agent: AgentBase, response: ToolResponse) -> ToolResponse:
        text = response.text
        data = agent.state_of(self)
        number = data["count"] = _result_count(data) + 1
        ref = f"result-{number}"
        if self.workspace is None:
            data["results"] = _kept_results(data)
            self._keep(data["results"], ref, text)
        else:
            try:
                await self.workspace.write_text(_path(agent, ref), text)
            except Exception as error:  # noqa: BLE001  # files of the user's own kind; the result must not be lost
                _logger.warning("a long result could not be put aside (%s), so it stays whole", type(error).__name__)
                return response
        left_out = len(text) - self.head - self.tail
        note = (
            f"\n[... {left_out:,} of {len(text):,} characters are left out here. Read them with "
            f'{_TOOL}(ref="{ref}", offset={self.head}, limit={self.max_chars}) ...]\n'
        )
        excerpt = text[: self.head] + note + (text[-self.tail :] if self.tail else "")
        # A model that reads images always gets them: they have a separate limit.
        files = [block for block in response.content if isinstance(block, DataBlock)]
        return replace(response, content=[TextBlock(excerpt), *files])

    def _keep(self, results: dict[str, Any], ref: str, text: str) -> None:
        results[ref] = text
        total = sum(map(len, results.values()))
        for oldest in list(results)[:-1]:
            if total <= _MAX_PUT_ASIDE:
                return
            total -= len(results.pop(oldest))

    async def _read_result(self, ref: str, context: ToolContext, offset: int = 0, limit: int | None = None) -> str:
        """Read a part of a result that was too long to be shown.

        Args:
            ref: The name that the shortened result gives, such as "result-1".
            offset: How many characters to skip.
            limit: How many characters to read.
        """
        agent = context.agent
        if not isinstance(agent, AgentBase):
            raise ToolError(f"{_TOOL} reads results of a conversation, and this agent has none")
        data = agent.state_of(self)
        text = None
        if self.workspace is None:
            text = _kept_results(data).get(ref)
        # Checked in the state first, so that no other file name reaches the workspace.
        elif (number := _REF.fullmatch(ref)) and int(number[1]) <= _result_count(data):
            text = await self.workspace.read_text(_path(agent, ref))
        if text is None:
            raise ToolError(f"the result {ref!r:.100} is not kept: call the tool that gave it again")
        if offset < 0 or (limit is not None and limit < 1):
            raise ToolError(f"offset must be at least 0 and limit at least 1, not {offset} and {limit}")
        # At most the length of a shown result, or this tool would undo the limit.
        part = text[offset : offset + min(limit or self.max_chars, self.max_chars)]
        if not part:
            raise ToolError(f"the result {ref!r} has {len(text):,} characters, so there is nothing at {offset:,}")
        return part


def _result_count(data: dict[str, Any]) -> int:
    """Return the number of stored results; the data comes from a store, and may be anything."""
    count: object = data.get("count")
    return count if isinstance(count, int) and count >= 0 else 0


def _kept_results(data: dict[str, Any]) -> dict[str, str]:
    results: object = data.get("results")
    return {ref: text for ref, text in (results if isinstance(results, dict) else {}).items() if isinstance(text, str)}


def _path(agent: AgentBase, ref: str) -> str:
    # Hashed, since session names are not restricted like file names.
    session = sha256(agent.state.session_id.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"tool-results/{session}/{ref}.txt"
