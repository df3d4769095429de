package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// buggyStore is a store in memory with one planted bug. Without a bug it passes the suite.
// A row is a text, so that it can be foreign or damaged.
type buggyStore struct {
	bug string

	mu       sync.Mutex
	shift    time.Duration
	rows     map[string]string
	read     map[string]row // the texts that were decoded last: many requests find the same one
	requests int
	cut      bool            // replies are lost
	hang     bool            // no reply comes
	counter  lockstore.Fence // of one planted bug
}

type row struct {
	Owner   fullOwner       `json:"owner"`
	Fence   lockstore.Fence `json:"fence"`
	Expires int64           `json:"expires"` // nanoseconds
	Holder  string          `json:"holder"`
	Ended   []fullOwner     `json:"ended"`   // released or abandoned
	Expired []fullOwner     `json:"expired"` // and taken over
	Begun   bool            `json:"begun"`
	Kept    []fullOwner     `json:"kept"`  // of the ended, those that kept an answer
	Data    []byte          `json:"data"`  // of the last of these
	Freed   int64           `json:"freed"` // since when a key without an owner is free, nanoseconds
	Queue   queue           `json:"queue"`
}

// fullOwner is an Owner that JSON does not shorten.
type fullOwner string

var errCut = errors.New("connection reset")

func newBuggyStore(bug string) *buggyStore {
	return &buggyStore{bug: bug, rows: map[string]string{}, read: map[string]row{}}
}

// has reports whether the bug is planted.
func (m *buggyStore) has(bug string) bool { return m.bug == bug }

func (m *buggyStore) now() time.Time { return time.Now().Add(m.shift) }

// request is one round trip: f gets the row, and a changed row is stored.
func (m *buggyStore) request(ctx context.Context, key string, f func(r *row, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		switch {
		case m.has("F22 done context is sent"):
		case m.has("F22 done context is unknown"):
			return err
		case m.has("F22 context error is hidden"):
			return lockstore.ErrUnavailable
		default:
			return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if m.has("cost: two requests for each call") {
		m.requests++
	}
	now := m.now()
	r, err := m.decode(m.rows[m.place(key)])
	if err != nil {
		switch {
		case m.has("F54 a refused entry is cleared"):
			m.rows[m.place(key)] = ""
		case m.has("F53 error without the key"):
			return lockstore.ErrCorrupt
		}
		return fmt.Errorf("key %q: %w", key, lockstore.ErrCorrupt)
	}
	before := r.clone()
	if m.has("M19 check then set") {
		m.mu.Unlock()
		<-time.After(time.Millisecond) // like a reply and the next request
		m.mu.Lock()
	}
	if m.has("F15 clock that is off is refused") && m.shift != 0 {
		return lockstore.ErrUnavailable
	}
	err = f(&r, now)
	if !reflect.DeepEqual(r, before) {
		m.rows[m.place(key)] = m.encode(r)
	}
	if m.hang {
		m.mu.Unlock()
		<-ctx.Done()
		if m.has("F28 call outlives its context") {
			<-time.After(time.Second)
		}
		m.mu.Lock()
		switch {
		case m.has("F28 call that was cut off is unavailable"):
			return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, ctx.Err())
		case m.has("F28 call that was cut off is held"):
			return fmt.Errorf("%w: %w", &lockstore.HeldError{Key: key}, ctx.Err())
		case m.has("F28 call that was cut off hides its context's error"):
			return errCut
		}
		return ctx.Err()
	}
	if m.cut {
		switch {
		case m.has("M16 unknown as held"):
			return &lockstore.HeldError{Key: key}
		case m.has("M17 unknown as unavailable"):
			return lockstore.ErrUnavailable
		}
		return errCut
	}
	return err
}

// place is where the row of a key is.
func (m *buggyStore) place(key string) string {
	switch m.bug {
	case "M29 keys meet without case":
		return strings.ToLower(key)
	case "M29 keys meet after 1000 bytes":
		return key[:min(len(key), 1000)]
	case "M29 keys meet in their hash tag":
		if _, tag, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(tag, "}"); ok && tag != "" {
				return tag
			}
		}
	case "M29 keys meet after trimming":
		return strings.TrimSpace(key)
	case "F58 every key has one lock":
		return "all"
	}
	return key
}

