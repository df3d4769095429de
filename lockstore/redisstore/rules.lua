
-- The rules of package internal/rules, in its words.

local saves = true -- unless the request is an Acquire, the server has to do what it can to store it

local function digits(n, width) return string.format('%' .. (width or '') .. '.0f', n) end

local function live(h) return now < h.since + h.ttl end

local function anyLive()
	for _, h in ipairs(holders) do
		if live(h) then return true end
	end
	return false
end

local function isClosed() return closed ~= nil and now < closed.since + closed.ttl end

local function inDoubt()
	for _, h in ipairs(holders) do
		if h.started and not live(h) then return true end
	end
	return false
end

-- holder is where the lease of this owner, or with this fence, is among the holders, or nil.
local function holder(owner, fence)
	for i, h in ipairs(holders) do
		if h.owner == owner or h.fence == fence then return i end
	end
end

-- lease is the holder that a request names.
local function lease()
	local i = holder(me)
	if i and holders[i].fence == ARGV[2] and not holders[i].revoked then return i end
end

-- mark is how this owner has ended, or nil. It reads mark by mark, because an owner may look like the beginning of one.
local function mark()
	for how, owner in string.gmatch(marks, '(.)%d+ ([^ ]*) ') do
		if owner == me then return how end
	end
end

local function markOf(how, fence)
	for its, of in string.gmatch(marks, '(.)(%d+) [^ ]* ') do
		if its == how and of == fence then return true end
	end
	return false
end

-- whole makes one text of the queue.
local function whole()
	if front ~= '' then entry, from, front = front .. sub(entry, from), 1, '' end
	return entry
end

-- place is where an owner's place is in the entry: the space in front of it, and the one behind it.
local function place(owner)
	local before, last = find(whole(), ' ' .. owner .. ' ', from, true)
	if not before and (find(entry, '\1', from, true) or find(entry, '\2', from, true)) then
		before, last = find(entry, ' ' .. owner .. '\1', from, true)
		if not before then before, last = find(entry, ' ' .. owner .. '\2', from, true) end
	end
	if before then return before, find(entry, ' ', last, true) end
end

-- cut ends the places of the queue before a space of the entry, or all. places is how many are left.
local function cut(last, number)
	places, changed = number, true
	if number > 0 then from = last else front, from = '', #entry + 1 end
end

-- leaveQueue ends an owner's place, and returns true if it was the first. A holder may have one: its hand-over had
-- lapsed before the clock was set back, and it asked again.
local function leaveQueue(owner)
	local before, last = place(owner)
	if before then
		front = sub(entry, from, before - 1)
		cut(last, places - 1)
		return front == ''
	end
end

-- count is how many places the queue has up to a space of the entry, and most at most.
local function count(last, most)
	local n, at = 0, from
	while n < most and at < last do
		n, at = n + 1, find(entry, ' ', at + 1, true)
	end
	return n
end

-- first is the owner of the first place, or '', its MaxHolders, and its turn if it is parked.
local function first()
	local text, at = entry, from
	if front ~= '' then text, at = front .. ' ', 1 end
	local owner, most, turn = match(text, '^ ([^ \1\2]+)\1?(%d?%d?)\2?(%d*) ', at)
	return owner or match(text, '^ (%S+)', at) or '', tonumber(most or '', 10) or 1, tonumber(turn or '', 10)
end

