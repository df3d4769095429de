-- ARGV: owner, fence
local i = lease()
if not i or not live(holders[i]) then return 'L' end
if holders[i].most ~= 1 then return 'S' end
changed = changed or not holders[i].started
holders[i].started = true
leaveQueue(me)
return 'R'
