local now = clock + 0

-- waits is how many places the queue has that begins at this byte, or nil if it is damaged.
local function waits(from)
	if from > #entry then return 0 end
	if number ~= '000' and sub(entry, -1) == ' ' and find(entry, '^ [^ ]', from) and
		not find(entry, '  ', from, true) and not find(entry, '\n', from, true) then
		return tonumber(number, 10)
	end
end

-- write keeps some bytes of the entry, and puts the rest of its first two lines between them and a space of the queue,
-- or the end. If there is room, the rest of the queue stays where it is: to make a long entry takes longer. A server
-- that is out of memory does not refuse the second write of a script. keep is the number as a text, for the command.
local function write(keep, lines, from, time)
	local room = from - 2 - keep - #lines
	if room >= 0 and room <= (from > #entry and 0 or 250) and redis.pcall('PEXPIRE', KEYS[1], time) == 1 then
		local fill = room > 0 and '\1' .. string.rep(' ', room - 1) or ''
		if type(redis.pcall('SETRANGE', KEYS[1], keep, lines .. fill .. '\n')) == 'number' then return {} end
	end
	return redis.pcall('SET', KEYS[1], sub(entry, 1, keep + 0) .. lines .. '\n' .. sub(entry, from), 'PX', time)
end

-- The texts in front of entry.lua have the rules for an entry H or O, because most requests meet one and a long queue
-- makes the rest slow. Whatever is unusual is for the rest. left is above 0 while the lease counts.
local places = (state == 'H' or state == 'O') and waits(behind + 1)
local left = places and since <= clock and since + tonumber(ttl, 10) - now or 0