func (m *buggyStore) encode(r row) string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (m *buggyStore) decode(text string) (row, error) {
	if r, ok := m.read[text]; ok {
		return r.clone(), nil
	}
	var r row
	if text == "" {
		return r, nil
	}
	if m.has("queue: damaged is corrupt") {
		var q struct{ Queue []fullOwner }
		if err := json.Unmarshal([]byte(text), &q); err != nil {
			return r, err
		}
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if m.has("F53 corrupt row is free") && err != nil {
		return row{}, nil
	}
	if err == nil {
		if len(m.read) > 100 {
			clear(m.read)
		}
		m.read[text] = r.clone()
	}
	return r, err
}

func (r *row) clone() row {
	c := *r
	c.Ended, c.Expired, c.Kept = slices.Clone(r.Ended), slices.Clone(r.Expired), slices.Clone(r.Kept)
	c.Data, c.Queue = slices.Clone(r.Data), slices.Clone(r.Queue)
	return c
}

// taken reports whether a lease is live or the key is in its cooldown.
func (r *row) taken(now time.Time) bool { return now.UnixNano() < r.Expires }

func (r *row) left(now time.Time) time.Duration { return time.Duration(r.Expires - now.UnixNano()) }

// judged is the time that decides about a takeover.
func (m *buggyStore) judged(now time.Time) time.Time {
	switch m.bug {
	case "takeover 1 ms early":
		return now.Add(time.Millisecond)
	case "takeover 100 ms early":
		return now.Add(100 * time.Millisecond)
	case "takeover 500 ms early":
		return now.Add(500 * time.Millisecond)
	case "takeover 999 ms early":
		return now.Add(999 * time.Millisecond)
	case "takeover by whole seconds, rounded up":
		return now.Add(time.Second - 1).Truncate(time.Second)
	case "takeover by whole seconds, rounded":
		return now.Round(time.Second)
	case "takeover by another clock than the lease's":
		return now.Add(-m.shift)
	}
	return now
}

// end is the end of a lease that begins now.
func (m *buggyStore) end(now time.Time, ttl time.Duration) int64 {
	end := now.Add(ttl)
	switch m.bug {
	case "M37 TTL in other units":
		end = now.Add(ttl / 1000)
	case "TTL in whole seconds":
		end = now.Add(ttl.Truncate(time.Second))
	case "end in whole milliseconds":
		end = end.Truncate(time.Millisecond)
	case "end in whole seconds":
		end = end.Truncate(time.Second)
	case "end in whole seconds, rounded":
		end = end.Round(time.Second)
	case "begin in whole seconds":
		end = now.Truncate(time.Second).Add(ttl)
	}
	return end.UnixNano()
}

// same compares owners.
func (m *buggyStore) same(a, b fullOwner) bool {
	switch {
	case m.has("owners are compared by prefix"):
		return a != "" && b != "" && (strings.HasPrefix(string(a), string(b)) || strings.HasPrefix(string(b), string(a)))
	case m.has("owners are compared without case"):
		return strings.EqualFold(string(a), string(b))
	}
	return a == b
}

// checked is the error of bad arguments, unless the bug is that their field is not checked.
func (m *buggyStore) checked(err error) error {
	for bug, field := range map[string]string{
		"F48 TTL is not checked": "TTL", "F48 key is not checked": "Key", "F48 owner is not checked": "Owner", "F48 fence is not checked": "Fence",
	} {
		if err != nil && m.has(bug) && strings.Contains(err.Error(), field) {
			return nil
		}
	}
	return err
}

func (m *buggyStore) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := m.checked(req.Validate()); err != nil {
		return lockstore.Lease{}, err
	}
	if m.has("F48 bounds are too narrow") && (req.TTL == lockstore.MaxTTL || len(req.Owner) == lockstore.MaxOwnerBytes) {
		return lockstore.Lease{}, lockstore.ErrInvalid
	}
	me, holder := fullOwner(req.Owner), req.Holder.Encode()
	var lease lockstore.Lease
	err := m.request(ctx, req.Key, func(r *row, now time.Time) error {
		live, mine, late := r.taken(m.judged(now)), m.same(r.Owner, me), m.has("M18 late duplicate of an acquire")
		switch {
		case m.has("M02 expiry compare flipped"):
			live = r.Owner != "" && !r.taken(now)
		case m.has("M02 never expires"):
			live = live || r.Owner != ""
		}
		lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: r.Fence, TTL: min(req.TTL, r.left(now))}
		switch {
		case slices.Contains(r.Expired, me) && m.has("overtaken owner shares the new lease"):
			lease.TTL = time.Second
			return nil
		case (slices.Contains(r.Ended, me) || slices.Contains(r.Expired, me)) && !late:
			return lockstore.ErrLost
		case m.has("M01 acquire unconditional"), m.has("own retry takes a new fence") && mine && live:
		case m.has("M15 own retry reads busy") && mine, m.has("holder text is compared") && mine && r.Holder != holder:
			return m.held(req.Key, r, r.left(now), 0)
		case mine && (live || m.has("own expired lease is held")):
			switch {
			case m.has("own retry extends"):
				r.Expires = now.Add(req.TTL).UnixNano()
				lease.TTL = req.TTL
			case m.has("own retry promises the whole TTL"):
				lease.TTL = req.TTL
			case m.has("own retry brings the old expiry back"):
				r.Expires = min(r.Expires, now.Add(req.TTL).UnixNano())
			}
			return nil
		case mine && !m.has("own expired lease is taken again"):
			return lockstore.ErrLost
		case live && !(m.has("F64 same holder shares") && r.Holder == holder):
			left := r.left(now)
			switch {
			case m.has("M12 fence moves on busy"):
				r.Fence++
			case m.has("refused acquire extends"):
				r.Expires += int64(time.Minute)
			}
			if r.Owner == "" {
				return m.keptError(req, r, left)
			}
			if m.has("keep: the answer survives the next grant") && len(r.Data) > 0 {
				return m.keptError(req, r, left)
			}
			if m.has("begin: in doubt at once") && r.Begun {
				return &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(r.Holder)}}
			}
			return m.held(req.Key, r, left, m.join(r, req))
		case m.has("begin: ignored by a takeover"), m.has("begin: forgotten after a day") && r.left(now) < -24*time.Hour:
		case r.Begun && r.Owner != "":
			return &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(r.Holder)}}
		}
		if left := m.untilTurn(r, me, now); left > 0 || req.Queue && m.has("queue: a free key is waited for") {
			return &lockstore.HeldError{Key: req.Key, Remaining: left, Place: m.join(r, req), Free: !m.has("queue: a free key is held")}
		}
		m.leaveByGrant(r, me)
		if r.Owner != "" {
			r.Expired = append(r.Expired, r.Owner)
			if m.has("cost: takeover watches first") {
				m.requests += 2
			}
		}
		first := r.Fence == 0
		if !m.has("takeover keeps the fence") || len(r.Expired) == 0 {
			r.Fence = m.nextFence(r.Fence, now)
		}
		r.Owner, r.Expires, r.Holder, r.Data = me, m.end(now, req.TTL), m.kept(req.Holder, first), m.dataAfterGrant(r)
		if !m.has("begin: a release keeps it") {
			r.Begun = false
		}
		lease.Fence, lease.TTL = r.Fence, req.TTL
		switch {
		case m.has("F29 trusted longer than asked"):
			lease.TTL += time.Second
		case m.has("trusted for nothing"):
			lease.TTL = 1
		case m.has("lease has no owner"):
			lease.Owner = ""
		}
		return nil
	})
	if err != nil {
		return lockstore.Lease{}, err
	}
	return lease, nil
}

