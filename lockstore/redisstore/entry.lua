-- Runs before each script and reads the lock's entry. An entry is one string. A space
-- separates its fields. Times are in microseconds of the server's clock.
--   lambdalock1 state owner fence since ttl released abandoned holder
-- state      H  owner holds the key, from since for ttl
--            F  the key is free; owner was the last holder
--            C  as F, and the key is in its cooldown, from since for ttl
-- released   the last owner before owner that released
-- abandoned  the last owner that abandoned an acquire without having the lease
--
-- The server deletes the entry an hour after the end of its lease or cooldown.
--
-- Each script writes the entry once, as its last step. So an error from the server
-- means that nothing was applied. Numbers that a script does not change stay text: to
-- format a number takes as long as a GET.
local entry = redis.pcall('GET', KEYS[1])
if type(entry) == 'table' then return entry end
local me = ARGV[1]
local state, owner, fence, since, ttl, released, abandoned, holder = 'F', '', '0', '0', '0', '', '', ''
if entry then
	state, owner, fence, since, ttl, released, abandoned, holder =
		string.match(entry, '^lambdalock1 ([HFC]) (%S*) (%d+) (%d+) (%d+) (%S*) (%S*) (.*)$')
	if not state or #fence > 16 or #since > 16 or #ttl > 11 then return 'F' end
end

local function text()
	return 'lambdalock1 ' .. state .. ' ' .. owner .. ' ' .. fence .. ' ' .. since .. ' ' .. ttl .. ' ' ..
		released .. ' ' .. abandoned .. ' ' .. holder
end
