-- ARGV: nobody, fence, holder, '1' to free the key at once
-- The end of a revoked lease stays, so the key is free when the old owner trusts its lease no longer.
local atOnce = ARGV[4] == '1'
if atOnce and markOf('V', ARGV[2]) then return 'D' .. told(waiting()) .. listed() end
local i = holder(nil, ARGV[2])
if not i or not live(holders[i]) then return 'L' end
local h = holders[i]
if atOnce and h.started then return told(0) end
local left = h.since + h.ttl - now
if not h.revoked then
	h.revoked, h.handed, h.text, changed = true, false, ARGV[3], true
end
if atOnce then
	over(i, 'V')
	handOver()
else
	leaveQueue(h.owner)
end
local letter, _, _, started = status()
return 'D' .. answer(letter, left, waiting(), h.text, started) .. listed()
