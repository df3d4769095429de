package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ResolveEffect ends the state in doubt of a key: the work had its effect. answer is the JSON text of
// its answer, which every repeat gets; nil keeps none, and a repeat gets a *RepeatNoAnswer.
// fence is that of the run in doubt, as Inspect shows it. Of opt it uses ResultTime, MaxResultBytes and
// Version; they are to be those of the function. The answer is not compared with a Fingerprint.
//
// The error matches lockstore.ErrHeld while the run's lease lasts, lockstore.ErrLost if the
// key is not in doubt with this fence, and lockstore.ErrInvalid for options out of bounds
// and for an answer that is no JSON or too large. If something is kept with this fence
// already, by an earlier call or by the run itself, ResolveEffect returns nil and it stays as it
// is.
func ResolveEffect(ctx context.Context, store lockstore.Store, key string, fence lockstore.Fence, answer []byte, opt Options) error {
	settler, err := settlerOf(store)
	if err != nil {
		return err
	}
	if err := opt.check(); err != nil {
		return lockstore.Invalidf("%w", err)
	}
	f := form{version: opt.Version}
	data := f.noAnswer(bySettler)
	if answer != nil {
		var text bytes.Buffer
		if err := json.Compact(&text, answer); err != nil {
			return lockstore.Invalidf("idempotency: the answer has %d bytes and is no JSON", len(answer))
		}
		if text.Len() > opt.MaxResultBytes {
			return lockstore.Invalidf("idempotency: the answer has %d bytes; want at most MaxResultBytes, %d", text.Len(), opt.MaxResultBytes)
		}
		data = f.answer(text.Bytes())
	}
	return settler.ResolveEffect(ctx, key, fence, data, opt.ResultTime)
}

// ResolveNoEffect ends the state in doubt of a key: the work had no effect, and may run again. The
// errors are those of ResolveEffect. If the key has become free under this fence already, by an
// earlier call or by a release, ResolveNoEffect returns nil. If something is kept, the error matches
// lockstore.ErrLost.
func ResolveNoEffect(ctx context.Context, store lockstore.Store, key string, fence lockstore.Fence) error {
	settler, err := settlerOf(store)
	if err != nil {
		return err
	}
	return settler.ResolveNoEffect(ctx, key, fence)
}

func settlerOf(store lockstore.Store) (lockstore.Resolver, error) {
	settler, ok := lockstore.As[lockstore.Resolver](store)
	if !ok {
		return nil, fmt.Errorf("idempotency: the store (%T) cannot settle a key: it is no lockstore.Resolver", store)
	}
	return settler, nil
}