// kept is the holder's text in the row.
func (m *buggyStore) kept(h lockstore.Holder, first bool) string {
	switch {
	case m.has("holder is kept as it comes"):
		return fmt.Sprintf("%d\t%s\t%s", h.Since.UnixMilli(), h.ID, h.Name)
	case m.has("holder of the first grant stays") && !first:
		return "0\tfirst\tfirst"
	case m.has("caller is not kept"):
		h.Caller = ""
	case m.has("holder is not kept"):
		return ""
	case m.has("unknown holder gets a name") && h == (lockstore.Holder{}):
		return "0\t\tunknown"
	}
	return h.Encode()
}

func (m *buggyStore) nextFence(last lockstore.Fence, now time.Time) lockstore.Fence {
	switch {
	case m.has("M10 fence constant"):
		return 1_700_000_000_000_000
	case m.has("M13 fence from a local counter"):
		m.counter++
		return m.counter
	case m.has("M14 fence int32"):
		return lockstore.Fence(uint32(lockstore.NextFence(last, now)))
	case m.has("fence is the time alone"):
		return lockstore.Fence(now.UnixMicro())
	case m.has("fence is one more alone"):
		return max(last+1, 1_700_000_000_000_000)
	}
	return lockstore.NextFence(last, now)
}

func (m *buggyStore) held(key string, r *row, left time.Duration, place int) error {
	switch {
	case m.has("held error is plain"):
		return lockstore.ErrHeld
	case m.has("held error matches lost too"):
		return fmt.Errorf("%w: %w", &lockstore.HeldError{Key: key, Remaining: left}, lockstore.ErrLost)
	case m.has("held error has no key"):
		key = ""
	case m.has("held error has no remaining time"):
		left = 0
	case m.has("held error has too long a remaining time"):
		left += time.Hour
	case m.has("held error has too short a remaining time"):
		left /= 2
	case m.has("cost: refusal reads on the side"):
		m.requests++
	}
	return &lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolder(r.Holder), Remaining: left, Place: place}
}

