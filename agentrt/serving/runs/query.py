"""The parts of a query for runs, checked."""

from datetime import UTC, datetime, timedelta

from starlette.requests import Request

from agentrt.errors import UsageError
from agentrt.serving.failure import ApiError
from agentrt.state.sessions import check_labels

_MAX_LABEL_FILTERS = 10
_FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 2**63 - 1  # nanoseconds: more does not fit into a database


def read_since(text: str | None) -> int:
    """Return the time in `?since=`, in nanoseconds since the epoch."""
    if not text:
        return 0
    try:
        time = datetime.fromisoformat(text)
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _FIRST_TIME
        # In whole numbers, since a float has no room for nanoseconds.
        return min(since // timedelta(microseconds=1) * 1_000, _LATEST)
    except (ValueError, OverflowError):
        raise ApiError(400, "since", "?since= must be a time such as 2026-01-31T12:00:00Z") from None


def read_label_filters(request: Request) -> dict[str, str]:
    """Return the labels in `?label=`."""
    labels = [text.partition(":") for text in request.query_params.getlist("label")]
    try:
        if len(labels) > _MAX_LABEL_FILTERS or not all(colon for _, colon, _ in labels):
            raise UsageError("no labels")
        found = {name: value for name, _, value in labels}
        check_labels(found, "?label=")
    except UsageError:
        raise ApiError(400, "label", f"?label= must be NAME:VALUE, at most {_MAX_LABEL_FILTERS} times") from None
    return found
