"""The events of a reply, as its observers see them: around the driver, where nothing is added or left out any more."""

from collections.abc import AsyncGenerator
from typing import Any

from anyio import get_cancelled_exc_class

from agentrt.chain import Notify
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.turns import Claim
from agentrt.decoding.answer_form import AnswerForm
from agentrt.event import AgentEvent, ReplyClosedEvent, ReplyEndEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.driver import begin_run, run_reply
from agentrt.message import Msg

__all__ = ["observe_events"]


def observe_events(notify: Notify) -> Any:
    """Return `run_reply` with observers around it."""

    async def run_observed(
        agent: ReplyingAgent,
        claim: Claim,
        inputs: ReplyInput,
        form: AnswerForm | None,
        yield_final_msg: bool,
        deps: Any = None,
        begun: tuple[ReplyInput, ReplyRun | Msg] | None = None,
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        # Taken here, so that observers also see the end of a reply which is left before its first event.
        begun = begun or await begin_run(agent, claim, inputs, form)
        run = begun[1]
        items = run_reply(agent, claim, inputs, form, yield_final_msg, deps, begun)
        left_by: BaseException | None = None
        closed = None if isinstance(run, Msg) else ReplyClosedEvent(run.id, "closed")
        has_end = False
        try:
            async for item in items:
                if not isinstance(item, Msg):
                    notify(agent, item)
                    if closed is not None and item.__class__ is ReplyEndEvent and item.reply_id == closed.reply_id:
                        closed.reason, has_end = item.finished_reason, True
                yield item
        except BaseException as error:
            left_by = error
            raise
        finally:
            # The last of all, once the state is saved and the conversation is given back.
            try:
                await items.aclose()
            finally:
                if closed is not None:
                    assert isinstance(run, ReplyRun)
                    if not has_end:
                        closed.reason = _reason_without_end(run, left_by)
                    notify(agent, closed)

    return run_observed


def _reason_without_end(run: ReplyRun, left_by: BaseException | None) -> Any:
    """Return why a reply is over that has sent no end."""
    # The question stands, also where its reader left before the end of the stream.
    if left_by is None or run.progress.is_parked:
        return "parked"
    if isinstance(left_by, GeneratorExit):
        return "closed"
    return "cancelled" if isinstance(left_by, get_cancelled_exc_class()) else "error"
