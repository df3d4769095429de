-- wake ends the wait of the owner whose list this is: it pops an element. The list stays for
-- 5 s for an owner that is not waiting yet. wake returns false if the server refuses.
local function wake(list)
	local done = redis.pcall('RPUSH', list, '1')
	if type(done) == 'table' then return false end
	redis.pcall('PEXPIRE', list, '5000')
	return true
end
