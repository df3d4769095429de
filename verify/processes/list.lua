-- KEYS: a list, its stamps. ARGV: 'true' if the list compares fences, fence, stamp, [elements]
-- Keeps fence and stamp, replaces the elements when some are given, and returns
-- the elements; false is a refusal.
if ARGV[1] == 'true' and tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[2]) then
  return false
end
redis.call('HSET', KEYS[1], 'fence', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
if ARGV[4] then
  redis.call('HSET', KEYS[1], 'elements', ARGV[4])
end
return redis.call('HGET', KEYS[1], 'elements') or ''
