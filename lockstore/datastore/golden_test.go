package datastore

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

func TestGoldenEntities(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		f := newFake()
		k := onFake(t, f)
		return golden.Storage{
			Open: func() *lockstore.Store { return store(t, k) },
			Read: func() string {
				var all []string
				for _, e := range f.entities {
					all = append(all, string(e.properties))
				}
				require.Len(t, all, 1)
				return all[0]
			},
			Write: func(text string) {
				e := object{"insert": object{"key": k.key(golden.Key), "properties": json.RawMessage(text)}}
				request, err := json.Marshal(object{"mode": "NON_TRANSACTIONAL", "mutations": []any{e}})
				require.NoError(t, err)
				clear(f.entities) // an insert is for a key without an entity
				f.answer(":commit", request)
			},
		}
	})
}
