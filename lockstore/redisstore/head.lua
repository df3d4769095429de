
-- The first two lines of an entry, see entry.lua. state is B if they are damaged.
local state, number, last, owner, at, line, since, ttl, text, stop, behind
if type(entry) == 'string' then
	state, number, last, owner, at = match(entry, '^lambdalock2 ([HOFKCX])(%d%d%d)(%d+) ([^ \n]*) ()')
	line = at and find(entry, '\n', at, true)
	if line then since, ttl, text = match(entry, '^(%d+) (%d+) ()', line + 1) end
	behind = text and find(entry, '\n', text, true)
	stop = behind and math.min(find(entry, '\1', text, true) or behind, behind)
	local one = state == 'H' or state == 'O' or state == 'F'
	if not behind or #last ~= 16 or #since ~= 16 or #ttl > 13 or one == (owner == '') then state = 'B' end
end

