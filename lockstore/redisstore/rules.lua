-- The entry of a lock, and the rules of package internal/lib/rules, in its words.
--
-- The entry is one string:
--
--   lambdalock3 S<places><fence> <owner> <number><marks>
--   <since> <ttl> <holder>
--   <queue>
--
-- S is one letter:
--   H  the owner has the only lease, with this fence and seat 0, and MaxHolders is 1
--   O  as H; the lease was handed over and is not extended yet
--   F  the key is free; the owner had the last lease, and has released it
--   K  without an owner: the key is closed from since for ttl. Its result is in place of the queue
--   C  as K, without a result
--   X  without an owner: in front of the queue there is a line for each holder, and an empty line
-- places, of three digits, is how many places the queue has. fence is that of the last grant. It has 16 digits, and so has since; ttl has at most 13. Times are microseconds on the
-- server's clock. holder is a text for people.
-- A mark is an owner that has ended: how, the fence of its lease, a space, the owner and a space. The oldest
-- is the first, and number, a digit, says how many they are. How is F for released or abandoned, E expired, K
-- completed, D resolved, V revoked. In front of an entry F is one more mark, the newest.
-- The queue is empty, or a space, and for each place a text and a space. The text is the owner, MaxHolders, and since when the owner
-- waits, with the byte 1 between them. Of a parked place, its turn is behind the byte 2; of an owner that coalesces, its work and its event, each
-- behind the byte 3. What may follow is of a later version, and stays.
-- What cannot be a queue is none: a queue can only refuse. What cannot be marks are none.
--
-- To make a long string takes the server a microsecond for 1,000 bytes, and a pattern that matches one takes more: so the queue
-- is one text.

local now = clock + 0

if type(entry) == 'table' then return proven(entry) end

-- The state of the key. marked is how many marks there are. A queue without places is a space.
local last, holders, queue, places, marked, marks, closed = '0000000000000000', {}, ' ', 0, 0, '', nil
local changed, handed, woken = false, {}, {}
local saves = true -- the server has to do what it can to store the new state

local function digits(n, width) return string.format('%' .. (width or '') .. '.0f', n) end

