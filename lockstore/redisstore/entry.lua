-- The lock's entry is one string:
--
--   lambdalock2 S<places><fence> <owner> <number><marks>
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
-- places, of three digits, is how many places the queue has. fence is that of the last grant. It has 16 digits, and so has since; ttl has at most 13. Times are microseconds
-- on the server's clock. holder is a text for people.
-- A mark is an owner that has ended: how, the fence of its lease, a space, the owner and a space. The oldest
-- is the first, and number, a digit, says how many they are. How is F for released or abandoned, E expired, K
-- completed, D resolved, V revoked. In front of an entry F is one more mark, the newest.
-- The queue is empty, or a space, and for each place the owner and a space. If the place's MaxHolders is not 1,
-- this is behind the owner and the byte 1; of a parked place its turn is behind the byte 2. What cannot be a queue is none: a queue can only refuse. What cannot be
-- marks are none.
--
-- To make a long string takes the server a microsecond for 1,000 bytes, and a pattern that matches one takes more.

local now = clock + 0

-- The first two lines. state is B if they are damaged.
local state, number, last, owner, at, line, since, ttl, text, behind
if type(entry) == 'string' then
	state, number, last, owner, at = match(entry, '^lambdalock2 ([HOFKCX])(%d%d%d)(%d+) ([^ \n]*) ()')
	line = at and find(entry, '\n', at, true)
	if line then since, ttl, text = match(entry, '^(%d+) (%d+) ()', line + 1) end
	behind = text and find(entry, '\n', text, true)
	local one = state == 'H' or state == 'O' or state == 'F'
	if not behind or #last ~= 16 or #since ~= 16 or #ttl > 13 or one == (owner == '') then state = 'B' end
end

-- waits is how many places the queue has that begins at this byte, or nil if it is damaged.
local function waits(from)
	if from > #entry then return 0 end
	if number ~= '000' and sub(entry, -1) == ' ' and find(entry, '^ [^ ]', from) and
		not find(entry, '  ', from, true) and not find(entry, '\n', from, true) then
		return tonumber(number, 10)
	end
end

-- A replica lags behind its primary, and so may a server that was the primary until now. What
-- it has read must not decide anything. So an answer without a write needs a proof: a write
-- that a replica refuses. This one changes nothing, because no time to live was over a minute
-- ago, and a server that is out of memory does not refuse it.
local function proven(answer)
	local proof = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT')
	return type(proof) == 'table' and proof or answer
end

if type(entry) == 'table' then return proven(entry) end
if state == 'B' then return proven('B') end

local marked, marks, places = 0, '', 0
-- The queue is front, then entry from the byte from on, then joined.
local front, from, joined = '', 1, ''
local holders, closed, changed, handed, woken = {}, nil, false, {}, {}

-- remember adds a mark.
local function remember(how, fence, owner)
	if marked == 8 then
		marks = sub(marks, (#marks > 18 and find(marks, ' ', 19, true) or #marks) + 1)
	else
		marked = marked + 1
	end
	marks, changed = marks .. how .. fence .. ' ' .. owner .. ' ', true
end

if entry then
	if find(entry, '^[0-8]', at) then marked, marks = sub(entry, at, at) + 0, sub(entry, at + 1, line - 1) end
	text, behind, since, ttl = sub(entry, text, behind - 1), behind + 1, tonumber(since, 10), tonumber(ttl, 10)
	if state == 'F' then
		remember('F', last, owner)
		behind, changed = nil, false
	elseif state == 'K' or state == 'C' then
		if state == 'K' and behind > #entry then return proven('B') end
		closed = {since = since, ttl = ttl, text = text, result = state == 'K' and sub(entry, behind) or ''}
		behind = nil
	elseif state == 'X' then
		local owners, seats, before, fewest = {}, {}, '', 1000000000
		while sub(entry, behind, behind) ~= '\n' do
			local o, f, seat, most, s, t, flags, holder, next =
				match(entry, '^([^ \n]+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a*) ([^\n]*)\n()', behind)
			if not o or #f ~= 16 or #seat > 9 or #most > 9 or #s ~= 16 or #t > 13 then return proven('B') end
			holders[#holders + 1] = {owner = o, fence = f, seat = tonumber(seat, 10), most = tonumber(most, 10),
				since = tonumber(s, 10), ttl = tonumber(t, 10), handed = find(flags, 'h') ~= nil,
				revoked = find(flags, 'r') ~= nil, started = find(flags, 's') ~= nil, text = holder}
			behind = next
			-- The invariant of package internal/rules, in its words.
			local h = holders[#holders]
			if f <= before or f > last then return proven('Bthe fences of the holders do not grow up to the last fence') end
			if owners[o] then return proven('Ban owner has two leases') end
			if seats[h.seat] then return proven('Btwo holders have one seat') end
			if h.started and h.most ~= 1 then return proven('Bthe work of a lease with others has started') end
			owners[o], seats[h.seat], before, fewest = true, true, f, math.min(fewest, h.most)
		end
		if #holders > fewest then return proven('Bmore hold the key than one of them allows') end
		behind = behind + 1
	else
		holders[1] = {owner = owner, fence = last, seat = 0, most = 1, since = since, ttl = ttl, handed = state == 'O', text = text}
	end
	behind = behind or #entry + 1
	places, from = waits(behind), behind
	if not places then places, from = 0, #entry + 1 end
else
	entry, state, last = '', 'X', '0000000000000000'
end

-- A state that begins in the future, because the clock was set back, begins now.
for _, h in ipairs(holders) do
	if h.since > now then h.since, changed = now, true end
end
if closed and closed.since > now then closed.since, changed = now, true end
