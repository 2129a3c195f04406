"""The due times of a schedule: by an interval in seconds, or by a line of cron."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from agentrt.errors import ConfigError
from agentrt.hooks import ReplyInput

_NS_PER_SECOND = 1_000_000_000
_MAX_PERIOD = 1_000_000_000
_LOOK_BACK = (100, 10_000, 1_000_000, 100_000_000)
NextTick = Callable[[int], int]


class Schedule:
    """A message that a session gets again and again; times are in nanoseconds since the epoch."""

    def __init__(self, name: str, session_id: str, taken: ReplyInput, labels: dict[str, str], tick: NextTick) -> None:
        self.name = name
        self.session_id = session_id
        self.taken = taken
        self.labels = labels
        self.next_after = tick

    def last_missed(self, since: int, now: int) -> int | None:
        """Return the last time up to now at which it was due; `None` if it was not due at all."""
        # Looked for further and further back, since there may be very many.
        for seconds in _LOOK_BACK:
            due, following = None, self.next_after(max(since, now - seconds * _NS_PER_SECOND))
            while following <= now:
                due, following = following, self.next_after(following)
            if due is not None:
                return due
        return None


def next_tick_function(when: Any) -> NextTick:
    """Return the function of a time that returns the next due time; raises `ConfigError` for an invalid schedule."""
    if isinstance(when, timedelta):
        when = when.total_seconds()
    if isinstance(when, str):
        return _cron(when)
    if isinstance(when, bool) or not isinstance(when, (int, float)) or not 1 <= when <= _MAX_PERIOD:
        raise ConfigError(
            f"every(...) takes seconds, 1 to {_MAX_PERIOD:,}, or a line of cron such as '0 9 * * 1-5', "
            f"not {when!r:.100}"
        )
    period = int(when * _NS_PER_SECOND)
    # Counted from the epoch, so that each process finds the same times.
    return lambda after: (after // period + 1) * period


class _LocalZone(tzinfo):
    """The time zone of this machine, with its summer time: what `astimezone` gives has the offset of one moment."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, dt: datetime) -> datetime:
        # By way of the timestamp, which alone says which of two equal hours it is.
        return datetime.fromtimestamp(dt.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)


_LOCAL_ZONE = _LocalZone()


def _cron(line: str) -> NextTick:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise ConfigError("every() with a line of cron needs the extra 'cron': pip install \"agentrt[cron]\"") from None

    def next_after(after: int) -> int:
        return to_nanoseconds(next(CronSim(line, datetime.fromtimestamp(after // _NS_PER_SECOND, _LOCAL_ZONE))))

    try:
        next_after(0)
    except (CronSimError, StopIteration) as error:
        raise ConfigError(f"every({line!r:.100}) is not a line of cron ({error}): write, say, '0 9 * * 1-5'") from None
    return next_after


def to_nanoseconds(time: datetime) -> int:
    """Return a time that has a time zone in nanoseconds since the epoch."""
    return int(time.timestamp()) * _NS_PER_SECOND + time.microsecond * 1000
