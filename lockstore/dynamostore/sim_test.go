package dynamostore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// TestTrustNeverOverlaps is package leasesim over the fake of DynamoDB, whose time has whole seconds (M03). The stores' clocks are
// wrong and step, and their tolerances differ (F16 F73). Several replies are lost in a row, or the SDK's next attempt
// gets one.
func TestTrustNeverOverlaps(t *testing.T) {
	t.Parallel()
	leasesim.Sim{
		Part: leasesim.Part{Name: "simulated guards of different tolerances (F73) over DynamoDB's fake", Few: 3, Full: 200},
		Open: func(w *leasesim.World) func(*leasesim.Process) *lockstore.Store {
			service := fakedynamo.New(table)
			w.AtEnd(service.Wait)
			w.Step = takeoverDelay
			return func(p *leasesim.Process) *lockstore.Store {
				p.Streak = 9
				// Random pauses from the process's own numbers, so that a seed can be replayed.
				client := dynamodb.New(dynamostore.ClientOver(way{p, service}, fakeEndpoint, 0).Options(), func(o *dynamodb.Options) {
					o.Retryer = jitter{o.Retryer.(aws.RetryerV2), p}
				})
				var opt dynamostore.Options
				if p.Float() < 0.3 {
					opt.Skew = 100*time.Millisecond + p.UpTo(leasesim.TTL)
				}
				s, err := dynamostore.New(client, table, opt)
				require.NoError(t, err)
				s.SetNow(p.Now)
				s.SetRandom(p.UpTo)
				return s.Store
			}
		},
		// A process whose clock is ahead may die before it corrects the end of its lease (P4).
		Drift: 0.1, Offset: 3 * leasesim.TTL / 2, Slack: 8 * time.Second, Delay: 4*leasesim.TTL + takeoverDelay, Forget: true,
	}.Run(t)
}

// way is a process's way to the service.
type way struct {
	p    *leasesim.Process
	next http.RoundTripper
}

func (s way) RoundTrip(r *http.Request) (*http.Response, error) {
	body := bodyOf(s.p.T, r)
	resp, err := leasesim.Send(r.Context(), s.p, func() (*http.Response, bool, error) {
		sent := r.Clone(context.WithoutCancel(r.Context())) // what was sent arrives
		sent.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := s.next.RoundTrip(sent)
		return resp, err == nil && resp.StatusCode == http.StatusOK, err
	})
	switch {
	case errors.Is(err, leasesim.ErrDown):
		err = errRefused
	case errors.Is(err, leasesim.ErrCut):
		err = errReset
	}
	return resp, err
}

// jitter takes the pauses between attempts from the simulation's random numbers.
type jitter struct {
	aws.RetryerV2
	p *leasesim.Process
}

func (j jitter) RetryDelay(int, error) (time.Duration, error) {
	return j.p.UpTo(100 * time.Millisecond), nil
}
