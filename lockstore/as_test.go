package lockstore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// plain hides what the store inside can do.
type plain struct{ lockstore.Store }

// wrapper shows the store inside.
type wrapper struct{ lockstore.Store }

func (w wrapper) Unwrap() lockstore.Store { return w.Store }

// looker is a wrapper with a method of its own.
type looker struct{ wrapper }

func (looker) Inspect(context.Context, string) (lockstore.Status, error) {
	return lockstore.Status{Fence: 42}, nil
}

func TestAs(t *testing.T) {
	store := memstore.New(nil)

	found, ok := lockstore.As[*memstore.Store](store)
	assert.True(t, ok)
	assert.Same(t, store, found)

	found, ok = lockstore.As[*memstore.Store](wrapper{wrapper{wrapper{store}}})
	assert.True(t, ok, "through any number of wrappers")
	assert.Same(t, store, found)

	_, ok = lockstore.As[lockstore.Inspector](plain{store})
	assert.False(t, ok, "a wrapper without Unwrap shows nothing")
	_, ok = lockstore.As[lockstore.Inspector](wrapper{plain{store}})
	assert.False(t, ok)
	_, ok = lockstore.As[lockstore.Checker](wrapper{store})
	assert.False(t, ok)

	outer, ok := lockstore.As[lockstore.Inspector](looker{wrapper{store}})
	assert.True(t, ok)
	status, err := outer.Inspect(t.Context(), "k")
	assert.NoError(t, err)
	assert.Equal(t, lockstore.Fence(42), status.Fence, "the outermost wins")

	inner, ok := lockstore.As[lockstore.Completer](looker{wrapper{store}})
	assert.True(t, ok)
	assert.Same(t, store, inner)

	_, ok = lockstore.As[lockstore.Inspector](nil)
	assert.False(t, ok)
	_, ok = lockstore.As[lockstore.Inspector](wrapper{nil})
	assert.False(t, ok)
}
