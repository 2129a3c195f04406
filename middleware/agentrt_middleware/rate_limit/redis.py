"""Rate limits that several processes share through Redis."""

from dataclasses import dataclass, field
from typing import Any

from agentrt._runtime.hidden import HiddenStr
from agentrt.errors import ConfigError
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal
from agentrt_middleware.stores.redis import check_redis_url, redis_client

_MAX_LEASE = 86_400  # seconds
_KEPT = "600"  # seconds in which a call that has lost its place may still report its tokens
_POLL = "0.1"  # seconds until the next try if only another process's call can free a place

# The same arithmetic as in `Usage`, on the server's clock. If that is set back, all times are moved back with it.
# A script, so that checking and taking is atomic for all processes.
#
# An expired lease has no place any more, but is kept for KEPT seconds: its call may still end, with other tokens than
# it was counted with. A lease that is not there has ended, or was lost with the server.
#
# Instead of the tree of `Usage`, sorted sets hold the tokens: `surpluses` has for each open call the largest surplus of
# the stretches that begin with it, or between the open call before it and it; `starts` has the order in which these
# calls began, `latest` the largest surplus of the stretches that begin after the last of them, and `tokens` what is to
# be added to all of these numbers.
_SCRIPT = """
local usage, leases, starts, surpluses = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local what, name, amount, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local interval, rpm = tonumber(ARGV[5]), tonumber(ARGV[6])
local tpm, max_concurrency = tonumber(ARGV[7]), tonumber(ARGV[8])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local saved = redis.call('HMGET', usage, 'at', 'requests', 'tokens', 'latest', 'next_start', 'blocked_until')
local at = tonumber(saved[1] or now)
local requests, tokens, latest = tonumber(saved[2] or 0), tonumber(saved[3] or 0), tonumber(saved[4] or 0)
local next_start, blocked_until = tonumber(saved[5] or 0), tonumber(saved[6] or 0)
local passed = now - at
if passed < 0 then
  for _, call in ipairs(redis.call('ZRANGE', leases, 0, -1)) do redis.call('ZINCRBY', leases, passed, call) end
  next_start, blocked_until, passed = next_start + passed, blocked_until + passed, 0
end
local function exact(number) return string.format('%.17g', number) end

local function level()
  local highest = redis.call('ZREVRANGE', surpluses, 0, 0, 'WITHSCORES')[2]
  return math.max(0, tokens + math.max(latest, tonumber(highest or latest)))
end
local function pour()
  local surplus = math.max(latest, -tokens)
  local last = redis.call('ZREVRANGE', starts, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', starts, tonumber(last or 0) + 1, name)
  redis.call('ZADD', surpluses, exact(surplus), name)
  tokens = tokens + amount
  latest = -tokens
end
local function raise(first, last, difference)
  if difference == 0 then return end
  for _, call in ipairs(redis.call('ZRANGE', starts, first, last)) do
    redis.call('ZINCRBY', surpluses, exact(difference), call)
  end
end
local function correct(call, difference)
  local place = redis.call('ZRANK', starts, call)
  if not place then return end
  if place * 2 < redis.call('ZCARD', starts) then
    raise(0, place, difference)
  else
    tokens, latest = tokens + difference, latest - difference
    raise(place + 1, -1, -difference)
  end
  local surplus = tonumber(redis.call('ZSCORE', surpluses, call))
  local following = redis.call('ZRANGE', starts, place + 1, place + 1)[1]
  if not following then
    latest = math.max(latest, surplus)
  elseif tonumber(redis.call('ZSCORE', surpluses, following)) < surplus then
    redis.call('ZADD', surpluses, exact(surplus), following)
  end
  redis.call('ZREM', starts, call)
  redis.call('ZREM', surpluses, call)
end

requests = rpm > 0 and math.max(0, requests - rpm * passed / 60) or 0
if tpm == 0 then
  redis.call('DEL', starts, surpluses)
  tokens, latest = 0, 0
elseif redis.call('EXISTS', starts) == 1 then
  tokens = tokens - tpm * passed / 60
else
  tokens, latest = math.max(0, level() - tpm * passed / 60), 0
end

local function refusal()
  local seconds, reason = blocked_until - now, 'retry_after'
  local function wait(candidate, limit)
    if candidate > seconds then seconds, reason = candidate, limit end
  end
  if interval > 0 then wait(next_start - now, 'min_interval') end
  if rpm > 0 then wait((requests + 1 - math.max(1, rpm)) * 60 / rpm, 'requests_per_minute') end
  if tpm > 0 then wait((level() + math.min(amount, tpm) - tpm) * 60 / tpm, 'tokens_per_minute') end
  if seconds > 0.000001 then
    local text = string.format('%.6f', seconds + 0.000001)
    return {text, reason, text}
  end
  if max_concurrency > 0 and redis.call('ZCOUNT', leases, string.format('(%.6f', now), '+inf') >= max_concurrency then
    return {'0', 'max_concurrency', 'POLL'}
  end
end
local function hold() redis.call('ZADD', leases, now + ttl, name) end
local function is_held()
  local expires = redis.call('ZSCORE', leases, name)
  return expires and tonumber(expires) > now and 1 or 0
end

local answer = {}
if what == 'take' then
  for _, call in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now - KEPT)) do
    correct(call, 0)
    redis.call('ZREM', leases, call)
  end
  local refused = refusal()
  if refused then
    answer = refused
  else
    requests, next_start = requests + 1, now + interval
    if tpm > 0 then pour() end
    hold()
  end
elseif what == 'renew' then
  answer = is_held()
  hold()
elseif what == 'end' then
  answer = is_held()
  if redis.call('ZREM', leases, name) == 1 then correct(name, amount) end
else
  blocked_until = math.max(blocked_until, now + amount)
end
local last = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]
local keep = math.max(next_start - now, blocked_until - now, last and last - now + KEPT or 0)
if rpm > 0 then keep = math.max(keep, requests * 60 / rpm) end
if tpm > 0 then keep = math.max(keep, level() * 60 / tpm) end
redis.call('HSET', usage, 'at', string.format('%.6f', now), 'requests', exact(requests), 'tokens', exact(tokens),
  'latest', exact(latest), 'next_start', string.format('%.6f', next_start),
  'blocked_until', string.format('%.6f', blocked_until))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, math.ceil((math.min(keep, 1e9) + 60) * 1000)) end
return answer
""".replace("POLL", _POLL).replace("KEPT", _KEPT)


