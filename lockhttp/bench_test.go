package lockhttp

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkPutDelete acquires and releases a lock through the service, one client
// after the other.
func BenchmarkPutDelete(b *testing.B) {
	for name, open := range stores {
		if name == "miniredis" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			s := newService(b, open(b))
			cycle := func(i int) {
				key := "shared/" + strconv.Itoa(i%100)
				had, err := s.Handle(b.Context(), request(cron, "PUT", key, thirty))
				if err != nil || had.StatusCode != http.StatusOK {
					b.Fatal(had, err)
				}
				_, token, _ := strings.Cut(had.Body, `"token":"`)
				token, _, _ = strings.Cut(token, `"`)
				gone, err := s.Handle(b.Context(), request(cron, "DELETE", key, "", "Lock-Token", token))
				if err != nil || gone.StatusCode != http.StatusNoContent {
					b.Fatal(gone, err)
				}
			}
			for i := range 200 {
				cycle(i)
			}
			var took []time.Duration
			i := 0
			for b.Loop() {
				began := time.Now()
				cycle(i)
				took = append(took, time.Since(began))
				i++
			}
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(2*float64(len(took))/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
			b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
		})
	}
}
