package redisstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// queued takes a place behind a holder.
func queued(t *testing.T, s *lockstore.Store, key string) lockstore.Request {
	t.Helper()
	req := newRequest(key)
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	held, ok := err.(*lockstore.Refused)
	require.True(t, ok, "%v", err)
	require.NotZero(t, held.QueuePosition)
	req.Hint = held.Hint
	return req
}

// awaiting begins to wait for the request's turn, with no end of a wait at the server
// that a test could meet.
func awaiting(t *testing.T, s *lockstore.Store, req lockstore.Request) <-chan lockstore.AwaitedTurn {
	t.Helper()
	done := make(chan lockstore.AwaitedTurn, 1)
	go func() { done <- await(t, s, req) }()
	return done
}

// await waits once for the request's turn.
func await(t *testing.T, s *lockstore.Store, req lockstore.Request) lockstore.AwaitedTurn {
	t.Helper()
	news, err := s.AwaitTurn(t.Context(), req, 0)
	assert.NoError(t, err)
	return news
}

// handed is await for an owner that has been handed the key.
func handed(t *testing.T, s *lockstore.Store, req lockstore.Request) lockstore.Lease {
	t.Helper()
	news := await(t, s, req)
	require.NotZero(t, news.Lease.Fence, "no lease: ask %t", news.Ask)
	return news.Lease
}

// releaseSilently hands the key over, and tells nobody.
func releaseSilently(t *testing.T, s *lockstore.Store, lease lockstore.Lease) news {
	t.Helper()
	c, err := driverOf(s).run(t.Context(), lease.Key, lease.Owner, "release", digits(lease.Fence))
	require.NoError(t, err)
	_, handed, err := c.answer(driver.Request{Kind: driver.Release})
	require.NoError(t, err)
	return handed[0]
}

// A wait at the server ends before its context, and before the timeout of a client of another's. A wake-up that gets lost costs the rest
// of one wait.
func TestBoundsOfAWaitAtTheServer(t *testing.T) {
	client := redis.NewClient(&redis.Options{PoolSize: 10, MaxActiveConns: 4, ReadTimeout: 400 * time.Millisecond})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	w := driverOf(storeOn(t, client)).wakeUps
	require.Equal(t, 300*time.Millisecond, w.block)
	require.Equal(t, 2, cap(w.slots), "half of the connections that the client may use")
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		lease, req := acquire(t, s, "k"), queued(t, s, "k")
		all := sentBy(driverOf(s).client)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.NoError(t, storetest.AwaitTurn(ctx, s, "k", req.Owner))
		began, done := time.Now(), awaiting(t, s, req)
		synctest.Wait()
		require.Equal(t, req.Owner, releaseSilently(t, s, lease).owner, "F60 it is handed the key")
		require.True(t, (<-done).Ask)
		require.Equal(t, maxBlock, time.Since(began))
		driverOf(s).wakeUps.block = minBlock
		require.NoError(t, storetest.AwaitTurn(t.Context(), s, "k", req.Owner))
		require.Equal(t, []string{"blpop 0.48", "blpop 0.8", "evalsha 1", "blpop 0.01"}, *all)
		require.NoError(t, failure(s.Acquire(t.Context(), req)))
	})
}

// A hand-over inside one process takes no pause of those that find no connection to wait at the server: F57.
func TestHandOverInOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		driverOf(s).wakeUps.slots = make(chan struct{}, 1)
		lease := acquire(t, s, "k")
		var all sync.WaitGroup
		for range 8 {
			req := queued(t, s, "k")
			all.Go(func() {
				for got := (lockstore.Lease{}); ; {
					if got = await(t, s, req).Lease; got.Fence == 0 {
						got, _ = s.Acquire(t.Context(), req)
					}
					if got.Fence != 0 {
						assert.NoError(t, s.Release(t.Context(), got))
						return
					}
				}
			})
		}
		<-time.After(234567 * time.Microsecond)
		began := time.Now()
		require.NoError(t, s.Release(t.Context(), lease))
		all.Wait()
		require.Zero(t, time.Since(began))
	})
}

// fewConnections is a client of a miniredis.
func fewConnections(t *testing.T, n int) redis.UniversalClient {
	m := newMini(t)
	return openWith(t, mini, func(opt *redis.UniversalOptions) {
		dials(m)(opt)
		opt.PoolSize = n
	})
}