-- parked are the owners of parked places.
local function parked()
	local all = {}
	if not find(whole(), '\2', from, true) then return all end -- a pattern looks at each place
	for owner in string.gmatch(sub(whole(), from), ' ([^ \1\2]+)\1?%d*\2') do all[#all + 1] = owner end
	return all
end

-- wait is how long a request behind the places up to this space of the entry waits at most, and how long for the
-- holders alone. It is granted now if the first is not above 0.
local function wait(most, last)
	local before = count(last, 5)
	local turns = before * 2000000
	if before > 0 and (find(entry, '\1', from, true) or find(entry, '\2', from, true)) then
		local n = 0
		for one in string.gmatch(sub(entry, from, last), '%S+') do
			n, most = n + 1, math.min(most, tonumber(match(one, '\1(%d+)') or '1', 10))
			local turn = n <= 5 and match(one, '\2(%d+)$')
			if turn then turns = turns - 2000000 + turn end
		end
		turns = math.min(turns, 60000000)
	elseif before > 0 then
		most = 1
	end
	local since = -math.huge -- there is room
	while true do
		local room, n, next = most, 0, math.huge
		for _, h in ipairs(holders) do
			local over = h.since + h.ttl
			if over > since then
				room, n, next = math.min(room, h.most), n + 1, math.min(next, over)
			end
		end
		if n == 0 or room > n then break end
		since = next
	end
	if closed then since = math.max(since, closed.since + closed.ttl) end
	local held = since - now
	return held + turns, held
end

-- grant makes an owner a holder. It returns nil if no fence is left: above 2^53 a number of Lua cannot
-- grow by one.
local function grant(h)
	local fence = math.max(tonumber(last, 10) + 1, now)
	if fence >= 9007199254740992 then return nil end
	local before, behind = place(h.owner)
	cut(behind, before and places - 1 - count(before, places) or 0)
	for i = #holders, 1, -1 do
		local old = holders[i]
		if not live(old) then
			table.remove(holders, i)
			if old.revoked then
				remember('V', old.fence, old.owner)
			elseif not old.handed then
				remember('E', old.fence, old.owner)
			end
		end
	end
	local taken = {}
	for _, o in ipairs(holders) do taken[o.seat] = true end
	h.seat = 0
	while taken[h.seat] do h.seat = h.seat + 1 end
	last = digits(fence, '016')
	h.fence, h.since, closed, changed = last, now, nil, true
	holders[#holders + 1] = h
	return h
end

-- handOver makes the first in the queue a holder for one turn, as long as there is room. One that is a holder
-- already, see leaveQueue, gets no second lease. With an owner it ends at the place of that one, and where a time says
-- since when there is room: without one the entry is damaged.
local function handOver(before)
	while places > 0 and not isClosed() and not inDoubt() do
		local owner, most, turn = first()
		if owner == '' or owner == before or wait(most, 0) > (before and -math.huge or 0) then return end
		local h = holders[holder(owner)]
		if h and live(h) then
			leaveQueue(owner)
		else
			h = grant({owner = owner, most = most, ttl = turn and math.min(turn, 30000000) or 2000000, handed = true, text = ''})
			if not h then return end
		end
		if turn then woken[#woken + 1] = owner else handed[#handed + 1] = h end
	end
end

-- over ends a lease.
local function over(i, how)
	local h = table.remove(holders, i)
	remember(how, h.fence, h.owner)
	leaveQueue(h.owner)
	return h
end

-- close ends a lease and the queue.
local function close(i, how)
	local text = over(i, how).text
	closed, woken = {since = now, ttl = ARGV[3] + 0, text = text, result = ARGV[4]}, parked()
	cut(nil, 0)
end

local function granted(h, next)
	return 'G' .. h.fence .. ' ' .. digits(h.since + h.ttl - now) .. ' ' .. h.seat .. ' ' .. next
end

local function answer(letter, left, place, text, started)
	return letter .. last .. ' ' .. digits(left) .. ' ' .. place .. ' ' .. (started and 1 or 0) .. ' ' .. text .. '\n'
end

-- status is the state of the key, as the parts of an answer.
local ranks = {I = 0, W = 1, H = 2, X = 3}
local function status()
	local letter, left, text, started = 'I', 0, '', false
	if isClosed() then
		return closed.result == '' and 'C' or 'K', closed.since + closed.ttl - now, closed.text, false
	end
	for _, h in ipairs(holders) do
		started = started or h.started
		local its = h.revoked and 'X' or h.handed and 'W' or 'H'
		if live(h) then
			left = math.max(left, h.since + h.ttl - now)
			if ranks[its] >= ranks[letter] then letter, text = its, h.text end
		elseif h.started then
			text = h.text
		end
	end
	if letter ~= 'I' then return letter, left, text, started end
	if inDoubt() then return 'U', 0, text, true end
	left = wait(1, #whole())
	return left > 0 and 'W' or 'I', math.max(left, 0), '', false
end

-- waiting is how many wait, and how many of them are parked.
local function waiting() return places .. '+' .. #parked() end

-- told is the answer with the state of the key. places is how many wait, or a place.
local function told(places)
	local letter, left, text, started = status()
	return answer(letter, left, places, text, started)
end
