package main

import (
	"context"
	"net/http"
	"strconv"
	"sync"
)

const (
	seatHeader  = "Lock-Seat"
	fenceHeader = "Lock-Fence"
)

// seats is the provider's side. It serves one request for each seat at a time. A request with a smaller
// fence than an earlier one of its seat gets 409. Any other ends the earlier request, whose
// lease is over, or whose run has given up on it, and is served when the earlier one has ended.
//
// To compare the fences when a request arrives is enough for a write, which happens at one moment.
// Here a request takes a while, so the one before it has to end, too.
type seats struct {
	serve http.Handler // it has to stop when the context of its request ends

	mu   sync.Mutex
	last []*served // of each seat
}

// served is a request that is served, or was.
type served struct {
	fence int64
	stop  context.CancelFunc
	done  chan struct{}
}

func newSeats(n int, serve http.Handler) *seats {
	return &seats{serve: serve, last: make([]*served, n)}
}

func (s *seats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seat, noSeat := strconv.Atoi(r.Header.Get(seatHeader))
	fence, noFence := strconv.ParseInt(r.Header.Get(fenceHeader), 10, 64)
	if noSeat != nil || noFence != nil || seat < 0 || seat >= len(s.last) {
		http.Error(w, "want a seat that there is, and a fence", http.StatusBadRequest)
		return
	}
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	done := make(chan struct{})
	defer close(done)

	s.mu.Lock()
	before := s.last[seat]
	stale := before != nil && fence < before.fence
	if !stale {
		s.last[seat] = &served{fence, stop, done}
	}
	s.mu.Unlock()

	if before != nil && !stale {
		before.stop()
		<-before.done
	}
	if stale || ctx.Err() != nil { // a later one has come meanwhile, or the client is gone
		http.Error(w, "a later run has the seat", http.StatusConflict)
		return
	}
	s.serve.ServeHTTP(w, r.WithContext(ctx))
}
