"""Rate limits that several processes share through Redis."""

from dataclasses import dataclass, field
from typing import Any

from agentrt.errors import ConfigError
from agentrt_middleware.limits import Limits, Refusal

__all__ = ["RedisStore"]

_SCHEMES = ("redis://", "rediss://", "unix://")
_POLL = "0.1"  # seconds until the next look where only the end of another process's call can help

# The same reckoning as `Usage`, on the server's clock. Should that be set back, everything is moved back with it.
_SCRIPT = """
local usage, leases = KEYS[1], KEYS[2]
local what, name, amount, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local interval, rpm = tonumber(ARGV[5]), tonumber(ARGV[6])
local tpm, most = tonumber(ARGV[7]), tonumber(ARGV[8])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = redis.call('HMGET', usage, 'at', 'requests', 'tokens', 'next_start', 'blocked_until')
local at = tonumber(found[1] or now)
local requests, tokens = tonumber(found[2] or 0), tonumber(found[3] or 0)
local next_start, blocked_until = tonumber(found[4] or 0), tonumber(found[5] or 0)
local passed = now - at
if passed < 0 then
  next_start, blocked_until, passed = next_start + passed, blocked_until + passed, 0
end
local function left(used, per_minute)
  if per_minute == 0 then return 0 end
  return math.max(0, used - per_minute * passed / 60)
end
requests, tokens = left(requests, rpm), left(tokens, tpm)

local function refusal()
  local seconds, reason = blocked_until - now, 'retry_after'
  local function wait(other, why)
    if other > seconds then seconds, reason = other, why end
  end
  if interval > 0 then wait(next_start - now, 'min_interval') end
  if rpm > 0 then wait((requests + 1 - math.max(1, rpm)) * 60 / rpm, 'requests_per_minute') end
  if tpm > 0 then wait((tokens + math.min(amount, tpm) - tpm) * 60 / tpm, 'tokens_per_minute') end
  if seconds > 0.000001 then
    local text = string.format('%.6f', seconds + 0.000001)
    return {text, reason, text}
  end
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
  if most > 0 and redis.call('ZCARD', leases) >= most then return {'0', 'max_concurrency', 'POLL'} end
end

local answer = {}
if what == 'take' then
  answer = refusal()
  if answer then return answer end
  answer = {}
  requests, tokens, next_start = requests + 1, tokens + amount, now + interval
  redis.call('ZADD', leases, now + ttl, name)
  redis.call('PEXPIRE', leases, math.ceil(ttl * 1000))
elseif what == 'end' then
  if redis.call('ZREM', leases, name) == 1 then tokens = math.max(0, tokens + amount) end
else
  blocked_until = math.max(blocked_until, now + amount)
end
local keep = math.max(next_start - now, blocked_until - now, 0)
if rpm > 0 then keep = math.max(keep, requests * 60 / rpm) end
if tpm > 0 then keep = math.max(keep, tokens * 60 / tpm) end
redis.call('HSET', usage, 'at', string.format('%.6f', now), 'requests', string.format('%.9f', requests),
  'tokens', string.format('%.9f', tokens), 'next_start', string.format('%.6f', next_start),
  'blocked_until', string.format('%.6f', blocked_until))
redis.call('PEXPIRE', usage, math.ceil((keep + 60) * 1000))
return answer
""".replace("POLL", _POLL)


@dataclass(frozen=True, slots=True)
class RedisStore:
    """Counts in Redis, on its clock: `redis://`, `rediss://` or `unix://`. Needs the extra `redis`.

    A call whose process dies gives its place back after `lease_seconds`, and so does one that takes longer than that.
    """

    url: str = field(repr=False)  # may hold a password
    lease_seconds: float = 600.0

    def __post_init__(self) -> None:
        _coredis()
        if not str(self.url).startswith(_SCHEMES):
            raise ConfigError(f"RedisStore(url) begins with {', '.join(_SCHEMES)}: it was given another one")
        if not self.lease_seconds > 0:
            raise ConfigError(f"RedisStore(lease_seconds=...) is a number above 0, not {self.lease_seconds!r}")

    async def take(self, key: str, limits: Limits, tokens: float, lease: str) -> Refusal | None:
        """Count a call that begins now under the name `lease`, or say why it must not."""
        answer = await self._run(key, limits, "take", lease, tokens)
        return Refusal(float(answer[0]), answer[1], float(answer[2])) if answer else None

    async def end(self, key: str, limits: Limits, lease: str, difference: float) -> None:
        """Count the end of that call, which took that many tokens more than it was counted with."""
        await self._run(key, limits, "end", lease, difference)

    async def block(self, key: str, limits: Limits, seconds: float) -> None:
        """Let nothing begin for so long."""
        await self._run(key, limits, "block", "", seconds)

    async def _run(self, key: str, limits: Limits, what: str, lease: str, amount: float) -> list[str]:
        coredis = _coredis()
        # One connection per question: coredis keeps those of a pool in a task group, which belongs to the task that
        # opened it, and a limiter is asked by many tasks and outlives them all. It costs a millisecond.
        client = coredis.Redis.from_url(
            self.url, decode_responses=True, verify_version=False, retry_policy=coredis.retry.NoRetryPolicy()
        )
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency)
        numbers = [amount, self.lease_seconds, limits.min_interval, *(each or 0.0 for each in most)]
        # In one slot of a cluster, by the braces.
        keys = [f"agentrt:limit:{{{key}}}:usage", f"agentrt:limit:{{{key}}}:leases"]
        async with client:
            return await client.eval(_SCRIPT, keys, [what, lease, *(repr(float(each)) for each in numbers)])  # type: ignore[no-any-return]  # what the script returns


def _coredis() -> Any:
    try:
        import coredis
        import coredis.retry
    except ImportError as error:
        raise ConfigError('RedisStore needs the package coredis: pip install "agentrt[redis]"') from error
    return coredis
