-- ARGV: owner, fence
local how, i = mark(), holder(me)
if how then return (how == 'E' or how == 'V') and 'L' or 'R' end
if not i or holders[i].fence ~= ARGV[2] then return 'L' end
local h = holders[i]
if h.revoked and h.started then return 'L' end
over(i, h.revoked and 'V' or 'F') -- the owner of a revoked lease is done, so nobody waits for its end
handOver()
return h.revoked and 'L' or 'R'