// Many runs of one process wait for a key that is held, and few of them have a connection to wait at the server. A run asks about
// once a second.
func TestRequestsOfIdleWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fewConnections(t, 10)
		s := storeOn(t, client)
		loadScript(t, s)
		acquire(t, s, "k")
		g, err := guard.New(s, guard.Options{Wait: 3 * time.Second})
		require.NoError(t, err)
		const runs = 40
		var all sync.WaitGroup
		for range runs {
			all.Go(func() {
				_ = g.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return nil }) // it is busy
			})
		}
		leasesim.Pass(1500 * time.Millisecond)
		sent := counted(client)
		leasesim.Pass(time.Second)
		t.Logf("%d requests in a second", sent.Load())
		assert.Less(t, sent.Load(), int32(5*runs))
		all.Wait()
	})
}

// An owner that finds no connection to wait at the server gets its element at once, and asks nothing meanwhile: the wait
// of another one in its process is for both.
func TestWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		w := driverOf(s).wakeUps
		w.slots = make(chan struct{}, 1)
		lease := acquire(t, s, "k")
		first, second := queued(t, s, "k"), queued(t, s, "k")
		w.slots <- struct{}{}
		pauses := awaiting(t, s, first)
		synctest.Wait()
		<-w.slots
		waits := awaiting(t, s, second)
		synctest.Wait()
		<-time.After(w.block / 2)
		began, sent := time.Now(), sentBy(driverOf(s).client)
		// Another process hands the key over.
		driverOf(s).push(t.Context(), "k", driverOf(s).list("k", first.Owner), lease.Owner, releaseSilently(t, s, lease).element)
		require.Greater(t, (<-pauses).Lease.Fence, lease.Fence)
		require.Zero(t, time.Since(began))
		require.Equal(t, lockstore.AwaitedTurn{Hint: second.Hint}, <-waits, "it waits on, and asks nothing")
		require.Len(t, *sent, 2, "the release and the push")
		require.Empty(t, w.pausing)
	})
}

// A wait at the server gets the element of an owner that pauses no more: the element goes back to the owner's list.
func TestElementOfAnOwnerThatPausesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		w := driverOf(s).wakeUps
		lease := acquire(t, s, "k")
		first, second := queued(t, s, "k"), queued(t, s, "k")
		list := driverOf(s).list("k", first.Owner)
		w.pausing[list] = &pauser{key: "k"}
		waits := awaiting(t, s, second)
		synctest.Wait()
		delete(w.pausing, list)
		driverOf(s).push(t.Context(), "k", list, lease.Owner, releaseSilently(t, s, lease).element)
		require.Equal(t, lockstore.AwaitedTurn{Hint: second.Hint}, <-waits)
		require.Greater(t, handed(t, s, first).Fence, lease.Fence)
	})
}

// The end of a pause and the owner's element come at the same time: the owner gets the element.
func TestElementAtTheEndOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := driverOf(openMini(t).Store)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string, 1)
		go func() {
			element, _ := s.pause(ctx, "k", "owner")
			got <- element
		}()
		synctest.Wait()
		s.wakeUps.mu.Lock()
		cancel() // the pause ends, and needs the lock
		s.wakeUps.pausing[s.list("k", "owner")].element <- "an element"
		s.wakeUps.mu.Unlock()
		require.Equal(t, "an element", <-got)
	})
}

// The server hangs while an owner waits there, and while a holder tells the owner that it was handed the key, which in a cluster may be a
// request to another node. A wait and a release end in time: F21.
func TestServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := openMini(t)
		s := h.Store
		lease, req := acquire(t, s, "k"), queued(t, s, "k")
		began, goOn := time.Now(), h.Hang(t)
		require.True(t, await(t, s, req).Ask)
		require.LessOrEqual(t, time.Since(began), driverOf(s).wakeUps.block+silence+pollTime*3/2)
		require.Empty(t, driverOf(s).wakeUps.slots)
		goOn()
		driverOf(s).client.AddHook(hook(func(_ context.Context, cmd redis.Cmder) error {
			if words := cmd.Args(); len(words) > 5 && words[5] == "wake" {
				goOn = h.Hang(t)
			}
			return nil
		}))
		began, lease.Hint = time.Now(), "" // so the wake-up is a request of its own
		require.NoError(t, s.Release(t.Context(), lease))
		require.Equal(t, wakeTime, time.Since(began))
		goOn()
		require.NoError(t, failure(s.Acquire(t.Context(), req)))
	})
}

