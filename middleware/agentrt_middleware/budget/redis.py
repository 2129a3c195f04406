"""Spending of owners, counted in Redis by several processes and machines."""

from dataclasses import dataclass, field
from typing import Any

from agentrt._runtime.hidden import HiddenStr
from agentrt_middleware.budget.limits import Amounts, raised
from agentrt_middleware.stores.redis import check_redis_url, redis_client

# Scripts, so that checking and adding is atomic for all processes. An invalid number was not
# written here, and is an error. Numbers are written without loss of precision.
_READ = """
local account, ttl = KEYS[1], tonumber(ARGV[1])
local function spent_of(counter)
  local text = redis.call('HGET', account, counter)
  if not text then return 0 end
  local spent = tonumber(text)
  if not spent or spent ~= spent then error('not a number') end
  return spent
end
local function add(counter, amount)
  redis.call('HSET', account, counter, string.format('%.17g', math.max(0, spent_of(counter) + amount)))
end
"""
_RESERVE = (
    _READ
    + """
local limits, may_add = tonumber(ARGV[2]), 1
for i = 3, 2 + limits * 4, 4 do
  local counter, raised, limit, amount = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  limit = limit + spent_of(raised)
  local spent = spent_of(counter)
  if spent >= limit or spent + amount > limit then may_add = 0 end
end
if may_add == 1 then
  for i = 3 + limits * 4, #ARGV, 2 do add(ARGV[i], tonumber(ARGV[i + 1])) end
  redis.call('PEXPIRE', account, ttl)
end
return {may_add, redis.call('HGETALL', account)}
"""
)
_SETTLE = (
    _READ
    + """
for i = 2, #ARGV, 2 do add(ARGV[i], tonumber(ARGV[i + 1])) end
redis.call('PEXPIRE', account, ttl)
"""
)


@dataclass(frozen=True, slots=True)
class RedisBudgetStore:
    """Counts in Redis, for any number of machines: `redis://`, `rediss://` or `unix://`.

    Needs the extra `redis`. `prefix` is what the keys begin with.
    """

    url: str = field(repr=False)  # may hold a password
    prefix: str = "agentrt:budget:"

    def __post_init__(self) -> None:
        check_redis_url("RedisBudgetStore", self.url, self.prefix)
        object.__setattr__(self, "url", HiddenStr(self.url))

    async def reserve(self, account: str, limits: Amounts, amounts: Amounts, ttl: float) -> tuple[bool, Amounts]:
        arguments = [str(len(limits))]
        for counter, limit in limits.items():
            arguments += [counter, raised(counter), repr(float(limit)), repr(float(amounts.get(counter, 0.0)))]
        may_add, fields = await self._run(_RESERVE, account, ttl, arguments, amounts)
        if isinstance(fields, list):  # as a dict where the connection speaks RESP3
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        return may_add == 1, {counter: float(amount) for counter, amount in fields.items()}

    async def settle(self, account: str, amounts: Amounts, ttl: float) -> None:
        await self._run(_SETTLE, account, ttl, [], amounts)

    async def _run(self, script: str, account: str, ttl: float, arguments: list[str], amounts: Amounts) -> Any:
        added = [text for counter, amount in amounts.items() for text in (counter, repr(float(amount)))]
        milliseconds = str(max(1, int(ttl * 1_000)))
        async with redis_client("RedisBudgetStore", self.url) as client:
            return await client.eval(script, [self.prefix + account], [milliseconds, *arguments, *added])