@dataclass(frozen=True, slots=True)
class RedisLimitStore:
    """Counts in Redis, on its clock: `redis://`, `rediss://` or `unix://`. Needs the extra `redis`.

    A call that is silent for `lease_seconds` loses its place of `max_concurrency`, since its process may have died, may
    have been stopped, or may have failed to return the place. A call is renewed when the next piece of its stream is
    requested. One that is silent for longer because it does not stream, or because the model thinks, loses its place
    too, and another call may start. From its next piece to its end it counts again, even beyond the limit, and the log
    says so.
    """

    url: str = field(repr=False)  # may hold a password
    lease_seconds: float = 90.0  # more than a minute of waiting for a piece, even if a renewal was not yet due

    def __post_init__(self) -> None:
        check_redis_url("RedisLimitStore", self.url)  # and the package: an error here, not at the first call
        object.__setattr__(self, "url", HiddenStr(self.url))
        seconds: object = self.lease_seconds
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= _MAX_LEASE:
            raise ConfigError(
                f"RedisLimitStore(lease_seconds=...) must be a number above 0 and up to {_MAX_LEASE:,}, "
                f"not {seconds!r:.200}"
            )

    async def take(self, key: str, limits: RateLimits, tokens: float, lease: str) -> Refusal | None:
        """Count a call that starts now under the name `lease`, or return the reason for refusing it."""
        answer = await self._run(key, limits, "take", lease, tokens)
        return Refusal(float(answer[0]), answer[1], float(answer[2])) if answer else None

    async def renew(self, key: str, limits: RateLimits, lease: str) -> bool:
        """Count that call for `lease_seconds` more.

        Returns `False` if it had lost its place; it gets a new one, even beyond the limit.
        """
        return bool(await self._run(key, limits, "renew", lease, 0.0))

    async def end(self, key: str, limits: RateLimits, lease: str, difference: float) -> bool:
        """Count the end of that call, which used `difference` tokens more than counted.

        Only the first call has an effect. Returns `False` if it had lost its place.
        """
        return bool(await self._run(key, limits, "end", lease, difference))

    async def block(self, key: str, limits: RateLimits, seconds: float) -> None:
        """Block all calls for that many seconds."""
        await self._run(key, limits, "block", "", seconds)

    async def _run(self, key: str, limits: RateLimits, what: str, lease: str, amount: float) -> Any:
        maximums = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency)
        numbers = [amount, self.lease_seconds, limits.min_interval, *(maximum or 0.0 for maximum in maximums)]
        # The braces put all keys into one slot of a cluster, as a script needs them.
        keys = [f"agentrt:limit:{{{key}}}:{name}" for name in ("usage", "leases", "begun", "surpluses")]
        async with redis_client("RedisLimitStore", self.url) as client:
            return await client.eval(_SCRIPT, keys, [what, lease, *(repr(float(number)) for number in numbers)])
