package lockstore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestRefused(t *testing.T) {
	by, secret := lockstore.HolderInfo{Name: "withdraw", ID: "8f50"}, lockstore.HiddenBytes("a secret result")
	for state, want := range map[lockstore.State]string{
		lockstore.Reserved:  `lock "account/7" is kept for those who wait, for at most 30s more; place 2 in its queue`,
		lockstore.Held:      `lock "account/7" is held by withdraw (8f50), for at most 30s more; place 2 in its queue`,
		lockstore.Revoked:   `lock "account/7" was revoked by withdraw (8f50), and its lease lasts for at most 30s more; place 2 in its queue`,
		lockstore.Completed: `lock "account/7": the work was done by withdraw (8f50), and its result is stored for at most 30s more (15 bytes)`,
		lockstore.Cooldown:  `lock "account/7": the work was done by withdraw (8f50), and nobody gets the key for at most 30s more`,
		lockstore.InDoubt:   `lock "account/7" is in doubt: withdraw (8f50) started the work and did not say how it ended; somebody has to resolve the key`,
	} {
		e := &lockstore.Refused{Key: "account/7", State: state, Holder: by, QueuePosition: 2, StateEndsIn: 30 * time.Second, Result: secret}
		require.EqualError(t, e, want)
		wrapped := fmt.Errorf("guard: %w", e)
		require.ErrorIs(t, wrapped, lockstore.ErrRefused)
		found, ok := errors.AsType[*lockstore.Refused](wrapped)
		require.True(t, ok)
		assert.Same(t, e, found)
		assert.Equal(t, []error{lockstore.ErrRefused}, matches(wrapped))
		text, err := json.Marshal(e)
		require.NoError(t, err)
		for _, shown := range []string{e.Error(), string(text), fmt.Sprintf("%v %+v %#v", *e, *e, *e), fmt.Sprintf("%s %q %x %d", e.Result, e.Result, e.Result, e.Result)} {
			for _, form := range []string{"%s", "%x", "%X", "%d"} {
				assert.NotContains(t, shown, strings.Trim(fmt.Sprintf(form, []byte("secret")), "[]"))
			}
		}
	}
	e := &lockstore.Refused{Key: "k", State: lockstore.Held, Holder: by, StateEndsIn: time.Second}
	assert.EqualError(t, e, `lock "k" is held by withdraw (8f50), for at most 1s more`, "without a place")
	assert.Equal(t, "a secret result", string([]byte(secret)), "a conversion gives the data")
}

func TestInvalidf(t *testing.T) {
	cause := errors.New("no number")
	err := lockstore.Invalidf("mystore: the port is %q: %w", "x", cause)
	require.EqualError(t, err, `mystore: the port is "x": no number`)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, lockstore.ErrCorrupt)
}
