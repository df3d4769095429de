package dynamostore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// throttled is the answer of a table whose capacity is used up.
var throttled = refused("ThrottlingException", "")

func refused(code, message string) fakedynamo.Fault {
	return fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 400, Code: code, Message: message}}
}

// on plans the fault for the requests with these numbers.
func on(fault fakedynamo.Fault, numbers ...int) func(fakedynamo.Request) fakedynamo.Fault {
	return func(r fakedynamo.Request) (f fakedynamo.Fault) {
		if slices.Contains(numbers, r.N) {
			f = fault
		}
		return f
	}
}

// always plans the fault for all requests.
func always(fault fakedynamo.Fault) func(fakedynamo.Request) fakedynamo.Fault {
	return func(fakedynamo.Request) fakedynamo.Fault { return fault }
}

// afterALostReply loses the reply to the first write, and plans the fault for all later requests.
func afterALostReply(fault fakedynamo.Fault) func(fakedynamo.Request) fakedynamo.Fault {
	lost := false
	return func(r fakedynamo.Request) (f fakedynamo.Fault) {
		switch {
		case lost:
			f = fault
		case r.Action == "UpdateItem":
			lost, f.LoseReply = true, errReset
		}
		return f
	}
}

// The reply to the end of a lease is lost, and another owner has had the key when the SDK sends the request again. The
// row remembers that owner. ErrLost would say that the lease was lost before the request.
func TestEndWhoseReplyIsLost(t *testing.T) {
	for _, method := range []string{"release", "complete", "resolve", "resolve, effect"} {
		bubble(t, "F25 "+method, func(t *testing.T) {
			service, s := newFake(t)
			lease := held(t, s)
			if strings.HasPrefix(method, "resolve") {
				require.NoError(t, s.MarkStarted(t.Context(), lease))
				pass(2 * time.Minute)
			}
			beforeWrite(service, 1, func() fakedynamo.Fault {
				beforeWrite(service, 1, func() (f fakedynamo.Fault) {
					pass(time.Minute) // a result is over
					other := newStore(t, service, 0, dynamostore.Options{})
					require.NoError(t, other.Release(t.Context(), held(t, other)))
					return f
				})
				return fakedynamo.Fault{LoseReply: errReset}
			})
			err := methods(s, lease)[method](t.Context())
			require.True(t, isUnknown(err), "%v", err)
			require.Nil(t, service.Fault)
			require.ErrorIs(t, s.Release(t.Context(), lease), lockstore.ErrLost, "in this call no reply was lost")
		})
	}
}

// The first attempt revokes one of several leases, and its reply is lost. Before the second attempt arrives,
// the lease ends, and perhaps another one, which the row remembers in its place.
func TestRevokeWhoseReplyIsLost(t *testing.T) {
	applied := func(err error) bool { return err == nil }
	lost := func(err error) bool { return errors.Is(err, lockstore.ErrLost) }
	for name, c := range map[string]struct {
		atOnce, arrives bool // the first attempt
		lapse           time.Duration
		releases        int // of the owners
		want            func(error) bool
	}{
		"nothing happens":                          {false, true, 0, 0, applied},
		"at once, nothing happens":                 {true, true, 0, 0, applied},
		"it expires":                               {false, true, 2 * time.Minute, 0, applied},
		"its owner releases":                       {false, true, 0, 1, applied},
		"its owner abandons":                       {false, true, 0, 0, isUnknown},
		"both owners release":                      {false, true, 0, 2, isUnknown},
		"at once, both owners release":             {true, true, 0, 2, isUnknown},
		"not applied, both owners release":         {false, false, 0, 2, isUnknown},
		"at once, not applied, its owner releases": {true, false, 0, 1, lost},
	} {
		bubble(t, "F23 "+name, func(t *testing.T) {
			service, s := newFake(t)
			leases := sharing(t, s, 2)
			beforeWrite(service, 1, func() fakedynamo.Fault {
				beforeWrite(service, 1, func() (f fakedynamo.Fault) {
					pass(c.lapse)
					for _, lease := range leases[:c.releases] {
						_ = s.Release(t.Context(), lease)
					}
					if strings.HasSuffix(name, "abandons") {
						_ = s.Abandon(t.Context(), key, leases[0].Owner)
					}
					return f
				})
				f := fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}
				if !c.arrives {
					f.Refuse = throttled.Refuse
				}
				return f
			})
			status, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: leases[0].Fence, OpenAtOnce: c.atOnce, By: lockstore.HolderInfo{Name: "operator"}})
			require.True(t, c.want(err), "%v", err)
			if err == nil {
				require.Equal(t, "operator", status.Holder.Name)
			}
		})
	}
}

