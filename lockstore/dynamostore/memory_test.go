package dynamostore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// A process begins with the row that it remembers. Whatever has happened to the row or to the clock since, the answer is
// as after a read.
func TestOldMemory(t *testing.T) {
	type world struct {
		*testing.T
		service  *fakedynamo.Service
		s, other *dynamostore.Store
		offset   time.Duration
		lease    lockstore.Lease
	}
	renewFor := func(d time.Duration) func(*world) error {
		return func(w *world) error { _, err := w.s.Renew(w.Context(), w.lease, d); return err }
	}
	renew := renewFor(time.Minute)
	mark := func(w *world) error { return w.s.MarkStarted(w.Context(), w.lease) }
	complete := func(w *world) error { return w.s.Complete(w.Context(), w.lease, nil, time.Minute) }
	release := func(w *world) error { return w.s.Release(w.Context(), w.lease) }
	revoke := func(w *world) {
		_, err := w.other.Revoke(w.Context(), lockstore.RevokeRequest{Key: key, Fence: w.lease.Fence})
		require.NoError(w, err)
	}
	taken := func(w *world) { pass(2 * time.Minute); held(w, w.other) }
	over := func(*world) { pass(2 * time.Minute) }
	joins := func(w *world) { join(w.T, w.other) }
	for name, c := range map[string]struct {
		meanwhile     func(w *world)
		ask           func(w *world) error
		lost          bool
		writes, reads int
	}{
		"renew":                 {func(*world) {}, renew, false, 1, 0},
		"renew, one has joined": {joins, renew, false, 1, 0},
		"renew, renewed elsewhere": {func(w *world) {
			_, err := w.other.Renew(w.Context(), w.lease, time.Hour)
			require.NoError(w, err)
		}, renew, false, 2, 0},
		"renew, revoked":                                   {revoke, renew, true, 1, 0},
		"renew for less than is left, revoked":             {revoke, renewFor(time.Second), true, 1, 0},
		"renew, another tried here":                        {func(w *world) { isRefused(w, w.s, request(time.Minute)) }, renew, false, 1, 0},
		"renew, over and taken":                            {taken, renew, true, 0, 1},
		"renew, the clock was set back":                    {func(w *world) { pass(2 * time.Minute); w.offset = -time.Hour }, renew, true, 0, 1},
		"renew, the clock was set forward":                 {func(w *world) { w.offset = time.Hour }, renew, false, 1, 1},
		"mark, over":                                       {over, mark, true, 0, 1},
		"complete, the clock was set":                      {func(w *world) { w.offset = time.Hour }, complete, false, 1, 1},
		"complete, one has joined":                         {joins, complete, false, 1, 0},
		"complete, over and nobody has come":               {over, complete, false, 1, 0},
		"complete, over and taken":                         {taken, complete, true, 1, 0},
		"release, one has joined":                          {joins, release, false, 2, 0},
		"release, one is known to wait":                    {func(w *world) { joins(w); require.NoError(w, renew(w)) }, release, false, 1, 0},
		"release, one is known to wait, the clock was set": {func(w *world) { joins(w); require.NoError(w, renew(w)); w.offset = -30 * time.Second }, release, false, 1, 1},
	} {
		bubble(t, name, func(t *testing.T) {
			w := &world{T: t}
			w.service, w.other = newFake(t)
			w.s = newStore(t, w.service, 0, dynamostore.Options{})
			w.s.SetNow(func() time.Time { return time.Now().Add(w.offset) })
			w.lease = held(t, w.s)
			pass(time.Second)
			c.meanwhile(w)
			costs(t, w.service, c.writes, c.reads, name, func() {
				if err := c.ask(w); c.lost {
					require.ErrorIs(t, err, lockstore.ErrLost)
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}

// The row of the next lease has no result of the one before.
func TestNoResultInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		require.NoError(t, s.Complete(t.Context(), held(t, s), bytes.Repeat([]byte{7}, lockstore.MaxResultBytes), time.Second))
		pass(10 * time.Second)
		lease := held(t, s)
		require.NotContains(t, s.Remembered(key), "result")
		costs(t, service, 1, 0, "a renewal", func() {
			_, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
		})
	})
}

// A write was applied, and its reply has a row that cannot be read. Nothing says that the request was not applied.
func TestDamagedReplyToAnAppliedWrite(t *testing.T) {
	for method := range methods(nil, lockstore.Lease{}) {
		bubble(t, "F54 "+method, func(t *testing.T) {
			service, right := newFake(t)
			lease := held(t, right)
			req := queued(1)
			damages := func(r *http.Request) (*http.Response, error) {
				resp, err := service.RoundTrip(r)
				if err != nil || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateItem") {
					return resp, err
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(`"expires":{"N"`), []byte(`"expires":{"S"`))))
				return resp, err
			}
			s := newStoreOver(t, dynamostore.ClientOver(transport(damages), fakeEndpoint), 0, dynamostore.Options{})
			calls := methods(s, lease)
			calls["acquire"] = func(ctx context.Context) error { _, err := s.Acquire(ctx, req); return err }
			calls["leave"] = func(ctx context.Context) error { return s.Leave(ctx, key, req.Owner) }
			err := calls[method](t.Context())
			require.Equal(t, slices.Contains([]string{"acquire", "renew", "mark started", "complete"}, method), isUnknown(err), "%v", err) // the others need no row
			require.NotErrorIs(t, err, lockstore.ErrCorrupt)
		})
	}
}

