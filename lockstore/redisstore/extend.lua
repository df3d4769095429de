if left > 0 and owner == me and last == ARGV[2] and not find(entry, me, at, true) then
	local longest = math.max(ttl, ARGV[3]) .. ''
	local time = string.format('%.0f', math.ceil(longest / 1000) + 3600000)
	local done
	if state == 'H' and #longest == #ttl and redis.pcall('PEXPIRE', KEYS[1], time) == 1 then
		-- This makes no new text. A server that is out of memory does not refuse the second write of a script.
		done = redis.pcall('SETRANGE', KEYS[1], tostring(line), clock .. ' ' .. longest)
	else
		done = redis.pcall('SET', KEYS[1], 'lambdalock2 H' .. sub(entry, 14, line) .. clock .. ' ' .. longest ..
			sub(entry, text - 1), 'PX', time)
	end
	if type(done) == 'number' or done.ok then return 'G' .. last .. ' ' .. longest .. ' 0 ' end
end