// An acquire arrives twice, after its abandon, and the row has forgotten that. Neither takes a lock. The fence
// may be ahead of the time by an earlier clock.
func TestAcquireArrivesAfterItsAbandon(t *testing.T) {
	for slow := 1; slow <= 2; slow++ { // 2 follows the refusal that shows a fence ahead
		bubble(t, fmt.Sprintf("F26 M18 request %d is slow", slow), func(t *testing.T) {
			service, s := newFake(t)
			req := request(time.Minute)
			acquired(t, s, lockstore.Request{Key: "account/8", Owner: lockstore.NewOwner(), TTL: time.Minute}) // now it knows the time
			if slow == 2 {
				fence := time.Now().Add(time.Hour).UnixMicro()
				rowsOf(service).put(t, key, item{"lastFence": n(strconv.FormatInt(fence, 10)), "ttl": n("1")})
			}
			service.Fault = on(fakedynamo.Fault{In: 20 * time.Second, Repeat: time.Second}, service.Requests()+slow)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Acquire(ctx, req)
			require.True(t, isUnknown(err), "%v", err)
			for _, owner := range []lockstore.Owner{req.Owner, lockstore.NewOwner()} { // the row remembers the last one
				require.NoError(t, s.Abandon(t.Context(), key, owner))
			}
			service.Wait()
			require.Equal(t, lockstore.Free, inspected(t, s).State, dump(rowsOf(service).get(t, key)))
		})
	}
}

// M19: a renewal was slow on its way, and arrives when its lease is over, before the write of a takeover. Only the end of the lease
// has changed. The write is refused.
func TestRenewalStopsATakeover(t *testing.T) {
	bubble(t, "acquire", func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(time.Second))
		pass(5 * time.Second)
		beforeWrite(service, 2, func() (f fakedynamo.Fault) { // the first write is refused
			row := rowsOf(service).get(t, key)
			row["expires"] = n(strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
			rowsOf(service).put(t, key, row)
			return f
		})
		isRefused(t, s, request(time.Minute))
		require.Nil(t, service.Fault)
		require.Equal(t, int64(lease.Fence), number(t, rowsOf(service).get(t, key), "fence"))
	})
}

// Without a Date header the store takes nothing over and trusts no lease.
func TestNoDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(time.Second))
		service.NoDate = true
		pass(time.Hour)
		isRefused(t, s, request(time.Second))
		require.NoError(t, s.Release(t.Context(), lease))
		req := request(time.Second)
		_, err := s.Acquire(t.Context(), req)
		require.ErrorContains(t, err, "no Date header")
		require.True(t, isUnknown(err))
		require.NoError(t, s.Abandon(t.Context(), key, req.Owner))
	})
}

