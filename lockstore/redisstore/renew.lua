-- ARGV: owner, fence, TTL in microseconds
local i = lease()
if not i or not live(holders[i]) then return 'L' end
local h = holders[i]
h.since, h.ttl, h.handed, changed = now, math.max(h.ttl, ARGV[3] + 0), false, true
leaveQueue(me)
return granted(h, '') -- the first in the queue is in the answer to an Acquire
