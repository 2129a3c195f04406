"""The events of a reply, as its observers see them: around the driver, where nothing is added or left out any more."""

from typing import Any

from anyio import get_cancelled_exc_class

from agentrt._runtime.chain.spec import Notify
from agentrt._runtime.concurrency.coroutine_reader import ReaderLeft
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.turns import Claim
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.loop.driver import begin_run, run_reply
from agentrt.event import ReplyClosedEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg


def observe_events(notify: Notify) -> Any:
    """Return `run_reply` with observers around it."""

    async def run_observed(
        agent: ReplyingAgent,
        claim: Claim,
        inputs: ReplyInput,
        form: AnswerForm | None,
        deps: Any = None,
        is_read: bool = False,
    ) -> Msg | None:
        # Taken here, so that observers also see the end of a reply which is left before its first event.
        begun = await begin_run(agent, claim, inputs, form)
        run = begun[1]
        if isinstance(run, Msg):
            return await run_reply(agent, claim, inputs, form, deps, is_read, begun)
        left_by: BaseException | None = None
        try:
            return await run_reply(agent, claim, inputs, form, deps, is_read, begun, notify)
        except BaseException as error:
            left_by = error
            raise
        finally:
            # The last of all, once the state is saved and the conversation is given back.
            end = run.progress.sent_end
            reason = _reason_without_end(run, left_by) if end is None else end.finished_reason
            notify(agent, ReplyClosedEvent(run.id, reason))
            left_by = None  # the error's traceback holds this frame

    return run_observed


def _reason_without_end(run: ReplyRun, left_by: BaseException | None) -> Any:
    """Return why a reply is over that has sent no end."""
    # The question stands, also where its reader left before the end of the stream.
    if left_by is None or run.progress.is_parked:
        return "parked"
    if isinstance(left_by, ReaderLeft):
        return "closed"
    return "cancelled" if isinstance(left_by, get_cancelled_exc_class()) else "error"
