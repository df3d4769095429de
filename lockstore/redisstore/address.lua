-- The address of a parked owner is a string of its own. ARGV: owner, the address or '' to take it, for how long it
-- stays in milliseconds, and the address that it replaces or ''. If that is not the present one, the answer is the present one: so
-- a copy that arrives late changes nothing. A time that is over deletes a key, so this needs no command that locking does not need. A
-- server that is out of memory refuses the SET, because nothing was written before.
local mark = 'lambdalock3 A' -- no entry begins so
local address, done = redis.pcall('GET', KEYS[1])
if type(address) == 'table' or address and string.sub(address, 1, #mark) ~= mark then
	done = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT') -- a replica refuses it, see rules.lua
	return type(done) == 'table' and done or type(address) == 'table' and address or 'B'
end
if ARGV[2] ~= '' and ARGV[4] == string.sub(address or '', #mark + 1) then
	done = redis.pcall('SET', KEYS[1], mark .. ARGV[2], 'PX', ARGV[3])
	return done.err and done or 'R'
end
done = ARGV[2] == '' and redis.pcall('PEXPIRE', KEYS[1], '-1') or redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT')
return type(done) == 'table' and done or 'A' .. string.sub(address or '', #mark + 1)
