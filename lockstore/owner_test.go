package lockstore_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Whoever knows the owner can release the lease, and whoever knows the address can wake its program, so no way of printing shows
// them.
func TestOwnerIsNeverPrintedWhole(t *testing.T) {
	const secret = "ABCDsecretsecretsecret"
	owner := lockstore.Owner(secret)
	lease := lockstore.Lease{Key: "account/7", Owner: owner, Fence: 1, TTL: time.Second}
	req := lockstore.Request{Key: "account/7", Owner: owner, TTL: time.Second, Address: lockstore.TaskToken(secret)}

	shows := func(how, text string) {
		t.Helper()
		assert.NotContains(t, text, "secret", how)
		assert.NotContains(t, text, fmt.Sprintf("%x", "secret"), how)
		assert.NotContains(t, text, fmt.Sprintf("%X", "secret"), how)
		assert.Contains(t, text, "ABCD…", how)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%+q", "%x", "% X", "%d", "%U", "%z", "%10.30s"} {
		for what, value := range map[string]any{
			"owner": owner, "pointer": &owner, "lease": lease, "pointer to lease": &lease, "request": req,
			"address": [2]any{owner, req.Address}, "address of an unknown kind": [2]any{owner, lockstore.WakeAddress(secret)},
			"slice": []lockstore.Owner{owner}, "map": map[lockstore.Owner]lockstore.Owner{owner: owner},
			"any": struct{ Any any }{lease},
		} {
			if what == "pointer" && !strings.ContainsAny(verb, "vsq") {
				continue // an address
			}
			text := fmt.Sprintf(verb, value)
			shows(verb+" of "+what, text)
		}
	}
	shows("error", fmt.Errorf("cannot release %v by %w: %s", lease, lockstore.ErrLost, owner).Error())

	for what, value := range map[string]any{"owner": owner, "request": req} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		shows("JSON of "+what, string(text))
	}
	text, err := xml.Marshal(lease)
	require.NoError(t, err)
	shows("XML", string(text))

	var b bytes.Buffer
	for name, h := range map[string]slog.Handler{"text": slog.NewTextHandler(&b, nil), "JSON": slog.NewJSONHandler(&b, nil)} {
		for what, value := range map[string]any{"owner": owner, "lease": lease, "pointer": &lease, "request": req} {
			b.Reset()
			slog.New(h).Info("acquired", "what", value, slog.Any("any", value))
			if name == "JSON" && what != "owner" && what != "request" { // a Lease is not JSON
				assert.NotContains(t, b.String(), "ABCD")
				continue
			}
			shows("slog "+name+" of "+what, b.String())
		}
	}
	b.Reset()
	require.NoError(t, template.Must(template.New("").Parse("{{.}} {{.Owner}}")).Execute(&b, lease))
	shows("template", b.String())

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
		require.NoError(t, lockstore.Lease{Key: "k", Owner: o}.Validate())
		seen[o] = true
	}
}