// What a later version adds to a place stays there, also when others come and go.
func TestPlaceOfALaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, store := newFake(t)
		rows := rowsOf(service)
		more := func(row item, place int) item {
			return row["queue"].(*types.AttributeValueMemberL).Value[2*place+1].(*types.AttributeValueMemberM).Value
		}
		lease := held(t, store)
		first, _ := join(t, store), join(t, store)
		row := rows.get(t, key)
		require.Equal(t, time.Now().UnixMilli(), number(t, more(row, 2), "since"))
		for place := range 3 {
			maps.Copy(more(row, place), item{"reason": s("transfer"), "later": s(fmt.Sprint("e", place)), "priority": n("7")})
		}
		rows.put(t, key, row)
		pass(time.Second)
		join(t, store)
		require.NoError(t, store.Release(t.Context(), lease))
		extended := acquired(t, store, first)
		require.Equal(t, dump(more(row, 1)), dump(more(rows.get(t, key), 0)), "of who was handed the key")
		require.Equal(t, dump(more(row, 2)), dump(more(rows.get(t, key), 1)), "of who waits")
		require.NoError(t, store.Release(t.Context(), extended))
	})
}

// A mark that DynamoDB writes 20 s after the end of its lease puts no key in doubt, also if the SDK sends it twice, if a copy of it
// arrives after its removal, or if somebody asks before that.
func TestStartThatComesTooLate(t *testing.T) {
	const slow = 22 * time.Second
	for name, faults := range map[string][2]fakedynamo.Fault{ // of the mark and of its removal
		"its reply is lost":                {{In: slow, LoseReply: errReset}, {}},
		"the reply to its removal is lost": {{In: slow}, {LoseReply: errReset}},
		"others ask meanwhile":             {{In: slow}, {}},
		"a copy arrives after its removal": {{In: slow, Repeat: time.Second}, {}},
	} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			other := newStore(t, service, 0, dynamostore.Options{})
			lease := acquired(t, s, request(2*time.Second))
			beforeWrite(service, 1, func() fakedynamo.Fault {
				beforeWrite(service, 1, func() fakedynamo.Fault {
					if req := queued(1); name == "others ask meanwhile" {
						isRefused(t, other, req)
						require.NoError(t, other.Leave(t.Context(), key, req.Owner))
					}
					return faults[1]
				})
				return faults[0]
			})
			require.ErrorIs(t, s.MarkStarted(t.Context(), lease), lockstore.ErrLost)
			service.Wait()
			require.Equal(t, lockstore.Free, inspected(t, other).State)
			held(t, other)
		})
	}
}

// The mark of a second call comes too late. It stays, because the work of the first call may have begun.
func TestStartAfterAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*time.Second))
		require.NoError(t, s.MarkStarted(t.Context(), lease))
		beforeWrite(service, 1, func() fakedynamo.Fault { return fakedynamo.Fault{In: 22 * time.Second} })
		require.ErrorIs(t, s.MarkStarted(t.Context(), lease), lockstore.ErrLost)
		require.Equal(t, lockstore.InDoubt, inspected(t, s).State)
	})
}

// A repeat of a MarkStarted says that the work may begin. A late copy of the first one, which nobody waits for any more, must
// not remove the mark.
func TestStartAndItsRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*time.Second))
		var n atomic.Int64
		service.Fault = func(fakedynamo.Request) (f fakedynamo.Fault) {
			switch n.Add(1) {
			case 1:
				f.LoseReply = errReset
			case 2:
				f.In = 22 * time.Second
			}
			return f
		}
		first := make(chan error)
		go func() { first <- s.MarkStarted(t.Context(), lease) }()
		pass(time.Second)
		require.NoError(t, newStore(t, service, 0, dynamostore.Options{}).MarkStarted(t.Context(), lease), "the repeat")
		require.ErrorIs(t, <-first, lockstore.ErrLost)
		require.Equal(t, lockstore.InDoubt, inspected(t, s).State)
	})
}
