
-- retention is the time until an hour after the end of the entry's lease or cooldown, in
-- milliseconds. So an abandon does not shorten the time of an entry with a lease. When the
-- work has started, it is 30 days, lockstore.StartedFor, and an hour.
local function retention()
	local time = redis.call('TIME')
	local left = since + ttl - (time[1] * 1000000 + time[2])
	return math.ceil(math.max(left, state == 'B' and 2592000000000 or 0) / 1000) + 3600000
end

-- save runs a command that renews or ends a lease. A server that is out of memory refuses
-- the command, unless the script has written before. So then the script sets the time to
-- delete the entry first. save returns the server's error, or false.
local function save(...)
	local done = redis.pcall(...)
	wrote = type(done) ~= 'table' or not done.err
	if wrote then return false end
	if not string.find(done.err, 'OOM', 1, true) or redis.call('PEXPIRE', KEYS[1], retention()) == 0 then
		return done
	end
	wrote, done = true, redis.pcall(...)
	return type(done) == 'table' and done.err and done
end
