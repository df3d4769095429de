-- Stands before each script and reads the lock's entry: one string, its fields
-- separated by one space, times in microseconds of the server's clock.
--   lambdalock1 state owner fence since ttl released abandoned holder
-- state      H: owner holds it, from since for ttl. F: free, owner had it last.
--            C: as F, but closed from since for ttl.
-- released   the owner that had it before owner, if it ended it
-- abandoned  the last abandoned owner that did not have it
--
-- The server drops the entry an hour after the end of its lease or closing. Until
-- then it remembers its fence and the owners that have ended.
--
-- Each script changes the entry once, as the last thing that it does. So an
-- error from the server means that nothing was applied. Numbers stay text where
-- they are only passed on: to format one costs as much as a GET.
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
