package lockstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// parker is a driver that keeps one address, and notes what it is asked.
type parker struct {
	*fake
	address       driver.HiddenBytes
	putErr, taken error
	asked         []string
}

func (p *parker) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	p.asked = append(p.asked, r.Kind.String())
	return p.fake.Do(ctx, key, r)
}

func (p *parker) PutAddress(_ context.Context, key string, owner driver.Owner, address driver.HiddenBytes, d time.Duration) error {
	p.asked, p.address = append(p.asked, fmt.Sprintf("put %s %s for %v", key, string(owner), d)), address
	return p.putErr
}

func (p *parker) TakeAddress(context.Context, string, driver.Owner) (driver.HiddenBytes, error) {
	p.asked = append(p.asked, "take")
	return p.address, p.taken
}

// The address is there before the place. It goes at once if the owner has no place, and then the answer is that of the Acquire.
func TestAcquireOfAParkedPlace(t *testing.T) {
	const put = "put k o for 720h0m0s"
	all, kept := []string{put, "acquire", "take"}, []string{put, "acquire"}
	fails := errors.New("no answer")
	unavailable, corrupt := fmt.Errorf("throttled: %w", lockstore.ErrUnavailable), fmt.Errorf("foreign: %w", lockstore.ErrCorrupt)
	held := driver.Status{State: driver.Held, Remaining: time.Second}
	for name, tc := range map[string]struct {
		answer      driver.Answer
		err, putErr error
		want        error
		asked       []string
	}{
		"granted":                     {driver.Answer{Outcome: driver.Granted, Fence: 7, TTL: time.Second}, nil, nil, nil, all},
		"lost":                        {driver.Answer{Outcome: driver.Lost}, nil, nil, lockstore.ErrLost, all},
		"refused without a place":     {driver.Answer{Outcome: driver.Refused, Status: held}, nil, nil, lockstore.ErrRefused, all},
		"refused with a place":        {driver.Answer{Outcome: driver.Refused, Position: 1, Status: held}, nil, nil, lockstore.ErrRefused, kept},
		"unknown":                     {driver.Answer{}, fails, nil, fails, kept},
		"not applied":                 {driver.Answer{}, unavailable, nil, lockstore.ErrUnavailable, kept}, // the owner may have a place
		"no address":                  {driver.Answer{}, nil, fails, lockstore.ErrUnavailable, []string{put}},
		"no address, a foreign entry": {driver.Answer{}, nil, corrupt, lockstore.ErrCorrupt, []string{put}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &parker{fake: &fake{answer: tc.answer, err: tc.err}, putErr: tc.putErr, taken: fails}
			lease, err := lockstore.New("mystore", wrapper{p}).Acquire(t.Context(), lockstore.Request{
				Key: "k", Owner: "o", TTL: time.Minute, JoinQueue: true, Parked: lockstore.MaxParkedTurn, Address: lockstore.TaskToken("t"),
			})
			require.ErrorIs(t, err, tc.want)
			if tc.putErr != nil {
				require.ErrorIs(t, err, tc.putErr)
			}
			assert.LessOrEqual(t, len(matches(err)), 1)
			assert.Equal(t, tc.want == nil, lease.Fence == 7)
			assert.Equal(t, tc.asked, p.asked)
			assert.Equal(t, string(lockstore.TaskToken("t")), string(p.address))
			if len(p.asked) > 1 {
				assert.Equal(t, driver.Request{Kind: driver.Acquire, Owner: "o", TTL: time.Minute, MaxHolders: 1, Holder: lockstore.HolderInfo{}.Encode(), Join: true, Parked: lockstore.MaxParkedTurn}, p.last)
			}
		})
	}
}

func TestTakeAddress(t *testing.T) {
	p := &parker{fake: &fake{}}
	s := lockstore.New("mystore", wrapper{p})
	take := func() (lockstore.WakeAddress, error) { return s.TakeAddress(t.Context(), "k", "o") }
	address, err := take()
	require.NoError(t, err)
	assert.Empty(t, address)
	p.address = driver.HiddenBytes(lockstore.TaskToken("a-token"))
	address, err = take()
	require.NoError(t, err)
	token, ok := address.TaskToken()
	assert.True(t, ok)
	assert.Equal(t, "a-token", token)
	_, ok = lockstore.WakeAddress("a-token").TaskToken()
	assert.False(t, ok)

	p.address = driver.HiddenBytes("a later version's secret")
	address, err = take()
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
	assert.Equal(t, []error{lockstore.ErrCorrupt}, matches(err))
	assert.NotContains(t, err.Error(), "version's")
	assert.Empty(t, address)
	p.taken = errors.New("no answer")
	_, err = take()
	assert.Equal(t, p.taken, err)

	asked := len(p.asked)
	_, err = s.TakeAddress(t.Context(), "", "o")
	requireInvalid(t, err, "Key")
	_, err = s.TakeAddress(t.Context(), "k", "o o")
	requireInvalid(t, err, "Owner")
	assert.Len(t, p.asked, asked)
}
