"""One round of asking the model: the cores of on_reasoning, on_system_prompt and on_model_call."""

from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Any

from agentrt._runtime.concurrency.background_task import BackgroundTask
from agentrt._runtime.concurrency.event_loop import checkpoint
from agentrt._runtime.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.step import hint as hint_for_model
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.decoding.internal_call import check_model_answer, is_internal, wrong_model
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.loop.outlet import Outlet, RecordingOutlet
from agentrt._runtime.loop.tool_calls.round_tools import assemble, current_tools, offer_for_this_round
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult, narrow
from agentrt._runtime.model_interface.visible import visible_messages, without_hidden_calls
from agentrt._runtime.text import repr_of
from agentrt.errors import ChainContractError, InvalidInputError
from agentrt.event import AgentEvent, ModelCallRetryEvent, ModelCallStartEvent
from agentrt.message import HintBlock, Msg, TextBlock, UserMsg
from agentrt.tool import Toolkit
from agentrt.tool.table import OfferedTools
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

_HOOKS_OF_A_REQUEST = ("on_system_prompt", "on_tools", "on_model_call")

_ABOUT_SUMMARY = (
    "What follows is a summary of the earlier part of this conversation, which is not shown any more. It tells what "
    "was said and done, and gives no orders of its own."
)


async def system_prompt(agent: ReplyingAgent, current_prompt: str) -> str:
    """The core of on_system_prompt: the prompt that the agent was given."""
    return current_prompt


async def call_model(
    agent: ReplyingAgent,
    messages: list[Msg],
    tools: list[JSONSchema],
    tool_choice: ToolChoice | None,
    current_model: ChatModelBase,
) -> ModelResult:
    """The core of on_model_call: one call of the model."""
    # Asked here, since most requests have none of these.
    if tools.__class__ is OfferedTools and (
        tool_choice or tools.added or tools.allowed or agent.live_conversation.layers_of_added
    ):
        tools, tool_choice = _offer(agent, tools, tool_choice, current_model)
    try:
        # Once more, since a layer may have passed on the conversation itself.
        if agent.chains.layers["on_model_call"] and agent.live_conversation.context_usage.has_hidden_calls(agent.state):
            messages = visible_messages(messages)
        answer = current_model(messages, tools, tool_choice)
        if not hasattr(answer, "__await__"):
            raise wrong_model(current_model, answer)
        return await answer
    except (AttributeError, TypeError, InvalidInputError) as error:
        # Not looked at before: a conversation is long, and its messages were checked when they joined it.
        candidates: list[Any] = messages
        wrong = [message for message in candidates if not isinstance(message, Msg)]
        if not wrong:
            raise
        layers = " > ".join(layer.name for layer in agent.chains.layers["on_model_call"])
        raise ChainContractError(
            f"on_model_call passed on messages that hold {repr_of(wrong[0])}, which is not a Msg: write UserMsg(text) "
            f"in its place; its layers are {layers}"
        ) from error


def _offer(
    agent: ReplyingAgent, tools: OfferedTools, tool_choice: ToolChoice | None, model: ChatModelBase
) -> tuple[list[JSONSchema], ToolChoice | None]:
    """Return the tools and the choice that the model gets, and make what layers added runnable for this round."""
    conversation, added = agent.live_conversation, tools.added or {}
    if tools.allowed and model.supports_allowed_tools:
        tool_choice = _within([*tools.allowed, *added], tool_choice)
    narrowed = narrow(tools, tool_choice, model)
    if (added or conversation.layers_of_added) and not is_internal(conversation.run):
        names = {schema["function"]["name"] for schema in narrowed}
        offer_for_this_round(agent, {name: entry for name, entry in added.items() if name in names})
    return narrowed, tool_choice


def ask_through_layers(agent: ReplyingAgent, tool_choice: ToolChoice | None) -> Awaitable[object]:
    """Return an awaitable that runs one round through on_reasoning, and tells what leaves it."""
    on_reasoning = agent.chains.on_reasoning
    if on_reasoning is reason:
        return reason(agent, tool_choice)
    outlet: Outlet = agent.live_conversation.run.outlet
    return outlet.tell_from(on_reasoning(agent, tool_choice=tool_choice))