// overAnywhere reports whether the owner has ended on any key.
func (m *buggyStore) overAnywhere(o fullOwner) bool {
	for _, text := range m.rows {
		if r, err := m.decode(text); err == nil && slices.Contains(r.Ended, o) {
			return true
		}
	}
	return false
}

func (m *buggyStore) Renew(ctx context.Context, l lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := m.checked(errors.Join(l.Validate(), lockstore.ValidateTTL(ttl))); err != nil {
		return 0, err
	}
	me := fullOwner(l.Owner)
	var trusted time.Duration
	err := m.request(ctx, l.Key, func(r *row, now time.Time) error {
		until := m.end(now, ttl)
		again := func(err error) error {
			r.Owner, r.Fence, r.Expires = me, max(l.Fence, r.Fence), until
			return err
		}
		switch {
		case m.has("M07 renew recreates lost") && r.Owner == "",
			m.has("M07 renew recreates deleted") && r.Owner == "" && r.Fence == 0 && len(r.Ended) == 0:
			return again(nil)
		case m.has("M07 renew says lost and recreates") && r.Owner == "",
			m.has("M08 renew says lost and revives") && r.Owner == me && !r.taken(now):
			return again(lockstore.ErrLost)
		case m.has("M06 renew says lost and extends") && (r.Owner != me || r.Fence != l.Fence):
			r.Expires = max(r.Expires, until)
			return lockstore.ErrLost
		case m.has("M06 renew unchecked"),
			m.has("M06 renew checks the owner alone") && r.Owner == me && r.taken(now),
			m.has("M06 renew checks the fence alone") && r.Fence == l.Fence && r.taken(now),
			m.has("M08 renew after expiry") && r.Owner == me && r.Fence == l.Fence,
			m.has("M14 fence compared in 32 bits") && r.Owner == me && int32(r.Fence) == int32(l.Fence):
		case m.has("renew of abandoned is held") && slices.Contains(r.Ended, me) && r.Owner == "":
			return nil
		case m.has("M36 lost as held") && !m.same(r.Owner, me):
			return m.held(l.Key, r, 0, 0)
		case !m.same(r.Owner, me) || r.Fence != l.Fence || !r.taken(now),
			m.has("F24 renew again is lost") && until <= r.Expires,
			m.has("owner is over on all keys") && m.overAnywhere(me):
			return lockstore.ErrLost
		}
		if m.has("begin: a renewal forgets it") {
			r.Begun = false
		}
		switch {
		case m.has("M09 renew shortens"):
			r.Expires = until
		case m.has("renew does not extend"):
		case m.has("renew for little more is not written") && until-r.Expires < int64(time.Second):
			trusted = ttl
			return nil
		default:
			r.Expires = max(r.Expires, until)
		}
		trusted = r.left(now)
		switch {
		case m.has("renew takes a new fence"):
			r.Fence++
		case m.has("renew drops the holder"):
			r.Holder = ""
		case m.has("renew is trusted longer than asked"):
			trusted += time.Second
		case m.has("renew is trusted for nothing"):
			trusted = 1
		case m.has("shorter renew is trusted for its TTL alone"):
			trusted = min(trusted, ttl)
		case m.has("shorter renew is trusted for nothing") && until < r.Expires:
			trusted = 0
		}
		return nil
	})
	return trusted, m.misread("Renew", l.Key, err)
}

