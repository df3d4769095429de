package storms

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/lambdalock/lambdalock/lockstore"
)

// board has a row for each key and work. It is what the events speak of, and where the work writes to.
type board struct {
	*httptest.Server
	mu   sync.Mutex
	rows map[string]*row
}

// row is of one work for one key.
type row struct {
	came  int             // events
	wrote int             // the number that the last run has written
	fence lockstore.Fence // of this run
	runs  int             // that have begun
	event string          // of the run that has begun last, and has not written; "" is none
}

func newBoard(t *testing.T) *board {
	b := &board{rows: map[string]*row{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{key}/{work}", b.begin)
	mux.HandleFunc("PUT /{key}/{work}", b.write)
	b.Server = httptest.NewServer(mux)
	t.Cleanup(b.Close)
	return b
}

// of calls f with the row.
func (b *board) of(key, work string, f func(*row)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rows[key+"/"+work]
	if r == nil {
		r = &row{}
		b.rows[key+"/"+work] = r
	}
	f(r)
}

// row is a copy.
func (b *board) row(key, work string) (is row) {
	b.of(key, work, func(r *row) { is = *r })
	return is
}

func (b *board) begin(w http.ResponseWriter, req *http.Request) {
	b.of(req.PathValue("key"), req.PathValue("work"), func(r *row) {
		r.runs++
		r.event = req.FormValue("event")
		fmt.Fprint(w, r.came)
	})
}

// write refuses an older fence: a run that was frozen may write late.
func (b *board) write(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // cut off: the process is gone
	}
	n, err := strconv.Atoi(string(body))
	fence, wrong := strconv.ParseInt(req.URL.Query().Get("fence"), 10, 64)
	if err != nil || wrong != nil {
		http.Error(w, fmt.Sprint(err, wrong), http.StatusBadRequest)
		return
	}
	b.of(req.PathValue("key"), req.PathValue("work"), func(r *row) {
		if lockstore.Fence(fence) < r.fence {
			http.Error(w, "a later run has written", http.StatusConflict)
			return
		}
		r.wrote, r.fence = n, lockstore.Fence(fence)
		if r.event == req.URL.Query().Get("event") {
			r.event = ""
		}
	})
}