// Each failure has the same meaning in each method. The error says each thing once: the words of its class are
// not in its text. If an earlier attempt of a write may have been applied, the outcome is unknown, whatever the failure of the
// last one is. A read that had no answer has no outcome.
func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		fault fakedynamo.Fault
		want  error // nil: unknown
		once  bool  // the SDK sends one attempt
		says  string
	}{
		"F31 throughput exceeded": {fault: refused("ProvisionedThroughputExceededException", ""), want: lockstore.ErrUnavailable},
		"F31 throttled":           {fault: refused("ThrottlingException", ""), want: lockstore.ErrUnavailable},
		"F31 request limit":       {fault: refused("RequestLimitExceeded", ""), want: lockstore.ErrUnavailable},
		"F44 access denied":       {fault: refused("AccessDeniedException", "not authorized"), want: lockstore.ErrUnavailable, once: true, says: "dynamodb:UpdateItem"},
		"F44 unknown client":      {fault: refused("UnrecognizedClientException", ""), want: lockstore.ErrUnavailable, once: true},
		"F71 expired token":       {fault: refused("ExpiredTokenException", ""), want: lockstore.ErrUnavailable, once: true, says: "credentials"},
		"F44 KMS":                 {fault: refused("ValidationException", "KMS key is disabled"), want: lockstore.ErrUnavailable, once: true, says: "KMS"},
		"F44 KMS by its own code": {fault: refused("KMSDisabledException", ""), want: lockstore.ErrUnavailable, once: true, says: "KMS"},
		"F44 table missing":       {fault: refused("ResourceNotFoundException", ""), want: lockstore.ErrCorrupt, once: true, says: "does not exist"},
		"F44 index": {fault: refused("ValidationException", "One or more parameter values were invalid: Type mismatch for Index Key holder Expected: N Actual: S IndexName: by-holder"),
			want: lockstore.ErrUnavailable, once: true, says: "Check names the index"},
		"F44 index, too long": {fault: refused("ValidationException", "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 bytes"),
			want: lockstore.ErrUnavailable, once: true, says: "Check names the index"},
		"F44 another type": {fault: refused("ValidationException", "An operand in the update expression has an incorrect data type"),
			want: lockstore.ErrCorrupt, once: true, says: "it refuses the request as invalid"},
		"F44 key schema":             {fault: refused("ValidationException", "The provided key element does not match the schema"), want: lockstore.ErrCorrupt, once: true, says: `partition key "key"`},
		"F42 internal error":         {fault: fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 500, Code: "InternalServerError"}}},
		"F42 service unavailable":    {fault: fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 503, Code: "ServiceUnavailable"}}},
		"F42 transaction conflict":   {fault: refused("TransactionConflictException", ""), once: true},
		"F42 replicated conflict":    {fault: refused("ReplicatedWriteConflictException", ""), once: true},
		"F42 item collection":        {fault: refused("ItemCollectionSizeLimitExceededException", ""), once: true},
		"F22 reset after sending":    {fault: fakedynamo.Fault{LoseReply: errReset}},
		"F22 end of file":            {fault: fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}},
		"F21 refused":                {fault: fakedynamo.Fault{Unsent: errRefused}, want: lockstore.ErrUnavailable, says: "no connection"},
		"F21 dial timeout":           {fault: fakedynamo.Fault{Unsent: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ETIMEDOUT}}, want: lockstore.ErrUnavailable},
		"F21 no such host":           {fault: fakedynamo.Fault{Unsent: &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}}, want: lockstore.ErrUnavailable, once: true},
		"F21 name on no certificate": {fault: fakedynamo.Fault{Unsent: &tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}}}, want: lockstore.ErrUnavailable, says: "TLS"},
		"F21 no TLS":                 {fault: fakedynamo.Fault{Unsent: tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}}, want: lockstore.ErrUnavailable, says: "TLS"},
		"F21 plain HTTP":             {fault: fakedynamo.Fault{Unsent: &url.Error{Op: "Post", Err: http.ErrSchemeMismatch}}, want: lockstore.ErrUnavailable, says: "TLS"},
	} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			req := request(time.Hour)
			service.Fault = afterALostReply(tc.fault)
			_, err := s.Acquire(t.Context(), req)
			require.True(t, isUnknown(err), "%v", err)
			service.Fault = nil
			lease := acquired(t, s, req)
			service.Fault = always(tc.fault)
			for method, call := range methods(s, lease) {
				before := service.Requests()
				err := call(t.Context())
				if tc.want != nil {
					require.ErrorIs(t, err, tc.want, method)
				} else {
					hasNoAnswer(t, err, method)
				}
				require.ErrorContains(t, err, tc.says, method)
				require.ErrorContains(t, err, table, method)
				for _, class := range []error{lockstore.ErrUnavailable, lockstore.ErrCorrupt} {
					require.NotContains(t, err.Error(), class.Error(), method)
				}
				require.Equal(t, 1, strings.Count(err.Error(), "dynamostore"), "%s: %v", method, err)
				if _, unverified := tc.fault.Unsent.(*tls.CertificateVerificationError); unverified {
					_, found := errors.AsType[*tls.CertificateVerificationError](err)
					require.True(t, found, "what lockctl looks for")
				}
				sent := service.Requests() - before
				require.LessOrEqual(t, sent, 3, method)
				if tc.once {
					require.Equal(t, 1, sent, "%s: a second attempt cannot help", method)
				}
			}
		})
	}
}

