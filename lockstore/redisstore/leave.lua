-- ARGV: owner
local i = holder(me)
if i and not holders[i].revoked and live(holders[i]) then return 'O' .. holders[i].fence end
local before = place(me)
if not before or before > from and not inDoubt() and wait(select(2, first()), 0) <= 0 then return 'R' end
leaveQueue(me)
handOver()
return 'R'