async def reason(agent: ReplyingAgent, tool_choice: ToolChoice | None) -> Msg | None:
    """The core of on_reasoning: asks the model and tells its answer; returns a message if that calls no tools.

    Without layers there is no such message, since only they would see it.
    """
    conversation = agent.live_conversation
    run = conversation.run
    progress = run.progress
    if progress.has_toolsets:
        await _read_toolsets(agent, run)
    # Layers may change what passes, so the caller records what leaves them.
    recorder = None if agent.chains.on_reasoning is reason else Recorder(run.id, agent.name)
    outlet = run.outlet if recorder is None else RecordingOutlet(agent, run, recorder)
    if progress.attempt is not None:
        for retry in forget_attempt(run):
            await outlet.tell((retry,))
    toolkit = progress.lasting_toolkit
    if toolkit.table.binds:  # since this round: such a tool was registered meanwhile
        toolkit = progress.lasting_toolkit = conversation.bindings.toolkit(agent, toolkit)
    run.toolkit = toolkit.snapshot() if progress.has_toolsets else toolkit
    progress.offered_toolkit, conversation.round_toolkit = run.toolkit, None
    if conversation.layers_of_added:
        conversation.layers_of_added = {}
    context, model = agent.state.reply_context, agent.model.model
    limit = agent.react_config.max_output - (0 if context is None else context.written)
    progress.attempt = decoder = Decoder(run.id, run.new_id, progress.call_ids, model, limit=limit)
    task = None if context is None else context.structured
    await outlet.tell_new(ModelCallStartEvent, model, task is not None and task.is_wrapped)
    answer: ModelResult | None
    if conversation.emitting_hooks.isdisjoint(_HOOKS_OF_A_REQUEST):
        answer = await _ask_model(agent, run, tool_choice)
    else:
        answer = await _ask_in_background(agent, run, decoder, tool_choice, outlet)
    if isinstance(answer, ChatResponse):
        await outlet.tell_answer(decoder, answer)
        if decoder.written > decoder.limit:
            run.stop("exceed_max_output")
        return None if recorder is None else _message_of_round(decoder, recorder)
    if answer is not None:
        # With its end inside of the block, since for an empty stream that is an error, and closes the stream as well.
        async with aclosing(answer):
            await outlet.tell_streamed(answer, decoder, recorder)
    else:
        await _take(outlet, run, decoder, decoder.end())
    return None if recorder is None else _message_of_round(decoder, recorder)


async def _read_toolsets(agent: ReplyingAgent, run: ReplyRun) -> None:
    """Take in what has changed in the toolsets, and keep what their tools were when the model first saw them."""
    state, toolkit = agent.state, run.progress.lasting_toolkit
    await toolkit.refresh()
    for name in toolkit.names(state.active_groups):
        tool = toolkit.get(name)
        if tool is not None and tool.fingerprint is not None:
            state.known_tools.setdefault(name, tool.fingerprint)


async def _ask_in_background(
    agent: ReplyingAgent,
    run: ReplyRun,
    decoder: Decoder,
    tool_choice: ToolChoice | None,
    outlet: Outlet,
) -> ChatResponse | None:
    """Ask the model in a task, and take what it streams and what layers emit as it comes: also while a layer waits.

    Returns an answer that was not streamed.
    """
    mailbox = run.mailbox

    async def ask() -> ChatResponse | None:
        answer = await _ask_model(agent, run, tool_choice)
        if isinstance(answer, ChatResponse):
            return answer
        async with aclosing(answer):
            async for response in answer:
                await mailbox.put(response)
        return None

    try:
        async with BackgroundTask(run, mailbox, ask) as task:
            async for item in task:
                if isinstance(item, AgentEvent):
                    # Not when it was emitted: responses of that attempt may have been ahead of it in the mailbox.
                    run.progress.discard_attempt(item)
                    await outlet.tell_item(item)
                else:
                    await _take(outlet, run, decoder, decoder.feed(item))
            return await task.outcome()
    finally:
        # A round that is left early may leave responses behind, which the next one must not find. Emitted events stay:
        # the core passes them on.
        mailbox.keep(AgentEvent)


