-- Locks of lambdalock, version 1. All of this may run again: it makes what is not there, and replaces functions.
SELECT pg_advisory_xact_lock(hashtext('lambdalock_locks'));

DO $do$
BEGIN
	IF to_regclass('lambdalock_locks') IS NULL THEN
		-- Who has a lease. Times are microseconds since 1970, on the server's clock.
		CREATE TYPE lambdalock_locks_holder AS (
			owner text, -- the secret id of one acquisition
			fence bigint,
			seat integer,
			most integer, -- MaxHolders
			since bigint,
			ttl bigint,
			info text, -- for people; of a revoked lease: who revoked it
			handed boolean, -- handed over, and not extended yet
			revoked boolean,
			started boolean
		);
		-- A key has a row from its first use on.
		CREATE TABLE lambdalock_locks (
			key text COLLATE "C" PRIMARY KEY,
			fence bigint NOT NULL, -- of the last grant
			holders lambdalock_locks_holder[] NOT NULL, -- in the order of the grants; one whose lease has ended stays until the next grant
			queue text[] NOT NULL, -- the owners that wait, in the order of arrival
			queue_most integer[] NOT NULL,
			queue_turn bigint[] NOT NULL, -- of a parked place: its turn in microseconds; 0: its owner waits
			queue_channel text[] NOT NULL, -- where its owner listens; '' is nowhere
			ended text[] NOT NULL, -- owners that have ended, oldest first
			ended_as text[] NOT NULL, -- how, and the fence of the lease: 'released 17'
			closed_since bigint, -- the work is done, and nobody has the key until closed_since + closed_for
			closed_for bigint,
			closed_by text,
			result bytea, -- NULL is a cooldown
			until timestamptz NOT NULL -- for who deletes old rows: the lock does not need this row any more
		) WITH (fillfactor = 50, toast_tuple_target = 8160); -- so that a new version of a row is on the page of the old one, and not compressed
		COMMENT ON TABLE lambdalock_locks IS 'locks of lambdalock, version 1';
		-- Where parked owners are woken.
		CREATE TABLE lambdalock_locks_address (
			key text COLLATE "C",
			owner text,
			address bytea NOT NULL,
			until timestamptz NOT NULL,
			PRIMARY KEY (key, owner)
		);
	ELSIF obj_description(to_regclass('lambdalock_locks'), 'pg_class') IS DISTINCT FROM 'locks of lambdalock, version 1' THEN
		RAISE EXCEPTION 'there is a table lambdalock_locks already, and it has no locks of lambdalock, version 1' USING ERRCODE = 'duplicate_table';
	END IF;
END
$do$;

-- For people: who holds which key or has left it in doubt, without the owners, which are secret.
CREATE OR REPLACE VIEW lambdalock_locks_held AS
	SELECT l.key, h.fence, h.seat, h.info AS holder, to_timestamp((h.since + h.ttl) / 1000000.0) AS until, h.handed, h.revoked, h.started,
		cardinality(l.queue) AS waiting
	FROM lambdalock_locks l, unnest(l.holders) h
	WHERE h.started OR h.since + h.ttl > extract(epoch FROM clock_timestamp()) * 1000000;

