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
	for name, inDoubt := range map[string]idempotency.Doubt{"run again": idempotency.AtLeastOnce, "refuse": idempotency.AtMostOnce} {
		on("a message that comes again is done without work: "+name, t, guard.Options{}, func(t *testing.T, b *bench) {
			o, err := idempotency.New(b.Guard, idempotency.Options{InDoubt: inDoubt})
			require.NoError(t, err)
			runs := map[string]int{}
			var delayed []string
			handler := wrap(settings{b.Guard, key, Once(o, byMessage, func(_ context.Context, lock guard.Lock, m events.SQSMessage) error {
				require.Equal(t, m.Body[:1], lock.Key, "the lock of the batch's key")
				switch runs[m.MessageId]++; m.Body {
				case "b fails":
					return idempotency.NoEffect(errors.New("own"))
				case "d panics":
					panic("boom")
				}
				return nil
			}), func(_ context.Context, m events.SQSMessage, _ time.Duration) error {
				delayed = append(delayed, m.MessageId)
				return nil
			}, 1})
			send := func(messages ...events.SQSMessage) (failed []string) {
				out, err := handler.Handle(t.Context(), event(t, messages))
				require.NoError(t, err)
				for _, f := range out.BatchItemFailures {
					failed = append(failed, f.ItemIdentifier)
				}
				return failed
			}
			for range 2 {
				require.Equal(t, []string{"m2", "m3"}, send(messages("a one", "b fails", "c no call", "a two")...))
			}
			require.Equal(t, map[string]int{"m1": 1, "m2": 2, "m4": 1}, runs)
			require.Equal(t, []string{"m1"}, send(messages("a other text")...), "the same id with other text")
			require.Empty(t, delayed)

			_, err = b.Store.Acquire(t.Context(), lockstore.Request{Key: "message/x", Owner: "another", TTL: time.Minute})
			require.NoError(t, err)
			require.Equal(t, []string{"x"}, send(events.SQSMessage{MessageId: "x", Body: "a"}), "another run works on it")
			require.Equal(t, []string{"x"}, delayed, "as a message whose lock is held")
			for range 2 {
				require.Equal(t, []string{"p"}, send(events.SQSMessage{MessageId: "p", Body: "d panics"}))
				<-time.After(2 * time.Minute)
			}
			require.Equal(t, map[idempotency.Doubt]int{idempotency.AtLeastOnce: 2, idempotency.AtMostOnce: 1}[inDoubt], runs["p"])
		})
	}
}
