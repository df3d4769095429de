-- keep writes what keeps or ends a lease. A server that is out of memory would
-- refuse that, unless the script has written before; so the expiry goes first.
-- It returns the server's error, or false.
local function keep(...)
	local done = redis.pcall(...)
	if type(done) ~= 'table' or not done.err then return false end
	if not string.find(done.err, 'OOM', 1, true) or redis.call('PEXPIRE', KEYS[1], '2592000000') == 0 then
		return done
	end
	done = redis.pcall(...)
	return type(done) == 'table' and done.err and done
end