-- remember adds a mark.
local function remember(how, fence, owner)
	if marked == 8 then
		marks = sub(marks, (#marks > 18 and find(marks, ' ', 19, true) or #marks) + 1)
	else
		marked = marked + 1
	end
	marks, changed = marks .. how .. fence .. ' ' .. owner .. ' ', true
end

-- readHolders reads the lines of the holders, and returns where the queue begins, or nil and what is wrong.
local function readHolders(at)
	local owners, seats, before, fewest = {}, {}, '0000000000000000', math.huge
	while sub(entry, at, at) ~= '\n' do
		local o, fence, seat, most, since, ttl, flags, text, next =
			match(entry, '^([^ \n]+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a*) ([^\n]*)\n()', at)
		if not o or #fence ~= 16 or #seat > 9 or #most > 9 or #since ~= 16 or #ttl > 13 then return nil, '' end
		local h = {owner = o, fence = fence, seat = tonumber(seat, 10), most = tonumber(most, 10), since = tonumber(since, 10),
			ttl = tonumber(ttl, 10), handed = find(flags, 'h') ~= nil, revoked = find(flags, 'r') ~= nil,
			started = find(flags, 's') ~= nil, text = text}
		if fence <= before or fence > last then return nil, 'the fences of the holders do not grow up to the last fence' end
		if owners[o] then return nil, 'an owner has two leases' end
		if seats[h.seat] then return nil, 'two holders have one seat' end
		if h.started and h.most ~= 1 then return nil, 'the work of a lease with others has started' end
		holders[#holders + 1], owners[o], seats[h.seat], before, fewest, at = h, true, true, fence, math.min(fewest, h.most), next
	end
	if #holders > fewest then return nil, 'more hold the key than one of them allows' end
	return at + 1
end

local function readQueue(at, number)
	local text = sub(entry, at)
	if number ~= '000' and find(text, '^ [^ ]') and sub(text, -1) == ' ' and not find(text, '  ', 1, true) and not find(text, '\n', 1, true) then
		queue, places = text, tonumber(number, 10)
	end
end

if entry then
	local state, number, fence, owner, at = match(entry, '^lambdalock3 ([HOFKCX])(%d%d%d)(%d+) ([^ \n]*) ()')
	local line = at and find(entry, '\n', at, true)
	local since, ttl, text, behind = match(entry, '^(%d+) (%d+) ([^\n]*)\n()', line and line + 1 or #entry + 1)
	local one = state == 'H' or state == 'O' or state == 'F'
	if not behind or #fence ~= 16 or #since ~= 16 or #ttl > 13 or one == (owner == '') then return proven('B') end
	if state ~= 'F' and owner ~= '' and fence == '0000000000000000' then
		return proven('Bthe fences of the holders do not grow up to the last fence')
	end
	last, since, ttl = fence, tonumber(since, 10), tonumber(ttl, 10)
	if find(entry, '^[0-8]', at) then marked, marks = sub(entry, at, at) + 0, sub(entry, at + 1, line - 1) end
	if state == 'F' then
		remember('F', last, owner)
		changed = false
	elseif state == 'K' or state == 'C' then
		if state == 'K' and behind > #entry then return proven('B') end
		closed = {since = since, ttl = ttl, text = text, result = state == 'K' and sub(entry, behind) or ''}
	elseif state == 'X' then
		local from, damage = readHolders(behind)
		if not from then return proven('B' .. damage) end
		readQueue(from, number)
	else
		holders[1] = {owner = owner, fence = last, seat = 0, most = 1, since = since, ttl = ttl, handed = state == 'O', text = text}
		readQueue(behind, number)
	end
end

-- A state that begins in the future, because the clock was set back, begins now.
for _, h in ipairs(holders) do
	if h.since > now then h.since, changed = now, true end
end
if closed and closed.since > now then closed.since, changed = now, true end

local function live(h) return now < h.since + h.ttl end

local function doubtful(h) return h.started and not live(h) end

-- some says whether this is true of one of the holders.
local function some(is)
	for _, h in ipairs(holders) do
		if is(h) then return true end
	end
	return false
end

local function isClosed() return closed ~= nil and now < closed.since + closed.ttl end

local function inDoubt() return some(doubtful) end

-- holder is where the lease of this owner, or with this fence, is among the holders, or nil.
local function holder(owner, fence)
	for i, h in ipairs(holders) do
		if h.owner == owner or h.fence == fence then return i end
	end
end

-- lease is the holder that a request names.
local function lease()
	local i = holder(me)
	if i and holders[i].fence == ARGV[3] and not holders[i].revoked then return i end
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

-- place is where an owner's place is in the queue: the space in front of it, and the one behind it.
local function place(owner)
	local before = find(queue, ' ' .. owner .. '\1', 1, true)
	if before then return before, find(queue, ' ', before + 1, true) end
end

-- position is how many places there are up to a space of the queue.
local function position(last)
	local n, at = 0, 1
	while at < last do n, at = n + 1, find(queue, ' ', at + 1, true) end
	return n
end

-- waiter is the owner of the place behind this space of the queue, its MaxHolders, its turn, and whether it is parked.
local function waiter(space)
	local owner, most, parked = match(queue, '^ ([^ \1\2]*)\1?(%d?%d?)[^ \2]*\2?(%d*)', space)
	local turn = math.max(math.min(tonumber(parked, 10) or 0, 30000000), 2000000)
	return owner, math.max(tonumber(most, 10) or 1, 1), turn, parked ~= ''
end

-- waited is for how long the place has waited with whose text this begins: 0 without a place.
local function waited(text)
	local since = match(text, '^[^ \1\2]*\1%d+\1(%d+)')
	return digits(math.max(now - (since or now), 0))
end

local function first() return queue ~= ' ' and waiter(1) or '' end

-- cut ends the places of the queue before a space, or all. left is how many are left.
local function cut(space, left) queue, places, changed = space and sub(queue, space) or ' ', left, true end

-- leaveQueue ends an owner's place, and returns true if it was the first. A holder may have one: its hand-over had
-- lapsed before the clock was set back, and it asked again.
local function leaveQueue(owner)
	local before, behind = place(owner)
	if before then queue, places, changed = sub(queue, 1, before) .. sub(queue, behind + 1), places - 1, true end
	return before == 1
end

-- covered says whether a run of the work waits that has not begun, and none for the event.
local function covered(work, event)
	local is = false
	for owner, its, of in string.gmatch(queue, ' ([^ \1]+)\1[^ \3]*\3([^ %c]+)\3([^ %c]+)') do
		if its == work and of == event then return false end
		is = is or its == work and not holder(owner)
	end
	return is
end

-- parked are the owners of parked places.
local function parked()
	local all = {}
	if not find(queue, '\2', 1, true) then return all end -- a pattern looks at each place
	for owner in string.gmatch(queue, ' ([^ \1\2]+)\1%d+\1%d+\2') do all[#all + 1] = owner end
	return all
end

-- wait is how long a request behind the places up to this space of the queue waits at most, and how long for the holders alone. It is
-- granted now if the first is not above 0.
local function wait(most, last)
	local n, at, turns = 0, 1, 0
	while at < last and (n < 5 or most > 1) do
		local _, its, turn = waiter(at)
		n, most, at = n + 1, math.min(most, its), find(queue, ' ', at + 1, true)
		if n <= 5 then turns = turns + turn end
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
	return held + math.min(turns, 60000000), held
end

-- grant makes an owner a holder. It returns nil if no fence is left: above 2^53 a number of Lua cannot
-- grow by one.
local function grant(h)
	local fence = math.max(tonumber(last, 10) + 1, now)
	if fence >= 9007199254740992 then return nil end
	local before, behind = place(h.owner)
	cut(behind, before and places - 1 - position(before) or 0)
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
	while queue ~= ' ' and not isClosed() and not inDoubt() do
		local owner, most, turn, is = waiter(1)
		if owner == '' or owner == before or wait(most, 0) > (before and -math.huge or 0) then return end
		local h = holders[holder(owner)]
		if h and live(h) then
			leaveQueue(owner)
		else
			h = grant({owner = owner, most = most, ttl = turn, handed = true, text = ''})
			if not h then return end
		end
		if is then woken[#woken + 1] = owner else handed[#handed + 1] = h end
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
	closed, woken = {since = now, ttl = ARGV[4] + 0, text = text, result = ARGV[5]}, parked()
	cut(nil, 0)
	return 'R'
end

-- The answers. A granted lease comes with the first in the queue: its owner may name that one's list when it releases.
local function granted(h)
	return 'G' .. h.fence .. ' ' .. digits(h.since + h.ttl - now) .. ' ' .. h.seat .. ' ' .. first()
end

local function answer(letter, left, place, text, started)
	return letter .. last .. ' ' .. digits(left) .. ' ' .. place .. ' ' .. waited(sub(queue, 2)) .. ' ' .. (started and 1 or 0) .. ' ' .. text .. '\n'
end

local function stateOf(h) return h.revoked and 'X' or h.handed and 'W' or 'H' end

-- status is the state of the key, as the parts of an answer.
local ranks = {I = 0, W = 1, H = 2, X = 3}
local function status()
	local letter, left, text, started = 'I', 0, '', false
	if isClosed() then
		return closed.result == '' and 'C' or 'K', closed.since + closed.ttl - now, closed.text, false
	end
	for _, h in ipairs(holders) do
		started = started or h.started
		if live(h) then
			local its = stateOf(h)
			left = math.max(left, h.since + h.ttl - now)
			if ranks[its] >= ranks[letter] then letter, text = its, h.text end
		elseif h.started then
			text = h.text
		end
	end
	if letter ~= 'I' then return letter, left, text, started end
	if inDoubt() then return 'U', 0, text, true end
	left = wait(1, #queue)
	return left > 0 and 'W' or 'I', math.max(left, 0), '', false
end

-- told is the answer with the state of the key. places is a place, or who waits.
local function told(places)
	local letter, left, text, started = status()
	return answer(letter, left, places, text, started)
end

-- waiting has for each place how long it has waited, and a + if it is parked. In front of each there is a comma.
local function waiting()
	local all = {''}
	for text in string.gmatch(queue, ' ([^ ]+)') do all[#all + 1] = waited(text) .. (find(text, '\2', 1, true) and '+' or '') end
	return table.concat(all, ',') .. (all[2] and '' or ',')
end

-- listed is a line for each holder.
local function listed()
	local text = ''
	for _, h in ipairs(holders) do
		if live(h) then
			text = text .. h.fence .. ' ' .. digits(h.since + h.ttl - now) .. ' ' .. h.seat .. ' ' .. h.most .. ' ' .. stateOf(h) .. ' ' .. h.text .. '\n'
		end
	end
	return text
end

-- The requests by their kinds. Each changes the state and returns the answer. ARGV[1] is the owner, ARGV[2] the kind. Behind them
-- there is the fence, unless something else is said.
local requests = {}

-- ARGV: TTL in microseconds and holder, how long the entry stays after the grant in milliseconds,
-- MaxHolders and a + to wait in the queue, with the turn in microseconds of a parked place, or the fence of a lease that was handed over; of an owner that coalesces, its work and its event.
-- A second answer is for a server that refuses to store the first one's place, for want of memory.
function requests.acquire()
	saves = false
	if mark() then return 'L' end
	local most, join, turn, extends = match(ARGV[5], '^(%d+)(%+?)(%d*) ?(%d*)$')
	local ttl, text = match(ARGV[3], '^(%d+) (.*)$')
	local i = holder(me)
	most, ttl = most + 0, ttl + 0
	if i then
		local h = holders[i]
		if h.revoked or extends ~= '' and extends ~= h.fence then return 'L' end
		if live(h) then
			if h.handed then
				saves = true -- it is a holder's request
				leaveQueue(me)
				h.handed, h.since, h.ttl, h.text, changed = false, now, math.max(h.ttl, ttl), text, true
			end
			return granted(h)
		end
		if not h.handed then return 'L' end -- what has lapsed ends the lease, and not the owner
	end
	if extends ~= '' then return 'L' end
	if isClosed() then return told(0) .. closed.result end
	if inDoubt() then return told(0) end
	handOver(me)
	local before = place(me)
	local left, held = wait(most, before or #queue)
	if left <= 0 then
		local h = grant({owner = me, most = most, ttl = ttl, text = text})
		if not h then return 'B' end
		handOver()
		return granted(h)
	end
	local letter, _, who, started = status()
	if held <= 0 then letter, held, who, started = 'W', left, '', false end
	local function refuse(place) return answer(letter, held, place, who, started) end
	if before then return refuse(position(before) + 1) end
	local work, event = match(ARGV[6] or '', '^([^ ]+) ([^ ]+)$')
	if work and covered(work, event) then return refuse('c') end
	if join == '' or places >= 128 or turn ~= '' and #parked() >= 64 then return refuse(0) end
	queue, places, changed = queue .. me .. '\1' .. most .. '\1' .. clock .. (turn == '' and '' or '\2' .. turn) ..
		(work and '\3' .. work .. '\3' .. event or '') .. ' ', places + 1, true
	return refuse(places), refuse(0)
end

-- ARGV: fence, TTL in microseconds
function requests.renew()
	local i = lease()
	if not i or not live(holders[i]) then return 'L' end
	local h = holders[i]
	h.since, h.ttl, h.handed, changed = now, math.max(h.ttl, ARGV[4] + 0), false, true
	leaveQueue(me)
	return granted(h)
end

function requests.release()
	local how, i = mark(), holder(me)
	if how then return (how == 'E' or how == 'V') and 'L' or 'R' end
	if not i or holders[i].fence ~= ARGV[3] then return 'L' end
	local h = holders[i]
	if h.revoked and h.started then return 'L' end
	over(i, h.revoked and 'V' or 'F') -- the owner of a revoked lease is done, so nobody waits for its end
	handOver()
	return h.revoked and 'L' or 'R'
end

function requests.abandon()
	local i = holder(me)
	if mark() or i and holders[i].revoked and holders[i].started then return 'R' end
	if i then
		over(i, 'F')
	else
		remember('F', '0000000000000000', me)
	end
	if leaveQueue(me) or i then handOver() end
	return 'R'
end

function requests.leave()
	local i = holder(me)
	if i and not holders[i].revoked and live(holders[i]) then return 'O' .. holders[i].fence end
	if leaveQueue(me) then handOver() end
	return 'R'
end

function requests.started()
	local i = lease()
	if not i or not live(holders[i]) then return 'L' end
	if holders[i].most ~= 1 then return 'S' end
	changed = changed or not holders[i].started
	holders[i].started = true
	leaveQueue(me)
	return 'R'
end

-- ARGV: fence, time in microseconds, the result
function requests.complete()
	if mark() == 'K' then return 'R' end
	local i = lease()
	if not i then return 'L' end
	if holders[i].most ~= 1 then return 'S' end
	return close(i, 'K')
end

-- ARGV: fence, time in microseconds ('0' is no effect), the result
function requests.resolve()
	local fence, effect = ARGV[3], ARGV[4] ~= '0'
	if not effect and not (isClosed() and last == fence) and (markOf('D', fence) or markOf('F', fence)) then return 'R' end
	if some(live) then return told(0) end
	local i = holder(nil, fence)
	if #holders == 0 and last == fence and isClosed() == effect then return 'R' end
	if not i or not holders[i].started then return 'L' end
	if effect then return close(i, 'F') end
	over(i, 'D')
	handOver()
	return 'R'
end

-- ARGV: fence, holder, '1' to free the key at once
-- The end of a revoked lease stays, so the key is free when the old owner trusts its lease no longer.
function requests.revoke()
	local atOnce = ARGV[5] == '1'
	if atOnce and markOf('V', ARGV[3]) then return 'D' .. told(waiting()) .. listed() end
	local i = holder(nil, ARGV[3])
	if not i or not live(holders[i]) then return 'L' end
	local h = holders[i]
	if atOnce and h.started then return told(0) end
	local left = h.since + h.ttl - now
	if not h.revoked then
		h.revoked, h.handed, h.text, changed = true, false, ARGV[4], true
	end
	if atOnce then
		over(i, 'V')
		handOver()
	else
		leaveQueue(h.owner)
	end
	local letter, _, _, started = status()
	return 'D' .. answer(letter, left, waiting(), h.text, started) .. listed()
end

function requests.inspect()
	changed = false -- it writes nothing
	return told(waiting()) .. listed()
end

-- entryText is the entry of the present state.
local function entryText()
	local h, behind = holders[1], queue ~= ' ' and queue or ''
	local function head(state, owner) return 'lambdalock3 ' .. state .. string.format('%03d', places) .. last .. ' ' .. owner .. ' ' .. marked .. marks .. '\n' end
	local function span(of) return digits(of.since, '016') .. ' ' .. digits(of.ttl) .. ' ' end
	if #holders == 1 and h.most == 1 and h.seat == 0 and h.fence == last and not h.revoked and not h.started then
		return head(h.handed and 'O' or 'H', h.owner) .. span(h) .. h.text .. '\n' .. behind
	elseif not h and closed then
		return head(closed.result == '' and 'C' or 'K', '') .. span(closed) .. closed.text .. '\n' .. closed.result
	end
	local lines = {head('X', '') .. '0000000000000000 0 '}
	for _, o in ipairs(holders) do
		lines[#lines + 1] = o.owner .. ' ' .. o.fence .. ' ' .. o.seat .. ' ' .. o.most .. ' ' .. span(o) ..
			(o.handed and 'h' or '') .. (o.revoked and 'r' or '') .. (o.started and 's' or '') .. ' ' .. o.text
	end
	return table.concat(lines, '\n') .. '\n\n' .. behind
end

-- retention is the time until an hour after the end of the last lease or of the time for which the key is
-- closed, in milliseconds. When the work has started, it is 30 days, lockstore.StartMarkTime, and an hour.
local function retention()
	local left = closed and math.max(closed.since + closed.ttl - now, 0) or 0
	for _, h in ipairs(holders) do left = math.max(left, h.since + h.ttl - now, h.started and 2592000000000 or 0) end
	return digits(math.ceil(left / 1000) + 3600000)
end

-- The request is done, the new state is stored, and the answer is returned.
local result, instead = requests[kind]()
if not changed then return proven(result) end
local text, time = entryText(), retention()
local done = redis.pcall('SET', KEYS[1], text, 'PX', time)
-- A server that is out of memory refuses this, unless the script has written before. So whoever renews or
-- ends a lease sets the time to delete the entry first.
if done.err and saves and find(done.err, 'OOM', 1, true) and redis.call('PEXPIRE', KEYS[1], time) == 1 then
	done = redis.pcall('SET', KEYS[1], text, 'PX', time)
end
if done.err then return instead and proven(instead) or done end
-- Who was handed the key learns it from an element of its list: fence, TTL in microseconds, seat and the
-- first in the queue behind it. KEYS[2], if given, is the list of the owner ARGV[4]. The
-- answer names the others, and the client tells them; and behind the byte 2 the parked owners that the caller wakes.
for _, h in ipairs(handed) do
	local news = h.fence .. ' 2000000 ' .. h.seat .. ' ' .. first()
	if not (KEYS[2] and h.owner == ARGV[4] and wake(KEYS[2], news)) then result = result .. '\n' .. h.owner .. ' ' .. news end
end
for _, owner in ipairs(woken) do result = result .. '\n\2' .. owner end
return result