// An element may be old, late or damaged. Then its owner asks the entry.
func TestElements(t *testing.T) {
	at := func(element string, note lockstore.Hint, elapsed time.Duration) driver.Answer {
		return granting(element, driver.Request{Kind: driver.AwaitTurn, Hint: note, Elapsed: elapsed})
	}
	require.Equal(t, driver.Answer{Outcome: driver.Granted, Fence: 8, Seat: 3, TTL: 1650 * time.Millisecond, Hint: "next"}, at("8 2000000 3 next", "7", 100*time.Millisecond))
	for _, element := range []string{"8 2000000 0 ", "8 2000001 0 "} {
		require.Equal(t, driver.Answer{Outcome: driver.Granted, Fence: 8, TTL: driver.LeastTrust}, at(element, "7", 1250*time.Millisecond))
		require.Equal(t, driver.Answer{Outcome: driver.Ask, Hint: "7"}, at(element, "7", 1251*time.Millisecond))
	}
	for element, note := range map[string]lockstore.Hint{
		"7 2000000 0 next": "7", "6 2000000 0 next": "7", "9 2000000 0 next": "", "9 2000000 1 next": "next",
		"9 2000000": "7", "9 x 0 ": "7", "1": "0", "": "7",
	} {
		require.Equal(t, driver.Answer{Outcome: driver.Ask, Hint: note}, at(element, note, 0), element)
	}
}

// A release wakes the first in line and nobody else. A wake-up waits for its owner for 5 s,
// so an owner that begins to wait after it is not too late.
func TestOneWakeUpForARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMini(t).Store
		client := driverOf(s).client
		lease := acquire(t, s, "k")
		waiting := make([]lockstore.Request, 30)
		for i := range waiting {
			waiting[i] = queued(t, s, "k")
		}
		for i, req := range waiting {
			require.NoError(t, s.Release(t.Context(), lease))
			lists := client.Keys(t.Context(), "*\n*").Val()
			require.Equal(t, []string{driverOf(s).list("k", req.Owner)}, lists, "F59 one wake-up for a release")
			require.Equal(t, int64(1), client.LLen(t.Context(), lists[0]).Val())
			require.Equal(t, 5*time.Second, client.PTTL(t.Context(), lists[0]).Val(), "how long a wake-up waits")
			began := time.Now()
			lease = await(t, s, req).Lease
			require.Zero(t, time.Since(began), "a wake-up that came before the wait")
			status, err := s.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, len(waiting)-1-i, status.Waiting)
		}
	})
}

// sentBy are the names of the commands and their numbers of keys that a client sends from now on, one after the other.
func sentBy(client redis.UniversalClient) *[]string {
	all := &[]string{}
	client.AddHook(hook(func(_ context.Context, cmd redis.Cmder) error {
		if len(cmd.Args()) > 2 { // or it is of the handshake
			*all = append(*all, fmt.Sprint(cmd.Name(), " ", cmd.Args()[2]))
		}
		return nil
	}))
	return all
}

// A release wakes the first in the queue with its own request, if the lease's note names it.
// Otherwise the wake-up is a request of its own.
func TestRequestsOfAWakeUp(t *testing.T) {
	testRequestsOfAWakeUp(t, "redis://"+miniredis.RunT(t).Addr())
}

func testRequestsOfAWakeUp(t *testing.T, url string) {
	const own, both = "evalsha 1", "evalsha 2"
	for name, want := range map[string][]string{
		"F59 nothing changes": {both}, "F59 the first has left": {both, own}, "F59 the note is lost": {own, own},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, url)
			lease := acquire(t, s, name)
			holder, woken, second := queued(t, s, name), queued(t, s, name), queued(t, s, name)
			require.NoError(t, s.Release(t.Context(), lease))
			lease = handed(t, s, holder)
			switch name {
			case "F59 the first has left":
				require.NoError(t, s.Leave(t.Context(), name, woken.Owner))
				woken = second
			case "F59 the note is lost":
				lease.Hint = ""
			}
			all := sentBy(driverOf(s).client)
			require.NoError(t, s.Release(t.Context(), lease))
			require.Equal(t, want, *all)
			require.Equal(t, int64(1), openClient(t, url).LLen(t.Context(), driverOf(s).list(name, woken.Owner)).Val())
			require.Greater(t, handed(t, s, woken).Fence, lease.Fence)
		})
	}
}

// A user that may use the keys of some locks only releases them all the same.
func TestListsThatTheUserMayNotTouch(t *testing.T) {
	onBoth(t, "F44 no permission", func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		require.NoError(t, openClient(t, "redis://"+addr).Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">secret", "~lambdalock:shop/*", "+@all").Err())
		s := openStore(t, "redis://shop:secret@"+addr)
		lease := acquire(t, s, "shop/1")
		waiting := []lockstore.Request{queued(t, s, "shop/1"), queued(t, s, "shop/1")}
		for _, req := range waiting {
			require.NoError(t, s.Release(t.Context(), lease))
			require.NoError(t, storetest.AwaitTurn(t.Context(), s, req.Key, req.Owner))
			var err error
			lease, err = s.Acquire(t.Context(), req)
			require.NoError(t, err)
		}
	})
}
