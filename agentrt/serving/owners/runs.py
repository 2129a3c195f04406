"""The recorded runs of one owner, by the ids that clients know."""

from agentrt.runs import RunInfo, RunStore
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import OwnerSessions

_MAX_NESTED_RUNS = 100  # of sub-agents


async def find_run(sessions: OwnerSessions, session_id: str, reply_id: str) -> tuple[RunStore, RunInfo]:
    """Return the facts about a run, with stored ids; raises `ApiError` for one that the owner does not have."""
    runs = sessions.runs
    if runs is not None and session_id and session_id.isprintable() and reply_id.isprintable():
        for stored_id in sessions.possible_ids(session_id):
            info = await runs.describe(stored_id, reply_id)
            if info is not None and await _is_owned(sessions, runs, info):
                return runs, info
    raise no_run()


def no_run() -> ApiError:
    return ApiError(404, "no_run", "this run was not recorded, or was deleted")


def with_public_ids(sessions: OwnerSessions, text: bytes) -> bytes:
    """Return JSON with public session ids: a record has stored ids in many places, also in results of tools."""
    prefix = sessions.owner.prefix.encode()
    return text.replace(prefix, b"") if prefix else text


async def _is_owned(sessions: OwnerSessions, runs: RunStore, info: RunInfo) -> bool:
    outer: RunInfo | None = info
    for _ in range(_MAX_NESTED_RUNS):
        if outer is None:
            return False
        if outer.parent is None or outer.is_task:
            return sessions.owns(outer.labels)
        # The conversation of a sub-agent has no labels of its own.
        outer = await runs.describe(outer.parent[0], outer.parent[1])
    return False
