"""Tool emulator: a model makes up the results of tools, for tests and drafts."""

from collections.abc import AsyncGenerator, Sequence

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, NextActing
from agentrt.message import SystemMsg, TextBlock, ToolResultState, UserMsg
from agentrt.model import ChatModelBase, chat_model
from agentrt.permission.glob import matches
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.reply_info import call_of, is_users_tool
from agentrt_middleware.validation import check_patterns

_EMULATION = (
    "You stand in for a tool of an assistant. Answer with what the tool would return for these arguments: plausible "
    "data in the form that the tool would use, and nothing else."
)


class ToolEmulatorMiddleware(MiddlewareBase):
    """Asks `model` for plausible results of the tools that `tools` names, without running them; meant for tests.

    `tools` are names and patterns, by default all tools. Tools of middlewares, and the structured answer,
    are included only if named in full, since others rely on them. Permissions are decided and
    arguments checked as if the tools ran. A call whose emulation fails gets an error result.
    """

    inherited = False

    def __init__(self, model: ChatModelBase | str, *, tools: str | Sequence[str] = "*") -> None:
        spec: object = model
        if not isinstance(spec, (ChatModelBase, str)):
            raise MiddlewareConfigError(
                f"ToolEmulatorMiddleware(model=...) must be a chat model, or a name as in 'openai:gpt-5-mini', not "
                f"{spec!r:.200}"
            )
        self.model = chat_model(spec)
        self.tools = check_patterns("ToolEmulatorMiddleware(tools=...)", tools, least=1)

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = call_of(input_kwargs)
        is_meant = call.name in self.tools or is_users_tool(agent, call.name)
        if not (is_meant and any(matches(pattern, call.name) for pattern in self.tools)):
            async for item in next_handler(**input_kwargs):
                yield item
            return
        # Not from `agent.toolkit`, so that tools added by a layer are described too.
        tool = agent.run.tool_of(call)
        about = "" if tool is None else f"\nWhat it does: {tool.description}"
        question = f"Tool: {call.name}{about}\nArguments: {call.input or '{}'}"
        try:
            messages = [SystemMsg(_EMULATION), UserMsg("runtime", question)]
            answer = await agent.run.ask_model(messages, purpose="emulate_tool", model=self.model)
        except Exception as error:  # noqa: BLE001  # what a tool raises becomes its result, and this is in its place
            text = f"{call.name} could not be emulated: {type(error).__name__}"
            yield ToolResponse([TextBlock(text)], ToolResultState.ERROR)
        else:
            yield ToolResponse([TextBlock(answer.get_text_content() or "")])
