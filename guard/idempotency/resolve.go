package idempotency

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ResolveEffect resolves a key in doubt: the work had its effect. result is the JSON text of
// its result, for repeats; nil stores none, and a repeat that needs one gets a *RepeatNoAnswer.
// fence is that of the run in doubt, as Inspect shows it. Of opt it uses ResultTime,
// MaxResultBytes and Version; they are to be those of the function. The result is not compared
// with a Fingerprint.
//
// The error matches lockstore.ErrRefused while a lease of the key lasts, otherwise lockstore.ErrLost if the
// key is not in doubt with this fence, and lockstore.ErrInvalid for options out of bounds
// and for a result that is no JSON or too large. If a result is stored with this fence
// already, by an earlier call or by the run itself, ResolveEffect returns nil and it stays as it
// is.
func ResolveEffect(ctx context.Context, store *lockstore.Store, key string, fence lockstore.Fence, result []byte, opt Options) error {
	if err := opt.check(); err != nil {
		return lockstore.Invalidf("%w", err)
	}
	f := form{version: opt.Version}
	data := f.envelope(noResult, []byte(byOperator))
	if result != nil {
		var text bytes.Buffer
		if err := json.Compact(&text, result); err != nil {
			return lockstore.Invalidf("idempotency: the result has %d bytes and is no JSON", len(result))
		}
		if text.Len() > opt.MaxResultBytes {
			return lockstore.Invalidf("idempotency: the result has %d bytes; want at most MaxResultBytes, %d", text.Len(), opt.MaxResultBytes)
		}
		data = f.envelope(withResult, text.Bytes())
	}
	return store.ResolveEffect(ctx, key, fence, data, opt.ResultTime)
}