// misread is the bug that one method answers a lost reply as if it knew.
func (m *buggyStore) misread(method, key string, err error) error {
	switch {
	case !errors.Is(err, errCut):
	case m.has("M16 unknown as held, by " + method):
		return &lockstore.HeldError{Key: key}
	case m.has("M17 unknown as unavailable, by " + method):
		return lockstore.ErrUnavailable
	}
	return err
}

func (m *buggyStore) Release(ctx context.Context, l lockstore.Lease) error {
	return m.misread("Release", l.Key, m.release(ctx, l, 0, nil))
}

// release is Release, or Keep if cooldown is more than 0.
func (m *buggyStore) release(ctx context.Context, l lockstore.Lease, cooldown time.Duration, data []byte) error {
	if err := m.checked(l.Validate()); err != nil {
		return err
	}
	me, abandon := fullOwner(l.Owner), l.Fence == 0
	return m.request(ctx, l.Key, func(r *row, now time.Time) error {
		mine, ended := m.same(r.Owner, me), slices.Contains(r.Ended, me)
		if abandon && m.has("queue: an abandon begins the turns again") {
			r.Freed = now.UnixNano()
		}
		if abandon && !m.has("queue: an abandon keeps the place") {
			m.leave(r, me, now)
		}
		free := func() {
			freed := now.UnixNano()
			if r.Owner != "" && !r.taken(now) {
				freed = r.Expires
			}
			r.Owner, r.Expires, r.Freed = "", 0, freed
			r.Begun = r.Begun && m.has("begin: a release keeps it")
			if cooldown > 0 {
				r.Expires = m.endOfKeep(now, cooldown)
				r.Freed = r.Expires
				r.Kept, r.Data = append(r.Kept, me), m.keptData(data)
				if !m.has("queue: stays through a cooldown") {
					r.Queue = nil
				}
			}
			if !ended {
				r.Ended = append(r.Ended, me)
			}
			if m.has("M11 release deletes the fence") {
				r.Fence = 0
			}
		}
		switch {
		case m.has("begin: an abandon by others ends it") && abandon && r.Begun,
			m.has("keep: a release frees a kept key") && cooldown == 0 && slices.Contains(r.Kept, me),
			m.has("keep: without the owner") && cooldown > 0 && r.Fence == l.Fence,
			m.has("keep: without the fence") && cooldown > 0 && mine,
			m.has("keep: on a free row") && cooldown > 0 && r.Owner == "" && !ended,
			m.has("keep: after another's grant") && cooldown > 0 && slices.Contains(r.Expired, me),
			m.has("keep: again takes the key of others") && cooldown > 0 && slices.Contains(r.Kept, me) && r.Owner != "":
			free()
			return nil
		case m.has("keep: again replaces the data") && cooldown > 0 && slices.Contains(r.Kept, me):
			r.Data = data
			return nil
		case m.has("keep: released counts as kept") && cooldown > 0 && ended:
			return nil
		case m.has("keep: lost after the end") && cooldown > 0 && mine && !r.taken(now),
			m.has("begin: a release after the end is lost") && mine && r.Begun && !r.taken(now):
			return lockstore.ErrLost
		case m.has("M04 release unchecked"),
			m.has("M04 release again frees the next") && ended,
			m.has("M05 release ignores the fence") && mine,
			m.has("abandon frees everybody's") && abandon,
			m.has("cooldown ends by release") && ended && r.Owner == "",
			m.has("cooldown ends by abandon") && abandon && r.Owner == "",
			m.has("cooldown by anybody") && cooldown > 0:
			free()
			return nil
		case m.has("M04 release says lost and frees") && !abandon && (!mine || r.Fence != l.Fence):
			free()
			return lockstore.ErrLost
		case m.has("release does nothing"),
			m.has("release after a takeover is nil") && slices.Contains(r.Expired, me),
			m.has("release of the unknown is nil") && r.Fence == 0,
			m.has("abandon does nothing") && abandon,
			m.has("abandon leaves no mark") && abandon && !mine:
			return nil
		case m.has("F25 release again is lost") && ended,
			m.has("abandon of nothing is lost") && abandon && !mine && !ended,
			m.has("abandon again is lost") && abandon && ended,
			m.has("abandon of an expired lease is lost") && abandon && mine && !r.taken(now):
			return lockstore.ErrLost
		case m.has("release of deleted is unknown") && r.Fence == 0 && !abandon:
			return errCut
		case m.has("release leaves a mark on the unknown") && r.Fence == 0 && !abandon:
			r.Ended = append(r.Ended, me)
			return lockstore.ErrLost
		case m.has("release of expired blocks the key") && mine && !r.taken(now):
			r.Owner, r.Expires = "dead", math.MaxInt64
			return nil
		case m.has("abandon lowers the fence") && abandon:
			free()
			r.Fence /= 2
			return nil
		case m.has("cooldown again is longer") && ended && cooldown > 0:
			r.Expires = now.Add(cooldown).UnixNano()
			return nil
		case cooldown > 0 && slices.Contains(r.Kept, me):
			return nil
		case cooldown > 0 && ended:
			return lockstore.ErrLost
		case ended, abandon && slices.Contains(r.Expired, me):
			return nil
		case mine && (abandon || r.Fence == l.Fence):
			if m.has("cooldown until the lease's end") && cooldown > 0 {
				cooldown = max(cooldown, r.left(now))
			}
			free()
			switch {
			case m.has("release says nil and keeps the lease") && !abandon && cooldown == 0:
				r.Owner, r.Expires, r.Ended = me, now.Add(time.Minute).UnixNano(), nil
			case m.has("cooldown for others only") && cooldown > 0:
				r.Owner, r.Ended = me, nil
			}
			return nil
		case abandon:
			r.Ended = append(r.Ended, me)
			return nil
		}
		return lockstore.ErrLost
	})
}

