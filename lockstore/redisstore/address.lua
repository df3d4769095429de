-- The address of a parked owner is a string of its own. ARGV: owner, the address or '' to take it, and for how long it
-- stays in milliseconds. A time that is over deletes a key, so this needs no command that locking does not need.
local mark = 'lambdalock2 A' -- no entry begins so
local proof = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT') -- a replica refuses it, see entry.lua
if type(proof) == 'table' then return proof end
local address = redis.pcall('GET', KEYS[1])
if type(address) == 'table' then return address end
if address and string.sub(address, 1, #mark) ~= mark then return 'B' end
if ARGV[2] == '' then
	redis.call('PEXPIRE', KEYS[1], '-1')
	return 'A' .. string.sub(address or '', #mark + 1)
end
local done = redis.pcall('SET', KEYS[1], mark .. ARGV[2], 'PX', ARGV[3])
return done.err and done or 'R'
