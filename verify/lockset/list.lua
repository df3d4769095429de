-- KEYS: a list, its stamps. ARGV: 'fenced' or '', fence, stamp, [elements]
-- Reads the list, or replaces it when elements are given, and keeps the stamp.
local stale = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[2])
if stale and ARGV[1] == 'fenced' then
  return {'refused', ''}
end
redis.call('HSET', KEYS[1], 'fence', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
if ARGV[4] then
  redis.call('HSET', KEYS[1], 'elements', ARGV[4])
end
return {stale and 'stale' or 'ok', redis.call('HGET', KEYS[1], 'elements') or ''}
