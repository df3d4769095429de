-- ARGV has the owner, the kind of the request, and what the kind needs. KEYS[1] is the entry, unless something else is said.
local me, kind = ARGV[1], ARGV[2]

-- wake puts an element into a list. It stays for 5 s for an owner that is not waiting yet. wake
-- returns false if the server refuses.
local function wake(list, element)
	local done = redis.pcall('RPUSH', list, element)
	if type(done) == 'table' then return false end
	redis.pcall('PEXPIRE', list, '5000')
	return true
end
if kind == 'wake' then -- the key is a list
	wake(KEYS[1], ARGV[3])
	return 'R'
end

local match, find, sub = string.match, string.find, string.sub
local entry = redis.pcall('GET', KEYS[1])

-- proven is an answer without a write. A replica lags behind its primary, and so may a server that was the primary until now. What
-- it has read must not decide anything. So such an answer needs a proof: a write
-- that a replica refuses. This one changes nothing, because no time to live was over a minute
-- ago, and a server that is out of memory does not refuse it.
local function proven(answer)
	local proof = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT')
	return type(proof) == 'table' and proof or answer
end

-- The time in microseconds: clock has 16 digits, as an entry has them.
local time = redis.call('TIME')
local clock = time[1] .. time[2]
if #clock ~= 16 then clock = sub('0' .. time[1] .. sub('00000' .. time[2], -6), -16) end
