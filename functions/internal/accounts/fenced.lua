-- KEYS[1] an account; ARGV fence [balance recent]
-- Reads the account under a fence, and writes it when a content is given.
-- A smaller fence than the stored one is refused. Fences are microseconds
-- since 1970 or a little more, so a Lua number holds them exactly (2^53).
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  return {redis.call('EXISTS', KEYS[1]) == 0 and 'absent' or 'foreign'}
end
local balance, fence, recent = unpack(redis.call('HMGET', KEYS[1], 'balance', 'fence', 'recent'))
if not balance or (fence and not tonumber(fence)) then
  return {'foreign'}
end
if fence and tonumber(fence) > tonumber(ARGV[1]) then
  return {'stale'}
end
if ARGV[2] then
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'balance', ARGV[2], 'recent', ARGV[3])
  return {'ok'}
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return {'ok', balance, recent or ''}
