"""What must hold when nothing goes wrong: alone, with answers that stream and not, and beside other layers."""

from itertools import product

from agentrt.event import ModelCallEndEvent, TextBlockDeltaEvent, ToolResultEndEvent, ToolResultStartEvent
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

__all__ = ["answer_alone", "answer_beside_layers", "answer_with_delays", "resume_again"]


async def answer_alone(run: KitRun) -> None:
    """Have every kind of conversation with nothing but the middleware, streamed and not."""
    for kind, question in QUESTIONS.items():
        run.activity = f"left alone, with {kind}"
        # Streamed twice, so that a middleware that answers differently each time is not blamed.
        streamed, whole, again = [
            await run.start(stream=stream).ask_without_errors(question) for stream in (True, False, True)
        ]
        if differs_from_both(whole, streamed, again):
            run.report(f"the answer is {streamed!r} when it streams, and {whole!r} when it does not")
        if run.problems:
            return  # the other kinds would be broken in the same way
    run.activity = "left alone, with usage"
    for stream in (True, False):
        conversation = run.start(stream=stream)
        await conversation.ask_without_errors(PLAIN_QUESTION)
        # A middleware that never asks the model has no usage to pass on.
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
    for _ in range(2):  # the last question stays as it is
        await conversation.ask_without_errors(TOOL_QUESTION)
    conversation.report_error(
        await conversation.perform("compressing the conversation", conversation.agent.compress_context)
    )
    await conversation.ask_without_errors(PLAIN_QUESTION)


async def answer_with_delays(run: KitRun) -> None:
    """Have the items from inside of the middleware come one item later."""
    for question, stream in product(QUESTIONS.values(), (True, False)):
        delayed = await run.start(run.layers(inside=[DelayLayer()]), stream=stream).ask_without_errors(question)
        alone, again = [await run.start(stream=stream).ask(question) for _ in range(2)]
        if differs_from_both(delayed, alone, again):
            run.report(f"the answer is {delayed!r} when items come later, and {alone!r} when they do not")


async def answer_beside_layers(run: KitRun) -> None:
    """Put the middleware beside layers that answer by themselves or rewrite the answer."""
    activity = run.activity
    for make_layer, does in ((AnswerLayer, "answers by itself"), (RewriteLayer, "rewrites the answer")):
        for is_outside, stream in product((True, False), (True, False)):
            run.activity = f"{activity} that {does}, {'outside' if is_outside else 'inside'} of it"
            outside, inside = ([make_layer()], []) if is_outside else ([], [make_layer()])
            conversation = run.start(run.layers(outside, inside), stream=stream)
            for question in (PLAIN_QUESTION, TOOL_QUESTION, CONFIRM_QUESTION):
                await conversation.ask_without_errors(question)


async def resume_again(run: KitRun) -> None:
    """Have a layer leave resumed replies in the middle and call `next_handler` again."""
    activity = run.activity
    events_to_leave_at = (ToolResultStartEvent, ToolResultEndEvent, TextBlockDeltaEvent)
    for event_class, is_outside in product(events_to_leave_at, (True, False)):
        run.activity = f"{activity} at {event_class.__name__}, {'outside' if is_outside else 'inside'} of it"
        layer = ResumeAgainLayer(event_class)
        outside, inside = ([layer], []) if is_outside else ([], [layer])
        await run.start(run.layers(outside, inside)).ask_without_errors(RESUMABLE_QUESTION)
