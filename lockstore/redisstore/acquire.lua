-- ARGV: owner, TTL in microseconds, holder, retention in milliseconds
if me == released or me == abandoned or me == owner and state ~= 'H' then return 'L' end
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
if state ~= 'F' then
	local left = since + ttl - now
	if left > 0 then
		if me == owner then return string.format('G%s %.0f', fence, left) end
		if left > ttl + 1000000 then return 'T' end
		return string.format('H%s %.0f %s', fence, left, holder)
	end
	if me == owner then return 'L' end
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
return 'G' .. fence .. ' ' .. ttl
