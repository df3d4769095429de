-- ARGV: owner
local i = holder(me)
if mark() or i and holders[i].revoked and holders[i].started then return 'R' end
if i then
	over(i, 'F')
else
	remember('F', '0000000000000000', me)
end
if leaveQueue(me) or i then handOver() end
return 'R'
