-- ARGV: owner, TTL in microseconds and holder, how long the entry stays after the grant in milliseconds,
-- MaxHolders and a + to wait in the queue, with the turn in microseconds of a parked place, or the fence of a lease that was handed over.
saves = false
if mark() then return 'L' end
local most, join, turn, extends = match(ARGV[4], '^(%d+)(%+?)(%d*) ?(%d*)$')
local ttl, text = match(ARGV[2], '^(%d+) (.*)$')
local i = holder(me)
most, ttl = most + 0, ttl + 0
if i then
	local h = holders[i]
	if h.revoked or extends ~= '' and extends ~= h.fence then return 'L' end
	if live(h) then
		if h.handed then
			saves = true -- it is a holder's request
			leaveQueue(me)
			h.handed, h.since, h.ttl, h.text, changed = false, now, math.max(h.ttl, ttl), text, true
		end
		return granted(h, (first()))
	end
	if not h.handed then return 'L' end -- what has lapsed ends the lease, and not the owner
end
if extends ~= '' then return 'L' end
if isClosed() then return told(0) .. closed.result end
if inDoubt() then return told(0) end
handOver(me)
local before = place(me)
local left, held = wait(most, before or #entry)
if left <= 0 then
	local h = grant({owner = me, most = most, ttl = ttl, text = text})
	if not h then return 'B' end
	handOver()
	return granted(h, (first()))
end
local at = before and count(before, places) + 1 or 0
local letter, _, who, started = status()
if held <= 0 then letter, held, who, started = 'W', left, '', false end
local function refuse(place) return answer(letter, held, place, who, started) end
if at > 0 or join == '' or places >= 128 or turn ~= '' and #parked() >= 64 then return refuse(at) end
joined = (places == 0 and ' ' or '') .. me .. (most == 1 and '' or '\1' .. most) .. (turn == '' and '' or '\2' .. turn) .. ' '
at, places, changed = places + 1, places + 1, true
-- A write that the server refuses, for want of memory for a place, means no place.
return refuse(at), refuse(0)