func (m *buggyStore) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := m.checked(lockstore.ValidateKey(key)); err != nil {
		return lockstore.Status{}, err
	}
	var st lockstore.Status
	err := m.request(ctx, key, func(r *row, now time.Time) error {
		st = lockstore.Status{Key: key, Fence: r.Fence, Waiting: len(r.Queue)}
		st.Kept = r.taken(now) && r.Owner == ""
		st.InDoubt = !r.taken(now) && r.Begun
		if r.taken(now) || st.InDoubt || m.has("inspect sees the dead as held") && r.Owner != "" {
			st.Held = true
			st.Holder = lockstore.DecodeHolder(r.Holder)
			st.Remaining = max(0, r.left(now))
			st.Broken = r.taken(now) && r.Owner == brokenOwner && !m.has("break: not shown")
		}
		switch {
		case m.has("inspect sees the held as free"):
			st.Held, st.Holder, st.Remaining = false, lockstore.Holder{}, 0
		case m.has("inspect shows the raw holder") && st.Held:
			st.Holder = lockstore.Holder{Name: r.Holder}
		case m.has("inspect shows the last holder"):
			st.Holder = lockstore.DecodeHolder(r.Holder)
		case m.has("inspect knows no fence"):
			st.Fence = 0
		case m.has("inspect invents a fence"):
			st.Fence = max(1, st.Fence)
		case m.has("inspect clears the dead") && !r.taken(now):
			r.Owner = ""
		case m.has("inspect: kept is only held"):
			st.Kept = false
		case m.has("inspect: in doubt is free") && st.InDoubt:
			st = lockstore.Status{Key: key, Fence: r.Fence}
		case m.has("inspect sees the cooldown as free") && r.Owner == "":
			st.Held, st.Remaining = false, 0
		case m.has("inspect has a fixed remaining time") && st.Held:
			st.Remaining = 30 * time.Second
		}
		return nil
	})
	return st, err
}

