"""Checks without faults: alone, with streamed and whole answers, and beside other layers."""

from itertools import product

from agentrt._runtime.conversation.conversation import Conversation
from agentrt.event import ModelCallEndEvent, TextBlockDeltaEvent, ToolResultEndEvent, ToolResultStartEvent
from agentrt.hooks import HOOKS, MiddlewareBase, must_state_inheritance
from agentrt.testing.kit.kit_agents import (
    CONFIRM_QUESTION,
    FORM,
    PLAIN_QUESTION,
    QUESTIONS,
    RESUMABLE_QUESTION,
    TOOL_QUESTION,
)
from agentrt.testing.kit.probe_layers import AnswerLayer, DelayLayer, ResumeAgainLayer, RewriteLayer
from agentrt.testing.kit.session import KitRun, differs_from_both

# Events of other hooks flow through the first two, and the last two are entered outside of the rounds of a reply.
_HOOKS_WITHOUT_LATE_EVENTS = ("on_reply", "on_reasoning", "on_observe", "on_print")
_HOOKS_WITH_LATE_EVENTS = tuple(
    spec.name for spec in HOOKS if spec.shape != "observer" and spec.name not in _HOOKS_WITHOUT_LATE_EVENTS
)


async def answer_alone(run: KitRun) -> None:
    """Run every kind of conversation with the middleware alone, streamed and not."""
    for kind, question in QUESTIONS.items():
        run.activity = f"left alone, with {kind}"
        # Streamed twice, so that a nondeterministic middleware is not blamed.
        conversations = [run.start(stream=stream) for stream in (True, False, True)]
        streamed, whole, again = [await conversation.ask_without_errors(question) for conversation in conversations]
        if differs_from_both(whole, streamed, again):
            run.report(f"the answer is {streamed!r} when it streams, and {whole!r} when it does not")
        if any(conversation.agent.live_conversation.has_late_events for conversation in conversations):
            _look_for_declaration(run)
        _look_for_waiting_tools(run, [conversation.agent.live_conversation for conversation in conversations])
        if run.problems:
            return  # the other kinds would fail in the same way
    run.activity = "left alone, with usage"
    for stream in (True, False):
        conversation = run.start(stream=stream)
        await conversation.ask_without_errors(PLAIN_QUESTION)
        # A middleware that never calls the model has no usage to pass on.
        ends = [event for event in conversation.events if isinstance(event, ModelCallEndEvent)]
        if conversation.requests and ends and not any(event.input_tokens and not event.estimated for event in ends):
            run.report(
                "the model reported its usage, and MODEL_CALL_END has none of it: pass on the `usage` of a "
                "ChatResponse, as dataclasses.replace(response, content=...) does"
            )
    run.activity = "left alone, with structured output"
    for stream in (True, False):
        await run.start(stream=stream).ask_without_errors(PLAIN_QUESTION, FORM)
    run.activity = "left alone, with compression"
    conversation = run.start()
    for _ in range(2):  # the last question is not compressed
        await conversation.ask_without_errors(TOOL_QUESTION)
    conversation.report_error(
        await conversation.perform("compressing the conversation", conversation.agent.compress_context)
    )
    await conversation.ask_without_errors(PLAIN_QUESTION)


def look_for_inheritance(run: KitRun) -> None:
    """Report a class that guards or observes, and does not state whether sub-agents inherit it."""
    layer = run.factory()
    if must_state_inheritance(layer):
        name = type(layer).__name__
        run.report(
            f"{name} guards or observes, and does not state whether sub-agents inherit it: set `inherited = True` on "
            f"{name}, or `inherited = False`"
        )


def _look_for_waiting_tools(run: KitRun, conversations: list[Conversation]) -> None:
    """Report a tool that was added to one request only, and whose calls would have to wait for an answer."""
    for conversation in conversations:
        for name in conversation.layers_of_added:
            tool = None if conversation.round_toolkit is None else conversation.round_toolkit.get(name)
            if tool is not None and (tool.ask or tool.is_external_tool or tool.is_resumable):
                run.report(
                    f"the tool {name!r}, which it added in on_model_call, may have to wait for an answer, and is there "
                    f"for one request only: add it in on_tools"
                )
                return


def _look_for_declaration(run: KitRun) -> None:
    """Report a class whose events come late, unless it says that this is soon enough."""
    cls = type(run.factory())
    says_so = any("emits" in vars(parent) for parent in cls.__mro__ if parent is not MiddlewareBase)
    if not says_so and any(getattr(cls, hook) is not getattr(MiddlewareBase, hook) for hook in _HOOKS_WITH_LATE_EVENTS):
        run.report(
            f"{cls.__name__} emitted an event that is not seen before its hook returns control: set `emits = True` on "
            f"{cls.__name__}, or `emits = False` if that is soon enough"
        )


async def answer_one_after_the_other(run: KitRun) -> None:
    """Run one conversation of all questions, whose requests begin like those before them."""
    conversation = run.start()
    for question in (*QUESTIONS.values(), *QUESTIONS.values()):
        await conversation.ask_without_errors(question)


async def answer_with_delays(run: KitRun) -> None:
    """Delay the items from inside the middleware by one item."""
    for question, stream in product(QUESTIONS.values(), (True, False)):
        delayed = await run.start(run.layers(inside=[DelayLayer()]), stream=stream).ask_without_errors(question)
        alone, again = [await run.start(stream=stream).ask(question) for _ in range(2)]
        if differs_from_both(delayed, alone, again):
            run.report(f"the answer is {delayed!r} when items come later, and {alone!r} when they do not")


async def answer_beside_layers(run: KitRun) -> None:
    """Combine the middleware with layers that answer by themselves or rewrite the answer."""
    activity = run.activity
    for make_layer, does in ((AnswerLayer, "answers by itself"), (RewriteLayer, "rewrites the answer")):
        for is_outside, stream in product((True, False), (True, False)):
            run.activity = f"{activity} that {does}, {'outside' if is_outside else 'inside'} of it"
            outside, inside = ([make_layer()], []) if is_outside else ([], [make_layer()])
            conversation = run.start(run.layers(outside, inside), stream=stream)
            for question in (PLAIN_QUESTION, TOOL_QUESTION, CONFIRM_QUESTION):
                await conversation.ask_without_errors(question)


async def resume_again(run: KitRun) -> None:
    """Add a layer that leaves resumed replies in the middle and calls `next_handler` again."""
    activity = run.activity
    events_to_leave_at = (ToolResultStartEvent, ToolResultEndEvent, TextBlockDeltaEvent)
    for event_class, is_outside in product(events_to_leave_at, (True, False)):
        run.activity = f"{activity} at {event_class.__name__}, {'outside' if is_outside else 'inside'} of it"
        layer = ResumeAgainLayer(event_class)
        outside, inside = ([layer], []) if is_outside else ([], [layer])
        await run.start(run.layers(outside, inside)).ask_without_errors(RESUMABLE_QUESTION)
