-- listed is a line for each holder.
local function listed()
	local text = ''
	for _, h in ipairs(holders) do
		if live(h) then
			text = text .. h.fence .. ' ' .. digits(h.since + h.ttl - now) .. ' ' .. h.seat .. ' ' .. h.most .. ' ' ..
				(h.revoked and 'X' or h.handed and 'W' or 'H') .. ' ' .. h.text .. '\n'
		end
	end
	return text
end
