
-- retention is the time until an hour after the end of the lease or closing that
-- the entry now says, in milliseconds. So the mark of an abandoned owner does not
-- shorten what is kept for another's lease.
local function retention()
	local time = redis.call('TIME')
	local left = since + ttl - (time[1] * 1000000 + time[2])
	return math.ceil(math.max(left, 0) / 1000) + 3600000
end

-- keep writes what keeps or ends a lease. A server that is out of memory would
-- refuse that, unless the script has written before; so the expiry goes first.
-- It returns the server's error, or false.
local function keep(...)
	local done = redis.pcall(...)
	if type(done) ~= 'table' or not done.err then return false end
	if not string.find(done.err, 'OOM', 1, true) or redis.call('PEXPIRE', KEYS[1], retention()) == 0 then
		return done
	end
	done = redis.pcall(...)
	return type(done) == 'table' and done.err and done
end
