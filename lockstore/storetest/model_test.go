package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// model is a second store, kept as text rows so that rows can be foreign and
// corrupt, with places for planted bugs. Without a bug it passes the suite.
type model struct {
	bug string

	mu       sync.Mutex
	shift    time.Duration
	rows     map[string]string
	requests int
	cut      bool
	hang     bool
	counter  lockstore.Fence // only of a planted bug
}

type row struct {
	Owner   fullOwner       `json:"owner"`
	Fence   lockstore.Fence `json:"fence"`
	Expires int64           `json:"expires"` // nanoseconds
	Holder  string          `json:"holder"`
	Ended   []fullOwner     `json:"ended"`   // released or abandoned
	Expired []fullOwner     `json:"expired"` // and taken over
}

// fullOwner is an Owner that JSON shows whole.
type fullOwner string

var errCut = errors.New("model: connection reset")

func newModel(bug string) *model { return &model{bug: bug, rows: map[string]string{}} }

// has says that the bug is planted, and is named where it is planted.
func (m *model) has(bug string) bool { return m.bug == bug }

func (m *model) now() time.Time { return time.Now().Add(m.shift) }

// request is one round trip: f gets the row, and a changed row is stored.
func (m *model) request(ctx context.Context, key string, f func(r *row, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		switch {
		case m.has("F22 done context is sent"):
		case m.has("F22 done context is unknown"):
			return fmt.Errorf("model: %w", err)
		case m.has("F22 context error is hidden"):
			return fmt.Errorf("model: %w", lockstore.ErrUnavailable)
		default:
			return fmt.Errorf("model: %w: %w", lockstore.ErrUnavailable, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if m.has("cost: two requests for each call") {
		m.requests++
	}
	now := m.now()
	r, err := m.decode(m.row(key))
	if err != nil && m.has("F54 a refused entry is cleared") {
		m.rows[m.place(key)] = ""
	}
	if err != nil {
		if m.has("F53 error without the key") {
			return fmt.Errorf("model: %w", lockstore.ErrCorrupt)
		}
		return fmt.Errorf("model: key %q: %w", key, lockstore.ErrCorrupt)
	}
	before := m.encode(r)
	if m.has("M19 check then set") {
		m.mu.Unlock()
		<-time.After(time.Millisecond) // as a reply and a next request take
		m.mu.Lock()
	}
	if m.has("F15 clock that is off is refused") && m.shift != 0 {
		return fmt.Errorf("model: %w", lockstore.ErrUnavailable)
	}
	err = f(&r, now)
	if after := m.encode(r); after != before {
		m.rows[m.place(key)] = after
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
			return fmt.Errorf("model: %w: %w", lockstore.ErrUnavailable, ctx.Err())
		case m.has("F28 call that was cut off is held"):
			return fmt.Errorf("%w: %w", &lockstore.HeldError{Key: key}, ctx.Err())
		case m.has("F28 call that was cut off hides its context's error"):
			return errCut
		}
		return fmt.Errorf("model: %w", ctx.Err())
	}
	if m.cut {
		switch {
		case m.has("M16 unknown as held"):
			return &lockstore.HeldError{Key: key}
		case m.has("M17 unknown as unavailable"):
			return fmt.Errorf("model: %w", lockstore.ErrUnavailable)
		}
		return errCut
	}
	return err
}

func (m *model) place(key string) string {
	switch {
	case m.has("M29 keys meet without case"):
		return strings.ToLower(key)
	case m.has("M29 keys meet after 1000 bytes"):
		return key[:min(len(key), 1000)]
	case m.has("M29 keys meet in their hash tag"):
		if _, tag, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(tag, "}"); ok && tag != "" {
				return tag
			}
		}
	case m.has("M29 keys meet after trimming"):
		return strings.TrimSpace(key)
	case m.has("F58 every key has one lock"):
		return "all"
	}
	return key
}

func (m *model) row(key string) string { return m.rows[m.place(key)] }

func (m *model) encode(r row) string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (m *model) decode(text string) (row, error) {
	var r row
	if text == "" {
		return r, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil && r.Fence < 0 {
		err = errors.New("negative fence")
	}
	if m.has("F53 corrupt row is free") && err != nil {
		return row{}, nil
	}
	return r, err
}

func (r *row) closed(now time.Time) bool { return now.UnixNano() < r.Expires }

// judged is the time by which a takeover is decided.
func (m *model) judged(now time.Time) time.Time {
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

// end is when a lease that begins now ends.
func (m *model) end(now time.Time, ttl time.Duration) int64 {
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
func (m *model) same(a, b fullOwner) bool {
	switch {
	case m.has("owners are compared by prefix"):
		return a != "" && b != "" && (strings.HasPrefix(string(a), string(b)) || strings.HasPrefix(string(b), string(a)))
	case m.has("owners are compared without case"):
		return strings.EqualFold(string(a), string(b))
	}
	return a == b
}

func (m *model) validTTL(ttl time.Duration) error {
	if m.has("F48 TTL is not checked") {
		return nil
	}
	return lockstore.ValidateTTL(ttl)
}

func (m *model) validLease(l lockstore.Lease) error {
	err := l.Validate()
	if err != nil && (m.has("F48 key is not checked") && strings.Contains(err.Error(), "Key") ||
		m.has("F48 owner is not checked") && strings.Contains(err.Error(), "Owner") ||
		m.has("F48 fence is not checked") && strings.Contains(err.Error(), "Fence")) {
		return nil
	}
	return err
}

func (m *model) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := m.validLease(lockstore.Lease{Key: req.Key, Owner: req.Owner}); err != nil {
		return lockstore.Lease{}, err
	}
	if err := m.validTTL(req.TTL); err != nil {
		return lockstore.Lease{}, err
	}
	if m.has("F48 bounds are too narrow") && (req.TTL == lockstore.MaxTTL || len(req.Owner) == lockstore.MaxOwnerBytes) {
		return lockstore.Lease{}, fmt.Errorf("model: TTL: %w", lockstore.ErrInvalid)
	}
	me := fullOwner(req.Owner)
	var lease lockstore.Lease
	err := m.request(ctx, req.Key, func(r *row, now time.Time) error {
		live, mine := r.closed(now), m.same(r.Owner, me)
		switch {
		case m.has("M02 expiry compare flipped"):
			live = r.Owner != "" && !live
		case m.has("M02 never expires"):
			live = live || r.Owner != ""
		default:
			live = r.closed(m.judged(now))
		}
		if slices.Contains(r.Ended, me) && !m.has("M18 late duplicate of an acquire") {
			return fmt.Errorf("model: ended: %w", lockstore.ErrLost)
		}
		if slices.Contains(r.Expired, me) && m.has("overtaken owner shares the new lease") {
			lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: r.Fence, TTL: time.Second}
			return nil
		}
		if slices.Contains(r.Expired, me) && !m.has("M18 late duplicate of an acquire") {
			return fmt.Errorf("model: taken over: %w", lockstore.ErrLost)
		}
		left := time.Duration(r.Expires - now.UnixNano())
		switch {
		case m.has("M01 acquire unconditional"):
		case mine && m.has("holder text is compared") && r.Holder != req.Holder.Encode():
			return m.held(req.Key, r, left)
		case mine && m.has("M15 own retry reads busy"):
			return m.held(req.Key, r, left)
		case mine && m.has("own retry takes a new fence") && live:
		case mine && (live || m.has("own expired lease is held")):
			if m.has("own retry extends") || m.has("own retry promises the whole TTL") {
				left = req.TTL
			}
			if m.has("own retry extends") {
				r.Expires = now.Add(req.TTL).UnixNano()
			}
			if m.has("own retry brings the old expiry back") {
				r.Expires = min(r.Expires, now.Add(req.TTL).UnixNano())
			}
			lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: r.Fence, TTL: left}
			return nil
		case mine && !live && !m.has("own expired lease is taken again"):
			return fmt.Errorf("model: expired: %w", lockstore.ErrLost)
		case live && r.Holder != req.Holder.Encode() || live && !m.has("F64 same holder shares"):
			if m.has("M12 fence moves on busy") {
				r.Fence++
			}
			if m.has("refused acquire extends") {
				r.Expires += int64(time.Minute)
			}
			return m.held(req.Key, r, left)
		}
		if r.Owner != "" {
			r.Expired = append(r.Expired, r.Owner)
		}
		if m.has("cost: takeover watches first") && r.Owner != "" {
			m.requests += 2
		}
		r.Owner, r.Expires = me, m.end(now, req.TTL)
		r.Holder = req.Holder.Encode()
		switch {
		case m.has("holder is kept as it comes"):
			r.Holder = fmt.Sprintf("%d\t%s\t%s", req.Holder.Since.UnixMilli(), req.Holder.ID, req.Holder.Name)
		case m.has("holder of the first grant stays"):
			if r.Fence != 0 {
				r.Holder = "0\tfirst\tfirst"
			}
		case m.has("caller is not kept"):
			anonymous := req.Holder
			anonymous.Caller = ""
			r.Holder = anonymous.Encode()
		case m.has("holder is not kept"):
			r.Holder = ""
		case m.has("unknown holder gets a name") && req.Holder == (lockstore.Holder{}):
			r.Holder = "0\t\tunknown"
		}
		if !m.has("takeover keeps the fence") || len(r.Expired) == 0 {
			r.Fence = m.nextFence(r.Fence, now)
		}
		lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: r.Fence, TTL: req.TTL}
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

func (m *model) nextFence(last lockstore.Fence, now time.Time) lockstore.Fence {
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

func (m *model) held(key string, r *row, left time.Duration) error {
	switch {
	case m.has("held error is plain"):
		return fmt.Errorf("model: %w", lockstore.ErrHeld)
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
	return &lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolder(r.Holder), Remaining: left}
}

// overAnywhere looks for an ended owner on every key.
func (m *model) overAnywhere(o fullOwner) bool {
	for _, text := range m.rows {
		if r, err := m.decode(text); err == nil && slices.Contains(r.Ended, o) {
			return true
		}
	}
	return false
}

func (m *model) Renew(ctx context.Context, l lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := m.validLease(l); err != nil {
		return 0, err
	}
	if err := m.validTTL(ttl); err != nil {
		return 0, err
	}
	me := fullOwner(l.Owner)
	var trusted time.Duration
	err := m.request(ctx, l.Key, func(r *row, now time.Time) error {
		until := m.end(now, ttl)
		switch {
		case m.has("M07 renew recreates lost") && r.Owner == "":
			r.Owner, r.Fence, r.Expires = me, max(l.Fence, r.Fence), until
			return nil
		case m.has("M07 renew says lost and recreates") && r.Owner == "":
			r.Owner, r.Fence, r.Expires = me, max(l.Fence, r.Fence), until
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("M06 renew says lost and extends") && (r.Owner != me || r.Fence != l.Fence):
			r.Expires = max(r.Expires, until)
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("M08 renew says lost and revives") && r.Owner == me && !r.closed(now):
			r.Expires = until
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("M07 renew recreates deleted") && r.Owner == "" && r.Fence == 0 && len(r.Ended) == 0:
			r.Owner, r.Fence, r.Expires = me, l.Fence, until
			return nil
		case m.has("M06 renew unchecked"):
		case m.has("M06 renew checks the owner alone") && r.Owner == me && r.closed(now):
		case m.has("M06 renew checks the fence alone") && r.Fence == l.Fence && r.closed(now):
		case m.has("M08 renew after expiry") && r.Owner == me && r.Fence == l.Fence:
		case m.has("F24 renew again is lost") && r.Owner == me && until <= r.Expires:
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("renew of abandoned is held") && slices.Contains(r.Ended, me) && r.Owner == "":
			return nil
		case m.has("M36 lost as held") && !m.same(r.Owner, me):
			return m.held(l.Key, r, 0)
		case m.has("owner is over on all keys") && m.overAnywhere(me):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("M14 fence compared in 32 bits") && r.Owner == me && int32(r.Fence) == int32(l.Fence):
		case !m.same(r.Owner, me) || r.Fence != l.Fence || !r.closed(now):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		}
		switch {
		case m.has("M09 renew shortens"):
			r.Expires = until
		case m.has("renew does not extend"):
		case m.has("renew for little more is not written") && until-r.Expires < int64(time.Second):
			trusted = ttl
			return nil
		case m.has("renew takes a new fence"):
			r.Fence++
			r.Expires = max(r.Expires, until)
		case m.has("renew drops the holder"):
			r.Holder = ""
			r.Expires = max(r.Expires, until)
		default:
			r.Expires = max(r.Expires, until)
		}
		trusted = time.Duration(r.Expires - now.UnixNano())
		switch {
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
	if err != nil {
		return 0, err
	}
	return trusted, nil
}

func (m *model) Release(ctx context.Context, l lockstore.Lease) error { return m.release(ctx, l, 0) }

func (m *model) release(ctx context.Context, l lockstore.Lease, stay time.Duration) error {
	if err := m.validLease(l); err != nil {
		return err
	}
	me := fullOwner(l.Owner)
	abandon := l.Fence == 0
	return m.request(ctx, l.Key, func(r *row, now time.Time) error {
		mine := m.same(r.Owner, me)
		free := func() {
			r.Owner, r.Expires = "", 0
			if stay > 0 {
				r.Expires = m.end(now, stay)
			}
			if !slices.Contains(r.Ended, me) {
				r.Ended = append(r.Ended, me)
			}
			if m.has("M11 release deletes the fence") {
				r.Fence = 0
			}
		}
		switch {
		case m.has("M04 release unchecked"):
			free()
		case m.has("M04 release says lost and frees") && !abandon && (!mine || r.Fence != l.Fence):
			free()
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("M04 release again frees the next") && slices.Contains(r.Ended, me):
			free()
		case m.has("release after a takeover is nil") && slices.Contains(r.Expired, me):
		case m.has("abandon frees everybody's") && abandon:
			free()
		case m.has("abandon does nothing") && abandon:
		case m.has("abandon leaves no mark") && abandon && !mine:
		case m.has("abandon of nothing is lost") && abandon && !mine && !slices.Contains(r.Ended, me):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("abandon again is lost") && abandon && slices.Contains(r.Ended, me):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("abandon of an expired lease is lost") && abandon && mine && !r.closed(now):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("abandon lowers the fence") && abandon:
			free()
			r.Fence /= 2
		case m.has("release does nothing"):
		case m.has("release of the unknown is nil") && r.Fence == 0:
			return nil
		case m.has("release leaves a mark on the unknown") && r.Fence == 0 && !abandon:
			r.Ended = append(r.Ended, me)
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case m.has("release of expired closes the key") && mine && !r.closed(now):
			r.Owner, r.Expires = "dead", math.MaxInt64
		case m.has("release of deleted is unknown") && r.Fence == 0 && !abandon:
			return errors.New("model: no row")
		case m.has("closed opens by release") && slices.Contains(r.Ended, me) && r.Owner == "":
			free()
		case m.has("closed opens by abandon") && abandon && r.Owner == "":
			free()
		case m.has("closed again closes longer") && slices.Contains(r.Ended, me) && stay > 0:
			r.Expires = now.Add(stay).UnixNano()
		case m.has("closed by anybody") && stay > 0:
			free()
		case m.has("F25 release again is lost") && slices.Contains(r.Ended, me):
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		case slices.Contains(r.Ended, me):
		case m.has("M05 release ignores the fence") && mine:
			free()
		case mine && abandon, mine && r.Fence == l.Fence && r.closed(now):
			if stay > 0 && m.has("closed until the lease's end") {
				stay = max(stay, time.Duration(r.Expires-now.UnixNano()))
			}
			free()
			if m.has("release says nil and keeps the lease") && !abandon && stay == 0 {
				r.Owner, r.Expires, r.Ended = me, now.Add(time.Minute).UnixNano(), nil
			}
			if m.has("closed to others only") && stay > 0 {
				r.Ended = nil
				r.Owner = me
			}
		case abandon && slices.Contains(r.Expired, me):
		case abandon:
			r.Ended = append(r.Ended, me)
		default:
			return fmt.Errorf("model: %w", lockstore.ErrLost)
		}
		return nil
	})
}

func (m *model) ReleaseAfter(ctx context.Context, l lockstore.Lease, d time.Duration) error {
	if err := m.validTTL(d); err != nil {
		return err
	}
	if err := lockstore.ValidateReleaseAfter(l, d); err != nil && !m.has("F48 closes what was never granted") && l.Fence == 0 {
		return err
	}
	if m.has("closed for nothing") {
		d = 0
	}
	if m.has("closed for half the time") {
		d /= 2
	}
	return m.release(ctx, l, d)
}

func (m *model) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil && !m.has("F48 key is not checked") {
		return lockstore.Status{}, err
	}
	var st lockstore.Status
	err := m.request(ctx, key, func(r *row, now time.Time) error {
		st = lockstore.Status{Key: key, Fence: r.Fence}
		if r.closed(now) || m.has("inspect sees the dead as held") && r.Owner != "" {
			st.Held = true
			st.Holder = lockstore.DecodeHolder(r.Holder)
			st.Remaining = time.Duration(r.Expires - now.UnixNano())
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
		case m.has("inspect clears the dead") && !r.closed(now):
			r.Owner = ""
		case m.has("inspect sees the closed as free") && r.Owner == "":
			st.Held, st.Remaining = false, 0
		case m.has("inspect has a fixed remaining time") && st.Held:
			st.Remaining = 30 * time.Second
		}
		return nil
	})
	if err != nil {
		return lockstore.Status{}, err
	}
	return st, nil
}

// harness gives the suite everything that it can ask for.
func (m *model) harness() Harness {
	set := func(key, text string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rows[m.place(key)] = text
	}
	get := func(key string) string {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.row(key)
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
	return Harness{
		Store: m,
		Requests: func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.requests
		},
		Delete: func(_ *testing.T, key string) { set(key, "") },
		Snapshot: func(_ *testing.T, key string) func() {
			text := get(key)
			return func() { set(key, text) }
		},
		Dump: func(_ *testing.T, key string) string { return get(key) },
		ShiftClock: func(_ *testing.T, d time.Duration) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.shift = d
		},
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
		LoseReplies: func(*testing.T) func() { return m.switched(&m.cut) },
		Hang:        func(*testing.T) func() { return m.switched(&m.hang) },
	}
}

// switched turns a fault on, and returns what turns it off.
func (m *model) switched(fault *bool) func() {
	set := func(on bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		*fault = on
	}
	set(true)
	return func() { set(false) }
}
