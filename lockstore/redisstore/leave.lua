-- ARGV: owner
local i = holder(me)
if i and not holders[i].revoked and live(holders[i]) then return 'O' .. holders[i].fence end
if leaveQueue(me) then handOver() end
return 'R'
