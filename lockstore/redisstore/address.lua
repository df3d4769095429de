-- The address of a parked owner is a string of its own. ARGV: the address or '' to take it, for how long it
-- stays in milliseconds, and the address that it replaces or ''. If that is not the present one, the answer is the present one: so
-- a copy that arrives while another address is there changes nothing. A time that is over deletes a key, so this needs no
-- command that locking does not need. A server that is out of memory refuses the SET, because nothing was written before.
if kind == 'address' then
	local mark, done = 'lambdalock3 A', nil -- no entry begins so
	if type(entry) == 'table' then return proven(entry) end
	if entry and sub(entry, 1, #mark) ~= mark then return proven('B') end
	local address = sub(entry or '', #mark + 1)
	if ARGV[3] == '' then
		done = redis.pcall('PEXPIRE', KEYS[1], '-1')
		return type(done) == 'table' and done or 'A' .. address
	end
	if ARGV[5] ~= address then return proven('A' .. address) end
	done = redis.pcall('SET', KEYS[1], mark .. ARGV[3], 'PX', ARGV[4])
	return done.err and done or 'R'
end
