
-- entryText is the entry of the present state.
local function entryText()
	local head, h, number = 'lambdalock2 ', holders[1], string.format('%03d', places)
	if #holders == 1 and h.most == 1 and h.seat == 0 and h.fence == last and not h.revoked and not h.started then
		return head .. (h.handed and 'O' or 'H') .. number .. last .. ' ' .. h.owner .. ' ' .. marked .. marks .. '\n' ..
			digits(h.since, '016') .. ' ' .. digits(h.ttl) .. ' ' .. h.text .. '\n' .. front .. sub(entry, from) .. joined
	elseif not h and closed then
		return head .. (closed.result == '' and 'C000' or 'K000') .. last .. '  ' .. marked .. marks .. '\n' ..
			digits(closed.since, '016') .. ' ' .. digits(closed.ttl) .. ' ' .. closed.text .. '\n' .. closed.result
	end
	head = head .. 'X' .. number .. last .. '  ' .. marked .. marks .. '\n0000000000000000 0 \n'
	for _, o in ipairs(holders) do
		head = head .. o.owner .. ' ' .. o.fence .. ' ' .. o.seat .. ' ' .. o.most .. ' ' .. digits(o.since, '016') .. ' ' ..
			digits(o.ttl) .. ' ' .. (o.handed and 'h' or '') .. (o.revoked and 'r' or '') .. (o.started and 's' or '') ..
			' ' .. o.text .. '\n'
	end
	return head .. '\n' .. front .. sub(entry, from) .. joined
end

-- retention is the time until an hour after the end of the last lease or of the time for which the key is
-- closed, in milliseconds. When the work has started, it is 30 days, lockstore.StartedFor, and an hour.
local function retention()
	local left = closed and math.max(closed.since + closed.ttl - now, 0) or 0
	for _, h in ipairs(holders) do left = math.max(left, h.since + h.ttl - now, h.started and 2592000000000 or 0) end
	return digits(math.ceil(left / 1000) + 3600000)
end

local result, instead = decide()
local done
if changed then
	local text, time = entryText(), retention()
	done = redis.pcall('SET', KEYS[1], text, 'PX', time)
	-- A server that is out of memory refuses this, unless the script has written before. So whoever renews or
	-- ends a lease sets the time to delete the entry first.
	if done.err and saves and find(done.err, 'OOM', 1, true) and
		redis.call('PEXPIRE', KEYS[1], time) == 1 then
		done = redis.pcall('SET', KEYS[1], text, 'PX', time)
	end
	if done.err and not instead then return done end
end
if not done or done.err then return proven(done and instead or result) end
-- Who was handed the key learns it from an element of its list: fence, TTL in microseconds, seat and the
-- first in the queue behind it. KEYS[2], if given, is the list of the owner in the last of ARGV. The
-- answer names the others, and the client tells them; and behind the byte 2 the parked owners that the caller wakes.
for _, h in ipairs(handed) do
	local news = h.fence .. ' 2000000 ' .. h.seat .. ' ' .. first()
	if not (KEYS[2] and h.owner == ARGV[#ARGV] and wake(KEYS[2], news)) then result = result .. '\n' .. h.owner .. ' ' .. news end
end
for _, owner in ipairs(woken) do result = result .. '\n\2' .. owner end
return result
