"""Periods of a budget: the current one, and its end."""

from calendar import monthrange
from datetime import UTC, datetime, timedelta


def period_at(per: str | float, now: float) -> tuple[str, float]:
    """Return the name of the period of a moment, and the seconds until its end.

    `per` is "hour", "day" or "month" of UTC, or a number of seconds, counted from the beginning of 1970.
    """
    if not isinstance(per, str):
        number, into = divmod(now, per)
        return f"{per:g}s-{number:.0f}", per - into
    moment = datetime.fromtimestamp(now, UTC)
    hour = moment.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    month = day.replace(day=1)
    start, name, length = {
        "hour": (hour, hour.strftime("%Y-%m-%dT%H"), timedelta(hours=1)),
        "day": (day, day.strftime("%Y-%m-%d"), timedelta(days=1)),
        "month": (month, month.strftime("%Y-%m"), timedelta(days=monthrange(month.year, month.month)[1])),
    }[per]
    return f"{per}-{name}", (start + length - moment).total_seconds()