// A process that knows neither the time nor a lease reads before it writes. If no read has an answer, nothing was applied.
func TestReadWithoutAnswer(t *testing.T) {
	bubble(t, "F22 F28", func(t *testing.T) {
		service, s := newFake(t)
		service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
			if r.Action == "GetItem" {
				f.LoseReply = errReset
			}
			return f
		}
		all := methods(s, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
		delete(all, "release") // it begins with a write
		for method, call := range all {
			require.ErrorIs(t, call(t.Context()), lockstore.ErrUnavailable, method)
		}
		require.Zero(t, service.Actions()["UpdateItem"])
	})
}

// methods are requests of each kind, about the lease. That of Acquire has a new owner.
func methods(s *dynamostore.Store, lease lockstore.Lease) map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{}
	add := func(name string, r driver.Request) {
		all[name] = func(ctx context.Context) error { _, err := s.Driver().Do(ctx, lease.Key, r); return err }
	}
	for kind := range driver.AwaitTurn {
		r := driver.Request{Kind: kind, Owner: lease.Owner, Fence: lease.Fence, TTL: time.Second, MaxHolders: 1, Result: driver.HiddenBytes("result")}
		switch kind {
		case driver.Acquire:
			r.Owner, r.Fence = lockstore.NewOwner(), 0
		case driver.Renew:
			r.TTL = 2 * time.Hour
		case driver.Abandon, driver.Leave:
			r.Fence = 0
		case driver.Inspect, driver.Resolve, driver.Revoke:
			r.Owner = ""
		}
		add(kind.String(), r)
	}
	add("resolve, effect", driver.Request{Kind: driver.Resolve, Fence: lease.Fence, TTL: time.Second, Effect: true})
	return all
}

// If the context ends between two refused attempts, nothing was applied, and the error
// says so.
func TestContextEndsBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		service.Fault = always(throttled)
		// Replies take no virtual time, so it ends in a pause between attempts.
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		_, err := s.Acquire(ctx, request(time.Minute))
		require.ErrorIs(t, err, context.DeadlineExceeded, "F22")
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
	})
}

// The client gives up a silent connection after half of the time that a call has, and tries another one.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		h := dynamostore.HTTPClient()
		h.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				if n, _ := io.Copy(io.Discard, theirs); n > 0 { // a request came, and no reply
					attempts.Add(1)
				}
			}()
			return ours, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := newStoreOver(t, dynamostore.ClientWith(h, fakeEndpoint), 0, dynamostore.Options{})
		err := s.Release(ctx, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
		require.True(t, isUnknown(err), "%v", err)
		synctest.Wait()
		require.EqualValues(t, 2, attempts.Load(), "F28")
	})
}

// The largest row with a key of 512 bytes, which is the longest one of KeyOrHash, has at most 1024 bytes if nobody waits: one write unit.
func TestOneWriteUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		req := lockstore.Request{
			Key:        lockstore.KeyOrHash(strings.Repeat("k", 2*lockstore.MaxKeyBytes)),
			Owner:      lockstore.NewOwner(),
			TTL:        time.Hour,
			HolderInfo: lockstore.HolderInfo{Name: strings.Repeat("n", 500), ID: strings.Repeat("i", 500), Since: time.Now()},
		}
		require.Len(t, req.Key, 512)
		require.NoError(t, s.Complete(t.Context(), acquired(t, s, req), nil, time.Minute))
		pass(time.Minute + takeoverDelay)
		require.NoError(t, s.Abandon(t.Context(), req.Key, lockstore.NewOwner()))
		req.Owner = lockstore.NewOwner()
		lease := acquired(t, s, req)
		require.NoError(t, s.MarkStarted(t.Context(), lease))
		_, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: req.HolderInfo})
		require.NoError(t, err)
		row := service.Row(req.Key)
		require.Len(t, row, 13)
		require.LessOrEqual(t, rowSize(row), 1024)
	})
}

// rowSize is about as many bytes as DynamoDB counts.
func rowSize(row fakedynamo.Item) (size int) {
	for name, v := range row {
		size += len(name) + sizeOf(v)
	}
	return size
}

func sizeOf(v map[string]any) (size int) {
	for kind, is := range v {
		switch is := is.(type) {
		case string:
			if size = len(is); kind == "N" {
				size = (size+1)/2 + 1 // DynamoDB's rule of thumb, rounded up
			}
		case []any:
			size = 3
			for _, element := range is {
				size += 1 + sizeOf(element.(map[string]any))
			}
		case map[string]any:
			size = 3
			for name, more := range is {
				size += 1 + len(name) + sizeOf(more.(map[string]any))
			}
		}
	}
	return size
}

