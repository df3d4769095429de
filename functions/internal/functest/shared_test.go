package functest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// application is one deployed stack of template.yaml: the processes of two of its
// functions, as built for Lambda.
type application struct {
	t                 *testing.T
	withdraw, sfnlock *lambdatest.Environment
	url               string // its LOCK_URL, as the template says
}

// deploy starts the functions of a stack. tables has the URLs of the tables that other
// stacks made, by logical id, and gets those that this stack makes.
func deploy(t *testing.T, d deployment, name string, tables map[string]string) application {
	t.Helper()
	functions, err := d.template.Functions()
	require.NoError(t, err)
	a := application{t: t}
	start := func(id string) *lambdatest.Environment {
		f := functions[slices.IndexFunc(functions, func(f template.Function) bool { return f.ID == id })]
		a.url = f.Environment.Variables["LOCK_URL"]
		variables := map[string]string{"LOCK_URL": a.url, "LOCK_WAIT": "4s", "ACCOUNTS_URL": tables["AccountsTable"]}
		env := []string{"AWS_SECRET_ACCESS_KEY=local", "AWS_SESSION_TOKEN=local"}
		if table, ok := strings.CutPrefix(a.url, "dynamodb://"); ok {
			variables["LOCK_URL"] = tables[table]
		} else {
			var more []string
			variables["LOCK_URL"], more, _ = d.locks(t, "shared", a.url)
			env = append(env, more...)
		}
		for name, value := range variables {
			env = append(env, name+"="+value)
		}
		e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: built(t, f.CodeURI), Name: name + "-" + id, Timeout: 30 * time.Second, Env: env})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, e.Close()) }) // again is fine
		return e
	}
	tables["AccountsTable"] = testservers.Table(t, d.endpoint, "AccountsTable-"+d.name+"-"+name, "account")
	(&Target{Ledger: openLedger(t, tables["AccountsTable"]), t: t, ctx: t.Context()}).Open("7")
	if tables["LockTable"] == "" || d.where.locks == nil {
		tables["LockTable"] = testservers.Table(t, d.endpoint, "LockTable-"+d.name+"-"+name, "key")
	}
	a.withdraw, a.sfnlock = start("WithdrawFunction"), start("SfnlockFunction")
	return a
}

// ask invokes sfnlock, and returns the fence and the error's name.
func (a application) ask(action, execution string, fence int64) (int64, string) {
	a.t.Helper()
	in := fmt.Sprintf(`{"action": %q, "key": "account/7", "execution": "arn:aws:states:eu-central-1:123456789012:execution:payout:%s", "redrive": 0`, action, execution)
	switch action {
	case "acquire":
		in += `, "ttl": 60}`
	default:
		in += fmt.Sprintf(`, "fence": %d}`, fence)
	}
	r, err := a.sfnlock.Invoke(a.t.Context(), []byte(in))
	require.NoError(a.t, err)
	var out struct{ Fence int64 }
	require.NoError(a.t, json.Unmarshal(r.Payload, &out))
	return out.Fence, r.ErrorType
}

// withdrawal is the status of one withdrawal from account 7.
func (a application) withdrawal(event []byte, id string) int {
	r, err := a.withdraw.Invoke(a.t.Context(), []byte(strings.Replace(string(event), "w-1", id, 1)))
	assert.NoError(a.t, err)
	var out struct{ StatusCode int }
	assert.NoError(a.t, json.Unmarshal(r.Payload, &out), "%s", r.Payload)
	return out.StatusCode
}

// section is one run of a function while it had the lock.
type section struct {
	Message    string
	Outcome    string
	Fence      int64
	AcquiredAt time.Time `json:"acquired_at"`
	Hold       float64   `json:"hold_ms"`
}

// sections ends the function, so that its log is whole.
func (a application) sections() (all []section) {
	require.NoError(a.t, a.withdraw.Close())
	for _, line := range a.withdraw.Logs() {
		var s section
		if json.Unmarshal([]byte(line), &s) == nil && s.Message == "lock" && s.Fence > 0 {
			all = append(all, s)
		}
	}
	return all
}

// TestTwoApplicationsShareTheLocks deploys two stacks of real functions, which import
// their locks from one stack. Who holds a key in one stops the other. Two stacks with
// tables of their own do not see each other.
func TestTwoApplicationsShareTheLocks(t *testing.T) {
	event, err := os.ReadFile("../../../events/withdraw.json")
	require.NoError(t, err)
	endpoint := testservers.DynamoDB(t)
	for name, d := range map[string]deployment{
		"one table":                    onTable(t, endpoint, "shared-table", sharedTable(t)),
		"one Valkey":                   onCache(t, endpoint),
		"control: tables of their own": onTable(t, endpoint, "shared-control", ownTable(t)),
	} {
		t.Run(name, func(t *testing.T) {
			shared, tables := d.where.locks != nil, map[string]string{}
			one, two := deploy(t, d, "one", tables), deploy(t, d, "two", tables)
			require.Equal(t, one.url, two.url)

			fence, failed := one.ask("acquire", "first", 0)
			require.Empty(t, failed)
			if !shared {
				require.Equal(t, 200, two.withdrawal(event, "w-1"), "nothing holds it back")
				return
			}
			require.Equal(t, 409, two.withdrawal(event, "w-1"), "the other application holds the key")
			_, failed = two.ask("acquire", "second", 0)
			require.Equal(t, "LockBusy", failed)
			_, failed = two.ask("release", "first", fence)
			require.Empty(t, failed, "the owner is made of the execution, not of the stack")
			require.Equal(t, 200, two.withdrawal(event, "w-1"))

			// Both at once, many times: never two at work.
			const each = 15
			var all sync.WaitGroup
			made := make([]int, 2)
			for i, a := range []application{one, two} {
				all.Go(func() {
					for n := range each {
						if a.withdrawal(event, fmt.Sprint("many-", n)) == 200 {
							made[i]++
						}
					}
				})
			}
			all.Wait()
			require.Equal(t, []int{each, each}, made, "each waits for its turn")
			found := append(one.sections(), two.sections()...)
			require.Len(t, found, 2*each+1)
			slices.SortFunc(found, func(a, b section) int { return a.AcquiredAt.Compare(b.AcquiredAt) })
			for i, s := range found[1:] {
				before := found[i]
				assert.Greater(t, s.Fence, before.Fence)
				assert.False(t, s.AcquiredAt.Before(before.AcquiredAt.Add(time.Duration(before.Hold*float64(time.Millisecond)))), "%v overlaps %v", before, s)
			}
		})
	}
}