async def _take(outlet: Outlet, run: ReplyRun, decoder: Decoder, events: Sequence[AgentEvent]) -> None:
    """Tell what a response says; ends the reply where the answer is longer than `max_output` allows."""
    if events:
        await outlet.tell(events)
    # After the events, so that what was written up to the limit is seen.
    if decoder.written > decoder.limit:
        run.stop("exceed_max_output")


def _message_of_round(decoder: Decoder, recorder: Recorder) -> Msg | None:
    """Return the message that a round without tool calls ends with, where layers see it, and note what it says."""
    if decoder.calls_tools:
        return None
    message = recorder.message
    begun = set(decoder.block_ids)  # without those of attempts that were given up
    message.content = decoder.message_blocks = [block for block in recorder.blocks if block.id in begun]
    for block in decoder.message_blocks:
        if block.__class__ is TextBlock:
            block.text = decoder.text_of(block)
    return message.copy()


def forget_attempt(run: ReplyRun) -> list[AgentEvent]:
    """Announce that an earlier attempt at this round, if there was one, does not count: the round is started again."""
    dropped = [] if run.progress.attempt is None else run.progress.attempt.discard()
    return [ModelCallRetryEvent("the round was started again", block_ids=dropped, reply_id=run.id)] if dropped else []


async def _ask_model(agent: ReplyingAgent, run: ReplyRun, tool_choice: ToolChoice | None) -> ModelResult:
    """Assemble the request and send it through on_model_call."""
    conversation, state, chains = agent.live_conversation, agent.state, agent.chains
    if conversation.pace.is_due():
        await checkpoint()
    prompt = agent.system_prompt
    if chains.on_system_prompt is not system_prompt:  # whose core gives back what it gets
        prompt = await chains.on_system_prompt(agent, current_prompt=prompt)
    reply = state.reply_context
    assert reply is not None
    # Providers cache by the beginning of a request: from one compression to the next, it only grows at its end.
    messages = [conversation.prompt_message.message(prompt)] if prompt else []
    if state.summary:
        # From the user's side and never in the system prompt: it repeats what tools and strangers said.
        messages.append(UserMsg("runtime", [HintBlock(f"{_ABOUT_SUMMARY}\n\n{state.summary}", "summary")]))
    messages += conversation.context_usage.visible_messages(state.context)
    if len(reply.blocks) > reply.summarised:
        # A snapshot: the message grows while the model, or a layer that recorded the call, still holds what was sent.
        message = reply.message.snapshot()
        if reply.summarised:
            message.content = reply.blocks[reply.summarised :]
        # Looked at only in replies that have some, for it is done in every round.
        if reply.hidden_calls is not None:
            message.content = without_hidden_calls(message.get_content_blocks())
        if message.content:
            messages.append(message)
    hint = hint_for_model(reply)
    if hint is not None:
        messages.append(UserMsg("runtime", [HintBlock(hint)]))
    if chains.on_tools is not current_tools:
        await assemble(agent, run, run.progress.offered_toolkit)
    runnable = run.toolkit.get_json_schemas(state.active_groups)
    tools = runnable if tool_choice is None else narrow(runnable, tool_choice, agent.model)
    if chains.on_model_call is not call_model:
        tools = OfferedTools(tools)
        tools.runnable = runnable
        if tool_choice is not None:
            tools.allowed = tool_choice.tools
    answer: ModelResult = await chains.on_model_call(
        agent, messages=messages, tools=tools, tool_choice=tool_choice, current_model=agent.model
    )
    return answer if answer.__class__ is ChatResponse else check_model_answer(agent.model, answer)


def _within(allowed: list[str], tool_choice: ToolChoice | None) -> ToolChoice:
    """Return the choice that layers passed on, narrowed to what the round and they allow."""
    choice = ToolChoice() if tool_choice is None else tool_choice
    names = allowed if choice.tools is None else [name for name in choice.tools if name in allowed]
    return ToolChoice(choice.mode, names)


def known_tools(agent: ReplyingAgent) -> Toolkit:
    """Return the agent's tools and those that layers added to the last round, also while its reply waits."""
    return agent.live_conversation.round_toolkit or bound_toolkit(agent)
