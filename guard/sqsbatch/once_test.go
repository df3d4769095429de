package sqsbatch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/batchtest"
	"github.com/lambdalock/lambdalock/lockstore"
)

func byMessage(_ context.Context, m events.SQSMessage) (idempotency.Call, error) {
	if m.Body == "c no call" {
		return idempotency.Call{}, errors.New("no field")
	}
	c := idempotency.NewCall("message", m.MessageId)
	c.Fingerprint = m.Body
	return c, nil
}

func TestOnce(t *testing.T) {
	ctx := context.Background()
	for name, inDoubt := range map[string]idempotency.Doubt{"run again": idempotency.AtLeastOnce, "refuse": idempotency.AtMostOnce} {
		batchtest.Bubble("a message that comes again is done without work: "+name, t, func(t *testing.T) {
			b := newBench(t, guard.Options{})
			o, err := idempotency.New(b.Guard, idempotency.Options{InDoubt: inDoubt})
			require.NoError(t, err)
			runs := map[string]int{}
			own := errors.New("own")
			var delayed []string
			delay := func(_ context.Context, m events.SQSMessage, _ time.Duration) error {
				delayed = append(delayed, m.MessageId)
				return nil
			}
			handler := wrap(settings{b.Guard, key, Once(o, byMessage, func(_ context.Context, lock guard.Lock, m events.SQSMessage) error {
				require.Equal(t, m.Body[:1], lock.Key, "the lock of the batch's key")
				runs[m.MessageId]++
				switch m.Body {
				case "b fails":
					return idempotency.NoEffect(own)
				case "d panics":
					panic("boom")
				}
				return nil
			}), delay, 1})
			send := func(bodies ...string) (failed []string) {
				out, err := handler.Handle(ctx, event(t, messages(bodies...)))
				require.NoError(t, err)
				for _, f := range out.BatchItemFailures {
					failed = append(failed, f.ItemIdentifier)
				}
				return failed
			}
			bodies := []string{"a one", "b fails", "c no call", "a two"}
			ids := messages(bodies...)
			require.Equal(t, []string{ids[1].MessageId, ids[2].MessageId}, send(bodies...))
			require.Equal(t, []string{ids[1].MessageId, ids[2].MessageId}, send(bodies...))
			require.Equal(t, map[string]int{ids[0].MessageId: 1, ids[1].MessageId: 2, ids[3].MessageId: 1}, runs)
			require.Equal(t, []string{ids[0].MessageId}, send("a other text"), "the same id with other text")
			require.Empty(t, delayed)

			// Another run works on the same message, which has come twice.
			_, err = b.Store.Acquire(ctx, lockstore.Request{Key: lockstore.Key("message", ids[0].MessageId) + "x", Owner: "another", TTL: time.Minute})
			require.NoError(t, err)
			twice := events.SQSMessage{MessageId: ids[0].MessageId + "x", Body: "a twice"}
			out, err := handler.Handle(ctx, event(t, []events.SQSMessage{twice}))
			require.NoError(t, err)
			require.Len(t, out.BatchItemFailures, 1)
			require.Equal(t, []string{twice.MessageId}, delayed, "as a message whose lock is held")

			panicking := events.SQSMessage{MessageId: "p", Body: "d panics"}
			for range 2 {
				out, err := handler.Handle(ctx, event(t, []events.SQSMessage{panicking}))
				require.NoError(t, err)
				require.Len(t, out.BatchItemFailures, 1)
				<-time.After(2 * time.Minute)
			}
			require.Equal(t, map[idempotency.Doubt]int{idempotency.AtLeastOnce: 2, idempotency.AtMostOnce: 1}[inDoubt], runs["p"])
		})
	}
	t.Run("F51 nil arguments, and a Once that New has not made", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		for _, o := range []*idempotency.Once{nil, new(idempotency.Once)} {
			_, err := Wrap(b.Guard, key, Once(o, byMessage, b.work)).Handle(ctx, event(t, messages("a")))
			require.ErrorContains(t, err, "work is nil")
		}
	})
}