-- How long a request waits at most if nobody asks for anything: in all, and for the holders alone. It may be granted now if the
-- first is not above 0. mosts and turns are of the places before it; opens is when a closed key opens.
CREATE OR REPLACE FUNCTION lambdalock_locks_wait(holders lambdalock_locks_holder[], opens bigint, most integer, mosts integer[], turns bigint[], now bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $wait$
DECLARE
	h lambdalock_locks_holder;
	since bigint; -- since when there has been room
	next bigint;
	room integer;
	n integer;
	delay bigint := 0;
BEGIN
	IF cardinality(mosts) > 0 THEN
		IF most > 1 THEN most := least(most, (SELECT min(m) FROM unnest(mosts) m)); END IF;
		FOR i IN 1 .. least(cardinality(turns), 5) LOOP delay := delay + greatest(turns[i], 2000000); END LOOP;
		delay := least(delay, 60000000);
	END IF;
	LOOP -- the lease that ends first goes first, until there is room
		room := most; n := 0; next := NULL;
		FOREACH h IN ARRAY holders LOOP
			IF since IS NULL OR h.since + h.ttl > since THEN
				room := least(room, h.most); n := n + 1; next := least(next, h.since + h.ttl);
			END IF;
		END LOOP;
		EXIT WHEN n = 0 OR room > n;
		since := next;
	END LOOP;
	since := greatest(since, opens);
	IF since IS NULL THEN RETURN ARRAY[0, 0]; END IF;
	RETURN ARRAY[since - now + delay, since - now];
END
$wait$;

-- The payload of a notification. Only who knows the owner can make it, so the waiter believes it.
CREATE OR REPLACE FUNCTION lambdalock_locks_news(lock text, owner text, fence bigint, seat integer) RETURNS text LANGUAGE plpgsql AS $news$
BEGIN
	RETURN left(encode(sha256(convert_to(lock, 'UTF8')), 'hex'), 16) || ' ' || fence || ' ' || seat || ' ' ||
		left(encode(sha256(convert_to(lock || E'\n' || owner || ' ' || fence || ' ' || seat, 'UTF8')), 'hex'), 32);
END
$news$;

-- What the caller asked is the table and the version that it means. A pooler may have given the connection of one program to another one
-- between two messages of a request, and then the request comes to the statement of another table.
CREATE OR REPLACE FUNCTION lambdalock_locks_asked(asked text) RETURNS text LANGUAGE plpgsql AS $asked$
BEGIN
	IF asked NOT LIKE '% 2' THEN
		RAISE EXCEPTION 'the functions of lambdalock_locks are of version 2, and the program wants %', asked USING ERRCODE = 'LL001';
	ELSIF to_regclass(split_part(asked, ' ', 1)) IS DISTINCT FROM to_regclass('lambdalock_locks') THEN
		RAISE EXCEPTION 'this is lambdalock_locks, and the program wants %', asked USING ERRCODE = 'LL002';
	END IF;
	RETURN asked;
END
$asked$;

-- Of version 1.
DROP FUNCTION IF EXISTS lambdalock_locks_do(integer, text, text, text, bigint, bigint, integer, text, boolean, bigint, text, bytea);
DROP FUNCTION IF EXISTS lambdalock_locks_park(text, text, bytea, bigint);

-- The rules: what the answer to a request is, and what the row of the key is after it.
CREATE OR REPLACE FUNCTION lambdalock_locks_do(
	asked text,
	kind text,
	lock text, -- the key
	me text, -- the owner; '' is an operator
	mine bigint, -- the fence
	lasts bigint, -- the TTL in microseconds
	most integer, -- MaxHolders
	info text, -- the holder, for people
	flag boolean, -- acquire: take a place; resolve: with effect; revoke: at once
	parks bigint, -- the turn of a parked place, or 0
	channel text, -- where the owner listens, or ''
	data bytea, -- the result
	-- Of the answer what a request does not need is NULL.
	OUT outcome text, -- NULL is lost
	OUT why text,
	OUT fence bigint, -- of the lease; of a state: of the last grant
	OUT seat integer,
	OUT ttl bigint,
	OUT place integer, -- of the owner: 1 is next, 0 is none
	OUT state integer, -- 0 free, 1 reserved, 2 held, 3 revoked, 4 completed, 5 cooldown, 6 in doubt
	OUT holder text,
	OUT remaining bigint,
	OUT waiting integer,
	OUT parked integer,
	OUT started boolean,
	OUT result bytea,
	OUT holders text, -- a line for each: fence, seat, MaxHolders, state, remaining, text
	OUT handed text, -- a line for each owner that was handed the key: the payload of its notification
	OUT wake text, -- a line for each parked owner that the caller wakes
	OUT request text -- the one that this is the answer to
) LANGUAGE plpgsql AS $do$
DECLARE
	now bigint;
	l lambdalock_locks%ROWTYPE;
	h lambdalock_locks_holder; -- the lease of the owner, or with the fence
	i integer; -- where it is among the holders
	o lambdalock_locks_holder;
	at integer; -- the place of the owner in the queue
	mark text; -- how the owner has ended
	opens bigint; -- when a closed key opens
	alive boolean := false; -- the lease lasts
	busy boolean := false; -- a lease lasts
	doubt boolean := false;
	changed boolean := false;
	ends text; -- how the lease ends now
	shuts boolean := false; -- and the key is closed
	leaves text; -- who leaves the queue
	grants boolean := false; -- the owner is granted the key
	hands boolean := false; -- whoever is first in the queue may be handed the key
	wait bigint[];
	refusal bigint[]; -- how long the owner waits
	rest bigint; -- of the lease that is revoked
	g lambdalock_locks_holder; -- who is granted the key
	news text;
	rank integer;
	ending bigint;
BEGIN
	IF asked <> 'lambdalock_locks 2' THEN PERFORM lambdalock_locks_asked(asked); END IF;
	request := concat_ws(' ', kind, me, lock);

	IF kind IN ('inspect', 'await turn') THEN
		IF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
			RAISE EXCEPTION 'this server only reads, so what it knows may be old' USING ERRCODE = 'read_only_sql_transaction';
		END IF;
		SELECT * INTO l FROM lambdalock_locks t WHERE t.key = lock;
	ELSE
		-- Most requests that wait meet one holder, which has a mutex. The rest of the function does the same for them, and takes longer.
		IF kind = 'acquire' AND flag AND parks = 0 AND mine = 0 THEN
			UPDATE lambdalock_locks t SET queue = t.queue || me, queue_most = t.queue_most || most, queue_turn = t.queue_turn || parks, queue_channel = t.queue_channel || channel
				WHERE t.key = lock AND cardinality(t.holders) = 1 AND t.holders[1] IS NOT NULL AND (t.holders[1]).most = 1 AND NOT (t.holders[1]).revoked AND NOT (t.holders[1]).started
					AND (t.holders[1]).owner NOT IN ('', me) AND (t.holders[1]).fence BETWEEN 1 AND t.fence AND (t.holders[1]).seat BETWEEN 0 AND 63
					AND (t.holders[1]).ttl < 10000000000000 AND extract(epoch FROM clock_timestamp()) * 1000000 BETWEEN (t.holders[1]).since AND (t.holders[1]).since + (t.holders[1]).ttl - 1
					AND t.closed_since IS NULL AND me <> ALL (t.ended) AND me <> ALL (t.queue)
					AND '' <> ALL (t.ended_as) AND concat(array_dims(t.ended), array_dims(t.ended_as)) = repeat('[1:' || cardinality(t.ended) || ']', 2 * least(cardinality(t.ended), 1)) AND cardinality(t.queue) < 128 AND '' <> ALL (t.queue)
					AND concat(array_dims(t.queue), array_dims(t.queue_most), array_dims(t.queue_turn), array_dims(t.queue_channel)) = repeat('[1:' || cardinality(t.queue) || ']', 4 * least(cardinality(t.queue), 1))
				RETURNING t.fence, cardinality(t.queue), (t.holders[1]).info, CASE WHEN (t.holders[1]).handed THEN 1 ELSE 2 END,
					(t.holders[1]).since + (t.holders[1]).ttl - extract(epoch FROM clock_timestamp()) * 1000000
				INTO fence, place, holder, state, remaining;
			IF FOUND AND remaining > 0 THEN
				outcome := 'refused'; RETURN;
			END IF;
			-- Another request had the row for so long that the lease is over: the owner has its place, and the rest decides.
			fence := NULL; place := NULL; holder := NULL; state := NULL; remaining := NULL;
		END IF;
		LOOP
			SELECT * INTO l FROM lambdalock_locks t WHERE t.key = lock FOR UPDATE;
			EXIT WHEN FOUND OR kind NOT IN ('acquire', 'abandon');
			INSERT INTO lambdalock_locks VALUES (lock, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, now())
				ON CONFLICT DO NOTHING;
		END LOOP;
	END IF;
	IF l.key IS NULL THEN
		l.fence := 0; l.holders := '{}'; l.queue := '{}'; l.queue_most := '{}'; l.queue_turn := '{}'; l.queue_channel := '{}'; l.ended := '{}'; l.ended_as := '{}';
	END IF;
	-- Only now: another request may have had the row for a while.
	now := extract(epoch FROM clock_timestamp()) * 1000000;

	-- What cannot be is damaged. What cannot be a queue is none: a queue can only refuse.
	IF l.fence < 0 OR concat(array_dims(l.ended), array_dims(l.ended_as)) <> repeat('[1:' || cardinality(l.ended) || ']', 2 * least(cardinality(l.ended), 1)) OR array_position(l.ended || l.ended_as, NULL) > 0
			OR (l.closed_since IS NULL) <> (l.closed_for IS NULL) OR l.closed_for < 0
			OR l.closed_for > 10000000000000 OR l.closed_since < 0 OR l.closed_since IS NOT NULL AND (l.closed_by IS NULL OR cardinality(l.holders) > 0) THEN
		outcome := 'corrupt'; RETURN;
	END IF;
	IF concat(array_dims(l.queue), array_dims(l.queue_most), array_dims(l.queue_turn), array_dims(l.queue_channel)) <> repeat('[1:' || cardinality(l.queue) || ']', 4 * least(cardinality(l.queue), 1)) THEN l.queue := '{NULL}'; END IF;
	IF cardinality(l.queue) > 0 AND (array_position(l.queue, NULL) > 0 OR array_position(l.queue_most, NULL) > 0 OR array_position(l.queue_turn, NULL) > 0
			OR array_position(l.queue_channel, NULL) > 0 OR array_position(l.queue, '') > 0) THEN
		l.queue := '{}'; l.queue_most := '{}'; l.queue_turn := '{}'; l.queue_channel := '{}';
	END IF;
	-- The invariant of the rules about leases: none has the owner or the seat of another one.
	IF cardinality(l.holders) > 1 AND (SELECT count(DISTINCT x.owner) < count(*) OR count(DISTINCT x.seat) < count(*) FROM unnest(l.holders) x) THEN
		outcome := 'corrupt'; RETURN;
	END IF;
	FOR n IN 1 .. cardinality(l.holders) LOOP
		o := l.holders[n];
		IF (o IS NOT NULL AND o.owner <> '' AND o.fence BETWEEN 1 AND l.fence AND o.seat BETWEEN 0 AND 63 AND o.most BETWEEN 1 AND 64
				AND o.since > 0 AND o.ttl BETWEEN 0 AND 10000000000000) IS NOT TRUE
				OR n > 1 AND o.fence <= (l.holders[n - 1]).fence OR cardinality(l.holders) > o.most OR o.started AND o.most <> 1 THEN
			outcome := 'corrupt'; RETURN;
		END IF;
		IF o.since > now THEN -- the clock was set back
			o.since := now; l.holders[n] := o; changed := true;
		END IF;
		IF o.owner = me OR me = '' AND o.fence = mine THEN
			i := n; h := o; alive := now < h.since + h.ttl;
		END IF;
		busy := busy OR now < o.since + o.ttl;
		doubt := doubt OR o.started AND now >= o.since + o.ttl;
	END LOOP;
	IF l.closed_since > now THEN
		l.closed_since := now; changed := true;
	END IF;
	opens := l.closed_since + l.closed_for;
	at := array_position(l.queue, me);
	mark := l.ended_as[array_position(l.ended, me)];

	-- The release of a mutex that somebody waits for: the rest does the same, and takes longer.
	IF kind = 'release' AND i = 1 AND h.fence = mine AND NOT h.revoked AND cardinality(l.holders) = 1 AND l.queue_turn[1] = 0 AND l.queue_most[1] = 1
			AND l.closed_since IS NULL AND mark IS NULL AND at IS NULL THEN
		l.fence := greatest(l.fence + 1, now);
		news := lambdalock_locks_news(lock, l.queue[1], l.fence, 0);
		UPDATE lambdalock_locks t SET fence = l.fence, holders = ARRAY[ROW(l.queue[1], l.fence, 0, 1, now, 2000000, '', true, false, false)::lambdalock_locks_holder],
			queue = l.queue[2:], queue_most = l.queue_most[2:], queue_turn = l.queue_turn[2:], queue_channel = l.queue_channel[2:],
			ended = (l.ended || me)[greatest(cardinality(l.ended) - 6, 1):], ended_as = (l.ended_as || ('released ' || mine))[greatest(cardinality(l.ended) - 6, 1):],
			until = to_timestamp((now + 2000000) / 1000000.0)
			WHERE t.key = lock;
		outcome := 'done';
		handed := concat(l.queue[1], ' ', news, E'\n');
		IF l.queue_channel[1] <> '' THEN news := pg_notify(l.queue_channel[1], news); END IF;
		RETURN;
	END IF;

	<<decide>>
	BEGIN
		CASE kind
		WHEN 'acquire' THEN
			IF mark IS NOT NULL THEN why := 'this acquisition has ended'; EXIT decide; END IF;
			IF i IS NOT NULL THEN
				IF h.revoked THEN why := 'this lease was revoked'; EXIT decide; END IF;
				IF mine NOT IN (0, h.fence) THEN why := 'this lease is over'; EXIT decide; END IF;
				IF alive THEN
					IF h.handed THEN -- its owner may trust the lease already, so it gets no shorter
						h.handed := false; h.since := now; h.ttl := greatest(h.ttl, lasts); h.info := info;
						l.holders[i] := h; leaves := me; changed := true;
					END IF;
					outcome := 'granted'; EXIT decide;
				END IF;
				-- A hand-over that has lapsed ends the lease and not the owner, which asks like any other.
				IF NOT h.handed THEN why := 'the lease has expired'; EXIT decide; END IF;
			END IF;
			IF mine <> 0 THEN why := 'this lease is over'; EXIT decide; END IF;
			IF now < opens OR doubt THEN outcome := 'refused'; EXIT decide; END IF;
			IF cardinality(l.holders) > 0 OR opens IS NOT NULL THEN
				wait := lambdalock_locks_wait(l.holders, opens, most, l.queue_most[:coalesce(at - 1, 128)], l.queue_turn[:coalesce(at - 1, 128)], now);
			END IF;
			IF wait IS NULL OR wait[1] <= 0 THEN outcome := 'granted'; grants := true; hands := true; EXIT decide; END IF;
			IF at IS NULL AND flag AND cardinality(l.queue) < 128 AND NOT (parks > 0 AND (SELECT count(*) FROM unnest(l.queue_turn) t WHERE t > 0) >= 64) THEN
				l.queue := l.queue || me; l.queue_most := l.queue_most || most; l.queue_turn := l.queue_turn || parks; l.queue_channel := l.queue_channel || channel;
				at := cardinality(l.queue); changed := true;
			END IF;
			outcome := 'refused'; place := coalesce(at, 0); refusal := wait;
		WHEN 'renew' THEN -- it makes no lease shorter, and revives none
			IF i IS NULL OR h.fence <> mine OR h.revoked THEN why := 'this lease does not hold it'; EXIT decide; END IF;
			IF NOT alive THEN why := 'the lease has expired'; EXIT decide; END IF;
			h.since := now; h.ttl := greatest(h.ttl, lasts); h.handed := false;
			l.holders[i] := h; leaves := me; changed := true; outcome := 'granted';
		WHEN 'release' THEN
			IF mark IS NOT NULL THEN
				IF mark ~ '^(expired|revoked)' THEN why := 'this lease had ended before'; ELSE outcome := 'done'; END IF;
				EXIT decide;
			END IF;
			IF i IS NULL OR h.fence <> mine THEN why := 'this lease does not hold it'; EXIT decide; END IF;
			IF h.revoked THEN
				why := 'this lease was revoked';
				IF NOT h.started THEN ends := 'revoked'; hands := true; END IF; -- its owner is done, so nobody needs to wait for its end
				EXIT decide;
			END IF;
			ends := 'released'; hands := true; outcome := 'done';
		WHEN 'abandon' THEN -- an owner that has nothing has a mark, too: its acquire may come later
			outcome := 'done';
			IF mark IS NOT NULL OR i IS NOT NULL AND h.revoked AND h.started THEN EXIT decide; END IF;
			IF i IS NOT NULL THEN
				ends := 'released'; hands := true;
			ELSE
				l.ended := l.ended || me; l.ended_as := l.ended_as || 'released 0'::text;
				leaves := me; hands := at IS NOT DISTINCT FROM 1; changed := true;
			END IF;
		WHEN 'leave' THEN
			IF i IS NOT NULL AND NOT h.revoked AND alive THEN outcome := 'holding'; fence := h.fence; EXIT decide; END IF;
			outcome := 'done'; leaves := me; hands := at IS NOT DISTINCT FROM 1;
		WHEN 'mark started' THEN
			IF i IS NULL OR h.fence <> mine OR h.revoked THEN why := 'this lease does not hold it'; EXIT decide; END IF;
			IF NOT alive THEN why := 'the lease has expired'; EXIT decide; END IF;
			IF h.most <> 1 THEN outcome := 'exclusive'; EXIT decide; END IF;
			h.started := true; l.holders[i] := h; leaves := me; changed := true; outcome := 'done';
		WHEN 'still held' THEN -- for the transaction of a holder
			IF i IS NULL OR h.fence <> mine OR h.revoked THEN why := 'this lease does not hold it'; EXIT decide; END IF;
			IF NOT alive THEN why := 'the lease has expired'; EXIT decide; END IF;
			outcome := 'done';
		WHEN 'complete' THEN -- also after the end of the lease, if nobody was granted the key since
			IF mark ~ '^completed' THEN outcome := 'done'; EXIT decide; END IF;
			IF i IS NULL OR h.fence <> mine OR h.revoked THEN why := 'this lease does not hold it'; EXIT decide; END IF;
			IF h.most <> 1 THEN outcome := 'exclusive'; EXIT decide; END IF;
			ends := 'completed'; shuts := true; outcome := 'done';
		WHEN 'resolve' THEN
			-- Without effect it is right also if others have had the key since. With effect the key has to be closed still.
			IF NOT flag AND NOT coalesce(now < opens AND l.fence = mine, false) AND ARRAY['resolved ' || mine, 'released ' || mine] && l.ended_as THEN
				outcome := 'done'; EXIT decide;
			END IF;
			IF busy THEN outcome := 'refused'; EXIT decide; END IF;
			IF cardinality(l.holders) = 0 AND l.fence = mine AND coalesce(now < opens, false) = flag THEN outcome := 'done'; EXIT decide; END IF;
			IF i IS NULL OR NOT h.started THEN why := 'it is not in doubt with this fence'; EXIT decide; END IF;
			outcome := 'done'; shuts := flag; hands := NOT flag;
			ends := CASE WHEN flag THEN 'released' ELSE 'resolved' END;
		WHEN 'revoke' THEN -- the end of the lease stays: the old owner may be at work until then
			IF flag AND 'revoked ' || mine = ANY (l.ended_as) THEN outcome := 'done'; EXIT decide; END IF;
			IF i IS NULL OR NOT alive THEN why := 'no lease with this fence holds it'; EXIT decide; END IF;
			IF flag AND h.started THEN outcome := 'refused'; EXIT decide; END IF;
			IF NOT h.revoked THEN
				h.revoked := true; h.handed := false; h.info := info; l.holders[i] := h; leaves := h.owner; changed := true;
			END IF;
			rest := h.since + h.ttl - now; outcome := 'done';
			IF flag THEN ends := 'revoked'; hands := true; END IF;
		WHEN 'await turn' THEN
			IF i IS NOT NULL AND alive AND NOT h.revoked THEN outcome := 'granted'; EXIT decide; END IF;
			outcome := 'ask';
			IF at IS NULL OR doubt THEN EXIT decide; END IF;
			wait := lambdalock_locks_wait(l.holders, opens, l.queue_most[at], l.queue_most[:at - 1], l.queue_turn[:at - 1], now);
			IF greatest(wait[1], wait[2]) > 0 THEN outcome := 'not yet'; place := at; END IF;
		WHEN 'inspect' THEN
			outcome := 'done';
		END CASE;
	END;

	IF ends IS NOT NULL THEN
		l.ended := l.ended || h.owner; l.ended_as := l.ended_as || (ends || ' ' || h.fence);
		l.holders := l.holders[:i - 1] || l.holders[i + 1:]; leaves := h.owner; changed := true;
	END IF;
	IF leaves = ANY (l.queue) THEN
		at := array_position(l.queue, leaves); changed := true;
		l.queue := l.queue[:at - 1] || l.queue[at + 1:];
		l.queue_most := l.queue_most[:at - 1] || l.queue_most[at + 1:];
		l.queue_turn := l.queue_turn[:at - 1] || l.queue_turn[at + 1:];
		l.queue_channel := l.queue_channel[:at - 1] || l.queue_channel[at + 1:];
	END IF;
	IF shuts THEN
		l.closed_since := now; l.closed_for := lasts; l.closed_by := h.info; l.result := CASE WHEN length(data) > 0 THEN data END;
		FOR n IN 1 .. cardinality(l.queue) LOOP -- all who wait learn the result when they ask
			IF l.queue_turn[n] > 0 THEN wake := concat(wake, l.queue[n], E'\n'); END IF;
			IF l.queue_channel[n] <> '' THEN PERFORM pg_notify(l.queue_channel[n], left(encode(sha256(convert_to(lock, 'UTF8')), 'hex'), 16)); END IF;
		END LOOP;
		l.queue := '{}'; l.queue_most := '{}'; l.queue_turn := '{}'; l.queue_channel := '{}';
	END IF;

	IF hands AND NOT grants THEN
		doubt := false;
		FOREACH o IN ARRAY l.holders LOOP doubt := doubt OR o.started AND now >= o.since + o.ttl; END LOOP;
	END IF;
	WHILE grants OR hands AND cardinality(l.queue) > 0 AND NOT doubt AND coalesce(now >= opens, true) LOOP
		IF grants THEN
			g := ROW(me, 0, 0, most, now, lasts, info, false, false, false);
			at := coalesce(array_position(l.queue, me), 128);
		ELSE
			EXIT WHEN cardinality(l.holders) > 0 AND (lambdalock_locks_wait(l.holders, opens, l.queue_most[1], '{}', '{}', now))[1] > 0;
			g := ROW(l.queue[1], 0, 0, l.queue_most[1], now, greatest(l.queue_turn[1], 2000000), '', true, false, false);
			FOREACH o IN ARRAY l.holders LOOP -- the clock was set back: who has a lease gets no second one
				IF o.owner = g.owner AND now < o.since + o.ttl THEN g := o; END IF;
			END LOOP;
			at := 1;
		END IF;
		IF g.fence = 0 THEN
			FOR n IN REVERSE cardinality(l.holders) .. 1 LOOP -- who is over goes
				o := l.holders[n];
				CONTINUE WHEN now < o.since + o.ttl;
				IF o.revoked OR NOT o.handed THEN
					l.ended := l.ended || o.owner;
					l.ended_as := l.ended_as || (CASE WHEN o.revoked THEN 'revoked ' ELSE 'expired ' END || o.fence);
				END IF;
				l.holders := l.holders[:n - 1] || l.holders[n + 1:];
			END LOOP;
			WHILE cardinality(l.holders) > 0 AND EXISTS (SELECT FROM unnest(l.holders) x WHERE x.seat = g.seat) LOOP g.seat := g.seat + 1; END LOOP;
			l.fence := greatest(l.fence + 1, now);
			g.fence := l.fence;
			l.holders := l.holders || g;
		END IF;
		IF grants THEN
			h := g; grants := false;
		ELSIF l.queue_turn[1] > 0 THEN
			wake := concat(wake, g.owner, E'\n');
		ELSE
			news := lambdalock_locks_news(lock, g.owner, g.fence, g.seat);
			handed := concat(handed, g.owner, ' ', news, E'\n');
			IF l.queue_channel[1] <> '' THEN news := pg_notify(l.queue_channel[1], news); END IF; -- PERFORM is slower
		END IF;
		l.queue := l.queue[at + 1:]; l.queue_most := l.queue_most[at + 1:]; -- the places before it have had their turn
		l.queue_turn := l.queue_turn[at + 1:]; l.queue_channel := l.queue_channel[at + 1:];
		changed := true;
		IF opens IS NOT NULL THEN
			l.closed_since := NULL; l.closed_for := NULL; l.closed_by := NULL; l.result := NULL; opens := NULL;
		END IF;
	END LOOP;

	IF outcome = 'granted' THEN
		fence := h.fence; seat := h.seat; ttl := h.since + h.ttl - now;
		IF kind = 'acquire' THEN ttl := least(ttl, lasts); END IF;
	ELSIF outcome = 'refused' OR outcome = 'done' AND kind IN ('inspect', 'revoke') THEN
		fence := l.fence;
		state := 0; started := false;
		FOREACH o IN ARRAY l.holders LOOP
			started := started OR o.started;
			IF now < o.since + o.ttl THEN
				remaining := greatest(remaining, o.since + o.ttl - now);
				rank := CASE WHEN o.revoked THEN 3 WHEN o.handed THEN 1 ELSE 2 END;
				IF rank >= state THEN state := rank; holder := o.info; END IF;
				IF kind <> 'acquire' THEN
					holders := concat(holders, concat_ws(' ', o.fence, o.seat, o.most, rank, o.since + o.ttl - now, o.info), E'\n');
				END IF;
			ELSIF o.started AND state = 0 THEN
				holder := o.info;
			END IF;
		END LOOP;
		IF now < opens THEN
			state := CASE WHEN l.result IS NULL THEN 5 ELSE 4 END;
			holder := l.closed_by; result := l.result; remaining := opens - now;
		ELSIF state = 0 AND doubt THEN
			state := 6;
		ELSIF state = 0 THEN
			wait := lambdalock_locks_wait(l.holders, opens, 1, l.queue_most, l.queue_turn, now);
			IF wait[1] > 0 THEN state := 1; remaining := wait[1]; END IF;
		END IF;
		IF refusal IS NOT NULL THEN
			remaining := refusal[2];
			IF remaining <= 0 THEN state := 1; holder := ''; remaining := refusal[1]; END IF;
		ELSIF rest IS NOT NULL THEN -- others may hold the key, too
			holder := h.info; remaining := rest;
		END IF;
		IF kind <> 'acquire' THEN
			waiting := cardinality(l.queue);
			IF waiting > 0 THEN parked := (SELECT count(*) FROM unnest(l.queue_turn) t WHERE t > 0); END IF;
		END IF;
	END IF;

	IF changed AND kind NOT IN ('inspect', 'await turn') THEN
		at := greatest(cardinality(l.ended) - 7, 1);
		ending := greatest(now, l.closed_since + l.closed_for);
		doubt := false; -- the started work may have ended by this request
		FOREACH o IN ARRAY l.holders LOOP
			ending := greatest(ending, o.since + o.ttl); doubt := doubt OR o.started;
		END LOOP;
		UPDATE lambdalock_locks t SET fence = l.fence, holders = l.holders,
			queue = l.queue, queue_most = l.queue_most, queue_turn = l.queue_turn, queue_channel = l.queue_channel,
			ended = l.ended[at:], ended_as = l.ended_as[at:],
			closed_since = l.closed_since, closed_for = l.closed_for, closed_by = l.closed_by, result = l.result,
			until = CASE WHEN doubt THEN 'infinity' ELSE to_timestamp(ending / 1000000.0) END
		WHERE t.key = lock;
	END IF;
END
$do$;

-- Keeps the address of a parked owner for a time in microseconds, in place of the address was, or takes it if there is no address. If
-- another one is there, or none, it returns that, or '': so a copy of a request that arrives late changes nothing.
CREATE OR REPLACE FUNCTION lambdalock_locks_park(asked text, lock text, me text, where_to bytea, lasts bigint, was bytea) RETURNS bytea LANGUAGE plpgsql AS $park$
DECLARE
	ends timestamptz := clock_timestamp() + lasts * interval '1 microsecond';
	taken bytea;
BEGIN
	PERFORM lambdalock_locks_asked(asked);
	IF where_to IS NULL THEN
		DELETE FROM lambdalock_locks_address a WHERE a.key = lock AND a.owner = me RETURNING CASE WHEN until > clock_timestamp() THEN a.address END INTO taken;
		RETURN taken;
	END IF;
	IF was IS NULL THEN
		INSERT INTO lambdalock_locks_address AS a VALUES (lock, me, where_to, ends)
			ON CONFLICT (key, owner) DO UPDATE SET address = excluded.address, until = excluded.until WHERE a.until <= clock_timestamp();
	ELSE
		UPDATE lambdalock_locks_address a SET address = where_to, until = ends WHERE a.key = lock AND a.owner = me AND a.address = was;
	END IF;
	IF FOUND THEN RETURN NULL; END IF;
	SELECT a.address INTO taken FROM lambdalock_locks_address a WHERE a.key = lock AND a.owner = me;
	RETURN coalesce(taken, '');
END
$park$;
