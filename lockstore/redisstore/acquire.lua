-- ARGV: owner, TTL in microseconds, holder, retention in milliseconds, 1 to wait in the queue.
-- The answer to a grant names the owner that is the first in the queue now.
if me == released or me == abandoned or me == owner and state ~= 'H' and state ~= 'B' then return 'L' end
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local left = since + ttl - now
if state ~= 'F' and left > 0 then
	if me == owner then return string.format('G%s %.0f', fence, left) end
	if left > ttl + 1000000 then return 'T' end
	if state == 'K' or state == 'C' then return string.format('%s%s %.0f 0 %s\n', state, fence, left, holder) .. data end
	return string.format('%s%s %.0f %d %s', taken(), fence, left, join(), holder)
end
if state ~= 'F' and me == owner then return 'L' end
if state == 'B' then return string.format('U%s 0 0 %s', fence, holder) end
if queue ~= '' then
	local place = places()
	local turns = math.min(place > 0 and place - 1 or waiting(), 5)
	-- A clock that was set back keeps the key for nobody.
	if left <= 0 and turns * 2000000 + left > 0 then
		return string.format('W%s %.0f %d ', fence, turns * 2000000 + left, join())
	end
	queue = left > 0 and leave() or behind()
end
if state ~= 'H' and owner ~= '' then released = owner end
local new = fence + 1
if new > now + 0 then
	-- Above 2^53 a Lua number cannot grow by one.
	if new >= 9007199254740992 then return 'F' end
	fence = string.format('%.0f', new)
else
	fence = now
end
state, owner, since, ttl, holder = 'H', me, now, ARGV[2], ARGV[3]
local done = redis.pcall('SET', KEYS[1], text(), 'PX', ARGV[4])
if done.err then return done end
wrote = true
return 'G' .. fence .. ' ' .. ttl .. ' ' .. first()
