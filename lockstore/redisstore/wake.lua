-- wake puts an element into a list. It stays for 5 s for an owner that is not waiting yet. wake
-- returns false if the server refuses.
local function wake(list, element)
	local done = redis.pcall('RPUSH', list, element)
	if type(done) == 'table' then return false end
	redis.pcall('PEXPIRE', list, '5000')
	return true
end
