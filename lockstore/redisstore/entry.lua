-- Runs before each script and reads the lock's entry. An entry is one string. A space
-- separates its fields. Times are in microseconds of the server's clock.
--   lambdalock1 state owner fence since ttl released abandoned holder
-- state      H  owner holds the key, from since for ttl; without an owner the lease is revoked
--            F  the key is free; owner was the last holder
--            B  as H, and the owner's work has started: the entry outlasts the lease
--            C  as F, and nobody gets the key, from since for ttl; without an owner an operator
--               has resolved the key
--            K  as C, and the result of the work follows
-- released   the last owner before owner that released
-- abandoned  the last owner that abandoned an acquire without having the lease
--
-- If owners wait, a newline and their queue follow: each owner and a space. Another text
-- after the newline is no queue. A key with a queue is free since `since` + `ttl`. In the
-- state K a newline and the result follow, which is any bytes. Nobody waits then.
--
-- The server deletes the entry an hour after the end of its lease, or of the time for which
-- nobody gets the key. An entry in the state B stays for 30 days.
--
-- Each script writes the entry once, and after that only wakes others. So an error from the
-- server means that nothing was applied. What a script reads without writing, it answers with
-- the proof of proof.lua. Numbers that a script does not change stay text: to
-- format a number takes as long as a GET.
local entry = redis.pcall('GET', KEYS[1])
if type(entry) == 'table' then return entry end
local me = ARGV[1]
local state, owner, fence, since, ttl, released, abandoned, holder = 'F', '', '0', '0', '0', '', '', ''
local queue, data = '', ''
if entry then
	local line = string.find(entry, '\n', 1, true)
	if line then
		if string.sub(entry, 13, 13) == 'K' then
			data = string.sub(entry, line + 1)
		else
			queue = string.match(entry, '^%S[%S ]* $', line + 1) or ''
		end
		entry = string.sub(entry, 1, line - 1)
	end
	state, owner, fence, since, ttl, released, abandoned, holder =
		string.match(entry, '^lambdalock1 ([HFCBK]) (%S*) (%d+) (%d+) (%d+) (%S*) (%S*) (.*)$')
	if not state or #fence > 16 or #since > 16 or #ttl > 13 or state == 'K' and not line then return 'F' end
end

local function text()
	return 'lambdalock1 ' .. state .. ' ' .. owner .. ' ' .. fence .. ' ' .. since .. ' ' .. ttl .. ' ' ..
		released .. ' ' .. abandoned .. ' ' .. holder .. (state == 'K' and '\n' .. data or queue == '' and '' or '\n' .. queue)
end

-- taken is the state of a key that nobody gets, as the first letter of an answer.
local function taken()
	return (state == 'K' or state == 'C') and state or owner == '' and 'X' or 'H'
end
