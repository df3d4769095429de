local now = clock + 0

-- waits is how many places the queue has that begins at this byte, or nil if it is damaged.
local function waits(from)
	if from > #entry then return 0 end
	if number ~= '000' and sub(entry, -1) == ' ' and find(entry, '^ [^ ]', from) and
		not find(entry, '  ', from, true) and not find(entry, '\n', from, true) then
		return tonumber(number, 10)
	end
end

-- The texts in front of entry.lua have the rules for an entry H or O, because most requests meet one and a long queue
-- makes the rest slow. Whatever is unusual is for the rest. left is above 0 while the lease counts.
local places = (state == 'H' or state == 'O') and waits(behind + 1)
local left = places and since <= clock and since + tonumber(ttl, 10) - now or 0
