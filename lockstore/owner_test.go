package lockstore_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Whoever knows the owner can release the lease, and whoever knows the address can wake its program, so no way of printing shows
// them. Package secrecytest looks for them in every type.
func TestOwnerIsNeverPrintedWhole(t *testing.T) {
	const secret = "ABCDsecretsecretsecret"
	owner := lockstore.Owner(secret)
	lease := lockstore.Lease{Key: "account/7", Owner: owner, Fence: 1, TTL: time.Second}
	req := lockstore.Request{Key: "account/7", Owner: owner, TTL: time.Second, Address: lockstore.TaskToken(secret)}
	var all []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%+q", "%x", "% X", "%d", "%U", "%z", "%10.30s"} {
		for _, value := range []any{owner, lease, &lease, req, [2]any{owner, req.Address}, [2]any{owner, lockstore.WakeAddress(secret)}, map[lockstore.Owner]lockstore.Owner{owner: owner}} {
			all = append(all, fmt.Sprintf(verb, value))
		}
	}
	for _, value := range []any{owner, req} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("acquired", "what", value)
		all = append(all, string(text), b.String())
	}
	for _, text := range all {
		assert.NotContains(t, text, "secret")
		assert.NotContains(t, text, fmt.Sprintf("%x", "secret"))
		assert.NotContains(t, text, fmt.Sprintf("%X", "secret"))
		assert.Contains(t, text, "ABCD…")
	}
	assert.Equal(t, secret, string(owner), "a store gets it whole")
	assert.Equal(t, "task token of 22 bytes", req.Address.String())
}

func TestOwnerStringOfAShortOneShowsNothing(t *testing.T) {
	for _, o := range []lockstore.Owner{"", "a", "abcd"} {
		assert.Equal(t, "…", o.String())
		assert.Equal(t, "…", fmt.Sprintf("%#v", o))
	}
	assert.Equal(t, "abcd…", lockstore.Owner("abcde").String())
}

func TestNewOwnerIsNew(t *testing.T) {
	seen := map[lockstore.Owner]bool{}
	for range 10_000 {
		o := lockstore.NewOwner()
		require.False(t, seen[o])
		require.GreaterOrEqual(t, len(o), 26, "128 bits of base32")
		require.LessOrEqual(t, len(o), lockstore.MaxOwnerBytes)
		seen[o] = true
	}
}