// The bounds themselves are allowed.
func TestNewRefuses(t *testing.T) {
	client := dynamostore.ClientOver(refusing, fakeEndpoint)
	errorOf := func(client dynamostore.API, table string, skew time.Duration) error {
		_, err := dynamostore.New(client, table, dynamostore.Options{Skew: skew})
		return err
	}
	require.NoError(t, errorOf(client, "abc", dynamostore.MaxSkew))
	require.NoError(t, errorOf(client, strings.Repeat("a", 255), 0))
	for what, err := range map[string]error{
		"F51 nil client":                  errorOf(nil, table, 0),
		"F51 nil pointer":                 errorOf((*dynamodb.Client)(nil), table, 0),
		"F51 nil pointer of another type": errorOf((*ownSender)(nil), table, 0),
		"F48 short table":                 errorOf(client, "ab", 0),
		"F48 long table":                  errorOf(client, strings.Repeat("a", 256), 0),
		"F48 strange table":               errorOf(client, "locks/x", 0),
		"F48 negative skew":               errorOf(client, table, -1),
		"F48 skew of an hour":             errorOf(client, table, time.Hour),
	} {
		require.ErrorIs(t, err, lockstore.ErrInvalid, what)
	}
}

// hasNoAnswer requires the error of a method whose first request got no answer. Those that begin with a write leave their
// outcome unknown, and the others have only read.
func hasNoAnswer(t *testing.T, err error, method string) {
	t.Helper()
	if slices.Contains([]string{"acquire", "renew", "release", "mark started", "complete"}, method) {
		require.True(t, isUnknown(err), "%s: %v", method, err)
		return
	}
	require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
	require.ErrorContains(t, err, "nothing was read", method)
}

func isUnknown(err error) bool {
	for _, known := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		if errors.Is(err, known) {
			return false
		}
	}
	return err != nil
}

// An error begins with the table, its region and its endpoint. Then it says what to do.
func TestErrorsNameTheTable(t *testing.T) {
	missing := func(client dynamostore.API) string {
		s, err := dynamostore.New(client, "missing", dynamostore.Options{})
		require.NoError(t, err)
		return s.Release(t.Context(), lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1}).Error()
	}
	service := fakedynamo.New(table)
	local := dynamostore.ClientOver(service, "http://user:secret@127.0.0.1:8000")
	require.Regexp(t, `^dynamostore: table missing in eu-west-1 at 127\.0\.0\.1:8000: it does not exist in this account, .*; make it, or correct .* \(key "account/7"\): operation error`, missing(local))
	require.NotContains(t, missing(local), "secret")
	require.Regexp(t, `^dynamostore: table missing in eu-west-1: it does not`, missing(dynamostore.ClientOver(service, "")))
	require.Regexp(t, `^dynamostore: table missing, key "account/7": the outcome is unknown`, missing(brokenClient{end: func() {}}), "a client that does not show its options")
}

// An arrival has taken a place, and then the write that grants the key is throttled. Nothing says that nothing was applied.
func TestAFailedSecondWriteIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		pass(time.Minute + takeoverDelay)
		first := service.Requests() + 1
		service.Fault = on(throttled, first+1, first+2, first+3) // of each attempt of the second one
		_, err := s.Acquire(t.Context(), queued(1))
		require.True(t, isUnknown(err), "%v", err)
		require.ErrorIs(t, err, lockstore.ErrContended)
	})
}

// The reply to an arrival at a key with a free seat is lost, another owner takes a seat meanwhile, and all later writes are throttled. The
// row that the owner has seen has it not, but nothing says that the arrival was not applied: the owner is not refused.
func TestAThrottledRepeatIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		acquired(t, s, queued(3))
		beforeWrite(service, 1, func() fakedynamo.Fault {
			acquired(t, s, queued(3))
			beforeWrite(service, 2, func() fakedynamo.Fault {
				service.Fault = always(throttled)
				return throttled
			})
			return fakedynamo.Fault{LoseReply: errReset}
		})
		_, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), queued(3))
		require.True(t, isUnknown(err), "%v", err)
		require.ErrorIs(t, err, lockstore.ErrContended)
	})
}
