-- ARGV: owner, fence, time in microseconds, the result
if mark() == 'K' then return 'R' end
local i = lease()
if not i then return 'L' end
if holders[i].most ~= 1 then return 'S' end
close(i, 'K')
return 'R'
