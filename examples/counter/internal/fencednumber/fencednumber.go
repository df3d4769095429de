// Package fencednumber has the resource of examples/counter: a number behind
// HTTP that compares fences.
package fencednumber

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ErrStale means that a write with a larger fence came before.
var ErrStale = errors.New("fencednumber: a write with a larger fence came before")

const fenceHeader = "Fence"

// Server answers GET with the number, and takes the number of a PUT unless its header Fence
// is smaller than that of an earlier one: then the answer is 412.
type Server struct {
	// Readers, if it is not nil, is told of each GET, which then waits for the others. So
	// clients without a lock are sure to read before one of them writes.
	Readers *sync.WaitGroup

	mu    sync.Mutex
	value int64
	fence lockstore.Fence
}

// Value is the number.
func (s *Server) Value() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		value := s.Value()
		if s.Readers != nil {
			s.Readers.Done()
			s.Readers.Wait()
		}
		_, _ = fmt.Fprint(w, value) // the client sees that its answer is cut
		return
	}
	value, err := number(r.Body)
	fence, err2 := strconv.ParseInt(r.Header.Get(fenceHeader), 10, 64)
	if err = errors.Join(err, err2); err != nil || r.Method != http.MethodPut {
		http.Error(w, fmt.Sprint("want GET, or PUT with a number and the header Fence: ", err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if lockstore.Fence(fence) < s.fence {
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	s.value, s.fence = value, lockstore.Fence(fence)
}

// Add reads the number of the server, adds one and writes it with the fence. Two that do so at the
// same time lose one of the two updates: that is what a lock is for.
func Add(ctx context.Context, server string, fence lockstore.Fence) (int64, error) {
	value, err := send(ctx, http.MethodGet, server, "", fence)
	if err != nil {
		return 0, err
	}
	value++
	_, err = send(ctx, http.MethodPut, server, strconv.FormatInt(value, 10), fence)
	return value, err
}

func send(ctx context.Context, method, server, body string, fence lockstore.Fence) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, method, server, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set(fenceHeader, strconv.FormatInt(int64(fence), 10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPreconditionFailed:
		return 0, ErrStale
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("fencednumber: the answer to %s is %s", method, resp.Status)
	case method == http.MethodPut:
		return 0, nil
	}
	return number(resp.Body)
}

func number(r io.Reader) (int64, error) {
	text, err := io.ReadAll(io.LimitReader(r, 20))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
