-- ARGV: owner, fence, time in microseconds, the result
if (state == 'K' or state == 'C') and me == owner and fence == ARGV[2] then return 'R' end
if state ~= 'H' and state ~= 'B' or me ~= owner or fence ~= ARGV[2] then return 'L' end
local time = redis.call('TIME')
state, since, ttl, queue, data = 'K', time[1] .. string.sub('00000' .. time[2], -6), ARGV[3], '', ARGV[4]
if data == '' then state = 'C' end
return save('SET', KEYS[1], text(), 'PX', retention()) or 'R'
