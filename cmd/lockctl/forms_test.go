package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// outcome is one way in which a command may end. ask makes a key ready, and returns the arguments and what the answer
// has to say in each form.
type outcome struct {
	name   string
	status int
	ask    func(t *testing.T, key string) (args, says []string)
}

// outcomes are those of each command with --json.
func (p site) outcomes() []outcome {
	plain := func(says []string, args ...string) func(*testing.T, string) ([]string, []string) {
		return func(t *testing.T, key string) ([]string, []string) {
			all := slices.Clone(args)
			for i := range all {
				all[i] = strings.ReplaceAll(all[i], "KEY", key)
			}
			return all, says
		}
	}
	// of makes a key ready with a lease, whose fence stands in place of FENCE.
	of := func(ready func(t *testing.T, key string) lockstore.Lease, says []string, args ...string) func(*testing.T, string) ([]string, []string) {
		return func(t *testing.T, key string) ([]string, []string) {
			words := strings.NewReplacer("KEY", key, "FENCE", fence(ready(t, key)))
			replaced := func(all []string) (out []string) {
				for _, text := range all {
					out = append(out, words.Replace(text))
				}
				return out
			}
			return replaced(args), replaced(says)
		}
	}
	held := func(_ *testing.T, key string) lockstore.Lease { return p.take(key, "withdraw") }
	completed := func(t *testing.T, key string) lockstore.Lease {
		lease := p.take(key, "withdraw")
		require.NoError(t, p.store.Complete(t.Context(), lease, []byte("{}"), time.Minute))
		return lease
	}
	cooldown := func(t *testing.T, key string) lockstore.Lease {
		lease := p.take(key, "withdraw")
		require.NoError(t, p.store.Complete(t.Context(), lease, nil, time.Minute))
		return lease
	}
	started := func(t *testing.T, key string) lockstore.Lease {
		lease := p.take(key, "withdraw")
		require.NoError(t, p.store.MarkStarted(t.Context(), lease))
		return lease
	}
	revoke := func(t *testing.T, lease lockstore.Lease) lockstore.Lease {
		_, err := p.store.Revoke(t.Context(), lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "ann", ID: "7"}})
		require.NoError(t, err)
		return lease
	}
	revoked := func(t *testing.T, key string) lockstore.Lease { return revoke(t, p.take(key, "withdraw")) }
	doubt := func(t *testing.T, key string) lockstore.Lease {
		lease := p.starts(t, key)
		require.Eventually(t, func() bool {
			status, err := p.store.Inspect(t.Context(), key)
			return err == nil && status.State == lockstore.InDoubt
		}, 10*time.Second, 10*time.Millisecond)
		return lease
	}
	short := func(t *testing.T, key string) lockstore.Lease { // ends while lockctl waits
		lease, err := p.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Second,
			HolderInfo: lockstore.HolderInfo{Name: "withdraw", ID: "4f1c", Since: time.Now()}})
		require.NoError(t, err)
		return lease
	}
	several := func(t *testing.T, key string) (last lockstore.Lease) {
		for _, name := range []string{"first", "second"} {
			var err error
			last, err = p.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, MaxHolders: 3, HolderInfo: lockstore.HolderInfo{Name: name, ID: "4f1c"}})
			require.NoError(t, err)
		}
		return last
	}
	holder := []string{"withdraw", "4f1c", "FENCE"}
	down, user := "redis://127.0.0.1:1", "redis://looker:pw@"+strings.TrimPrefix(p.url, "redis://")
	all := []outcome{
		{"show, held", 0, of(held, append(holder, "held"), "show", "KEY")},
		{"show, free", 0, plain([]string{"free"}, "show", "KEY")},
		{"show, completed", 0, of(completed, append(holder, "completed"), "show", "KEY")},
		{"show, cooldown", 0, of(cooldown, append(holder, "cooldown"), "show", "KEY")},
		{"show, in doubt", 0, of(doubt, []string{"in doubt", "pay", "7a", "FENCE"}, "show", "KEY")},
		{"show, revoked", 0, of(revoked, []string{"revoked", "ann", "FENCE"}, "show", "KEY")},
		{"show, several", 0, of(several, []string{"first", "second", "3", "FENCE"}, "show", "KEY")},
		{"show -q, held", 0, of(held, nil, "show", "-q", "KEY")},
		{"show -q, free", exit.No, plain(nil, "show", "-q", "KEY")},
		{"show -q, completed", exit.No, of(completed, nil, "show", "-q", "KEY")},
		{"show, damaged", exit.Damaged, plain([]string{"not a lock"}, "show", "foreign")},

		{"list, found", 0, of(held, []string{"withdraw", "4f1c", "KEY", "held"}, "list", "KEY")},
		{"list, several", 0, of(several, []string{"first", "second"}, "list", "KEY")},
		{"list, none", 0, plain(nil, "list", "KEY")},
		{"list, for longer", exit.No, of(held, []string{"withdraw", "4f1c", "KEY"}, "list", "--longer-than", "1ms", "KEY")},
		{"list, none for longer", 0, of(held, nil, "list", "--longer-than", "1h", "KEY")},
		{"list, sorted and for longer", exit.No, of(held, []string{"withdraw", "4f1c", "KEY"}, "list", "--sort", "age", "--longer-than", "1ms", "KEY")},
		{"list, cut", 0, of(func(t *testing.T, key string) lockstore.Lease {
			p.take(key+"2", "other")
			return p.take(key+"1", "other")
		}, []string{"there are more; this is --limit 1"}, "list", "--limit", "1", "KEY")},
		{"list, cut and for longer", exit.No, of(func(t *testing.T, key string) lockstore.Lease {
			p.take(key+"2", "other")
			return p.take(key+"1", "other")
		}, []string{"there are more; this is --limit 1"}, "list", "--limit", "1", "--longer-than", "1ms", "KEY")},
		{"list, with a damaged entry", 0, plain([]string{"1 entry is damaged or another program's, and not listed", "lambdalock:foreign"}, "list", "foreign")},

		{"watch, held", 0, of(held, append(holder, "held"), "watch", "--until", "held", "KEY")},
		{"watch, in doubt", 0, of(doubt, []string{"in doubt", "pay", "7a", "FENCE"}, "watch", "--until", "in doubt", "KEY")},
		{"watch, damaged", exit.Damaged, plain([]string{"not a lock"}, "watch", "foreign")},

		{"check, findings", exit.No, plain([]string{"eviction policy is allkeys-lru", "set maxmemory-policy to noeviction"}, "check")},
		{"check, findings beside a key", exit.No, of(held, []string{"eviction policy is allkeys-lru", "set maxmemory-policy to noeviction"}, "check", "KEY")},

		{"revoke, done", 0, of(held, []string{"withdraw", "4f1c"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke, in doubt then", 0, of(started, []string{"withdraw", "4f1c"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke --wait, open", 0, of(short, []string{"withdraw", "4f1c"}, "revoke", "--wait", "--fence", "FENCE", "KEY")},
		{"revoke, open at once", 0, of(held, []string{"withdraw", "4f1c"}, "revoke", "--open-at-once", "--yes", "--fence", "FENCE", "KEY")},
		{"revoke, one of several", 0, of(several, []string{"first", "second"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke, already", exit.No, of(revoked, []string{"was revoked already", "ann"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke, not held", exit.No, plain([]string{"is not held"}, "revoke", "--fence", "7", "KEY")},
		{"revoke, completed", exit.No, of(completed, []string{"has the state completed, has no lease to revoke"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke, in doubt", exit.No, of(doubt, []string{"is in doubt"}, "revoke", "--fence", "FENCE", "KEY")},
		{"revoke, started work at once", exit.No, of(started, []string{"cannot be opened at once"}, "revoke", "--open-at-once", "--yes", "--fence", "FENCE", "KEY")},
		{"revoke, changed hands", exit.Busy, of(held, []string{"changed hands"}, "revoke", "--fence", "7", "KEY")},
		{"revoke, no fence", exit.Usage, of(held, []string{"want --fence"}, "revoke", "KEY")},

		{"resolve, effect", 0, of(doubt, []string{"resolved"}, "resolve", "--fence", "FENCE", "KEY", "effect")},
		{"resolve, no effect", 0, of(doubt, []string{"resolved"}, "resolve", "--fence", "FENCE", "KEY", "no-effect")},
		{"resolve, completed before", 0, of(completed, []string{"ompleted"}, "resolve", "--fence", "FENCE", "KEY", "effect")},
		{"resolve, held", exit.Busy, of(started, []string{"is held by withdraw"}, "resolve", "--fence", "FENCE", "KEY", "effect")},
		{"resolve, not in doubt", exit.No, plain([]string{"is not in doubt"}, "resolve", "--fence", "7", "KEY", "effect")},
		{"resolve, another fence", exit.No, of(doubt, []string{"is in doubt with the fence FENCE, and not with 7"}, "resolve", "--fence", "7", "KEY", "effect")},

		{"run, busy", exit.Busy, of(held, []string{"busy: held by withdraw (4f1c)"}, "run", "-n", "KEY", "--", "true")},
		{"run, busy with a status", 3, of(held, []string{"busy: held by withdraw (4f1c)"}, "run", "-n", "-E", "3", "KEY", "--", "true")},
		{"run, still busy", exit.Busy, of(held, []string{"busy: held by withdraw (4f1c)"}, "run", "-w", "0.1", "KEY", "--", "true")},
		{"run, revoked", exit.Busy, of(revoked, []string{"busy: revoked by ann (7)"}, "run", "-n", "KEY", "--", "true")},
		{"run, done already", exit.Done, of(cooldown, []string{"done already: the work was done by withdraw (4f1c)"}, "run", "-n", "--at-least-for", "1m", "KEY", "--", "true")},
		{"run, in doubt", exit.InDoubt, of(doubt, []string{"in doubt: nobody knows how the work of pay (7a)"}, "run", "-n", "KEY", "--", "true")},
		{"run, damaged", exit.Damaged, plain([]string{"not a lock"}, "run", "-n", "foreign", "--", "true")},
	}
	for command, args := range map[string][]string{
		"show": {"KEY"}, "list": {"KEY"}, "watch": {"KEY"}, "check": {}, "revoke": {"--fence", "1", "KEY"}, "resolve": {"--fence", "1", "KEY", "effect"}, "run": {"-n", "KEY", "--", "true"},
	} {
		at := func(url string) []string { return append([]string{command, "--store", url}, args...) }
		all = append(all,
			outcome{command + ", no permission", exit.Permission, plain([]string{"NOPERM"}, at(user)...)},
			outcome{command + ", no such store", exit.Config, plain([]string{"no store for the scheme"}, at("etcd://x")...)},
			outcome{command + ", wrong flag", exit.Usage, plain([]string{"--timeout is 1ms; want 100ms to 5m0s"}, append([]string{command, "--timeout", "1ms"}, args...)...)})
		if command != "run" { // which asks for five seconds
			all = append(all, outcome{command + ", store unavailable", exit.Unavailable, plain([]string{"connection refused"}, at(down)...)})
		}
	}
	return all
}

// asked runs a command in this process, as main does.
func (p site) asked(t *testing.T, args []string) result {
	t.Helper()
	if args[0] == "run" { // which starts itself again
		return p.lockctl(args...)
	}
	if !slices.Contains(args, "--store") {
		args = append(slices.Clone(args), "--store", p.url)
	}
	var out, stderr bytes.Buffer
	root := command()
	root.SetArgs(args)
	root.SetIn(new(bytes.Buffer))
	root.SetOut(&out)
	root.SetErr(&stderr)
	cmd, err := execute(t.Context(), root)
	if _, silent := errors.AsType[*exit.Silent](err); err != nil && !silent {
		printError(cmd, err)
	}
	return result{exit.Status(err), out.String(), stderr.String()}
}

// values are the texts and numbers in lines of JSON; a line that is no JSON is there as it is.
func values(text string) string {
	var b strings.Builder
	var add func(v any)
	add = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				fmt.Fprint(&b, name, " ")
				add(v[name])
			}
		case []any:
			for _, one := range v {
				add(one)
			}
		default:
			fmt.Fprintln(&b, v)
		}
	}
	for line := range strings.Lines(text) {
		var v any
		if json.Unmarshal([]byte(line), &v) != nil {
			v = line
		}
		add(v)
	}
	return b.String()
}

var changing = regexp.MustCompile(`(\d+(\.\d+)?(ms|[hms]))+\b|\d{4}-[\dT:-]+Z|\d{13,}`)

// Each command has the same exit status in each form, and says no less: what it is asked for, why it has failed, and
// what else stands on standard error.
func TestFormsOfAnswers(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
	p := at(t, "redis://"+addr)
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(t.Context(), "lambdalock:foreign", "x", 0).Err())
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "looker", "on", ">pw", "~*", "+ping", "+hello", "+client").Err())
	commands := map[string]bool{}
	for _, c := range p.outcomes() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var errs []string
			for _, form := range []string{"text", "json"} {
				key := fmt.Sprintf("forms/%s/%s/", strings.ReplaceAll(c.name, " ", "-"), form)
				args, says := c.ask(t, key)
				if form == "json" {
					args = append([]string{args[0], "--json"}, args[1:]...)
				}
				r := p.asked(t, args)
				assert.Equal(t, c.status, r.status, "%s: %s%s", form, r.out, r.err)
				all := r.out + r.err
				if form == "json" {
					for line := range strings.Lines(r.out) {
						assert.True(t, json.Valid([]byte(line)), line)
					}
					all = values(all)
				}
				for _, part := range says {
					assert.Contains(t, all, part, form)
				}
				if len(says) == 0 && form == "text" {
					assert.Empty(t, all)
				}
				err := r.err
				if form == "json" {
					var e struct {
						Error  string
						Status int
					}
					lines := strings.SplitAfter(strings.TrimSuffix(err, "\n"), "\n")
					if last := lines[len(lines)-1]; json.Unmarshal([]byte(last), &e) == nil {
						assert.Equal(t, c.status, e.Status)
						err = strings.Join(lines[:len(lines)-1], "") + "lockctl: " + e.Error + "\n"
					}
				} else if args[0] == "run" { // that it waits is for people
					err = regexp.MustCompile("(?m)^lockctl: waiting for .*\n").ReplaceAllString(err, "")
				}
				errs = append(errs, changing.ReplaceAllString(strings.ReplaceAll(err, key, "KEY"), "*"))
			}
			assert.Equal(t, errs[0], errs[1], "what went wrong, in both forms")
		})
		commands[strings.FieldsFunc(c.name, func(r rune) bool { return r == ' ' || r == ',' })[0]] = true
	}
	for _, cmd := range command().Commands() {
		if cmd.Flags().Lookup(stores.JSONFlag) != nil {
			assert.True(t, commands[cmd.Name()], "add the outcomes of %s to this test", cmd.Name())
		}
	}
}
