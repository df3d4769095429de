-- ARGV: owner, fence
if me ~= owner or fence ~= ARGV[2] or state ~= 'H' and state ~= 'B' then return 'L' end
local time = redis.call('TIME')
if since + ttl - (time[1] * 1000000 + time[2]) <= 0 then return 'L' end
if state == 'B' then return 'R' end
state = 'B'
return save('SET', KEYS[1], text(), 'PX', retention()) or 'R'