// harness has every field that the suite uses.
func (m *buggyStore) harness() Harness {
	set := func(key, text string) { m.locked(func() { m.rows[m.place(key)] = text }) }
	get := func(key string) (text string) {
		m.locked(func() { text = m.rows[m.place(key)] })
		return text
	}
	damage := func(old, new string) func(*testing.T, string) {
		return func(t *testing.T, key string) {
			text := strings.Replace(get(key), old, new, 1)
			if text == get(key) {
				t.Errorf("the row %s has no %q to damage", text, old)
			}
			set(key, text)
		}
	}
	put := func(text string) func(*testing.T, string) {
		return func(_ *testing.T, key string) { set(key, text) }
	}
	queued := func(instead any) func(*testing.T, string) {
		return func(t *testing.T, key string) {
			var r map[string]any
			if err := json.Unmarshal([]byte(get(key)), &r); err != nil {
				t.Error(err)
			}
			r["queue"] = instead
			text, err := json.Marshal(r)
			if err != nil {
				t.Error(err)
			}
			set(key, string(text))
		}
	}
	return Harness{
		Store:       m,
		DamageQueue: map[string]func(*testing.T, string){"a number": queued(7), "numbers": queued([]int{1, 2})},
		Requests: func() (n int) {
			m.locked(func() { n = m.requests })
			return n
		},
		Delete: put(""),
		Snapshot: func(_ *testing.T, key string) func() {
			text := get(key)
			return func() { set(key, text) }
		},
		Dump:       func(_ *testing.T, key string) string { return get(key) },
		ShiftClock: func(_ *testing.T, d time.Duration) { m.locked(func() { m.shift = d }) },
		Foreign: map[string]func(*testing.T, string){
			"text":        put("hello"),
			"other shape": put(`{"name":"x"}`),
		},
		Corrupt: map[string]func(*testing.T, string){
			"cut short":     damage("}", ""),
			"text in fence": damage(`"fence":`, `"fence":"x",`),
		},
		Unreachable: func(*testing.T) lockstore.Store {
			return NewFaulty(m, func(c Call) Fault {
				switch {
				case m.has("M36 server error as busy"):
					return Fault{Drop: &lockstore.HeldError{Key: c.Key}}
				case m.has("F21 refused connections are waited for"):
					return Fault{Before: time.Minute, Drop: lockstore.ErrUnavailable}
				}
				return Fault{Drop: lockstore.ErrUnavailable}
			})
		},
		LoseReplies: func(*testing.T) func() { return m.switchOn(&m.cut) },
		Hang:        func(*testing.T) func() { return m.switchOn(&m.hang) },
	}
}

// switchOn begins a fault, and returns what ends it.
func (m *buggyStore) switchOn(fault *bool) (restore func()) {
	m.locked(func() { *fault = true })
	return func() { m.locked(func() { *fault = false }) }
}

func (m *buggyStore) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}
