package operate

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/ui"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

type viewer struct {
	lister
	names []string // keys or prefixes
	keys  bool
	write bool
	every time.Duration
}

func UI() *cobra.Command {
	v := viewer{every: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "ui [flags] [PREFIX...]",
		Short: "Show locks in your browser: who holds them, who waits, since when",
		Long: `Print an address on 127.0.0.1, and serve a page there until Ctrl-C. It shows the keys that begin with a
PREFIX and are held, reserved, revoked or in doubt, the longest waiting first; a row opens. With
--keys it shows these keys alone, in every state.

The page reads as lockctl list does, the whole table or server, and says what that costs in a minute.
With --keys it reads these keys alone. A page in the background reads nothing, and pages that are
open at the same time read once. The address is secret: who has it sees the keys, and with --write
ends leases.`,
		Example: `  lockctl ui account/
  lockctl ui --keys --every 1s account/7 charge/7
  lockctl ui --write`,
		Args: cobra.ArbitraryArgs,
		PreRunE: func(_ *cobra.Command, args []string) error {
			v.names = args
			return v.validate()
		},
	}
	f := cmd.Flags()
	f.BoolVar(&v.keys, "keys", false, "the arguments are keys, and no prefixes")
	timeflag.Var(f, &v.every, "every", "", "read once in this `TIME`, 1s to 1h")
	f.BoolVar(&v.write, "write", false, "let the page revoke leases and resolve keys in doubt")
	f.BoolVar(&v.yes, "yes", false, "read also more than 1 GB")
	return v.command(cmd, v.serve)
}

func (v *viewer) validate() error {
	v.names = slices.Compact(slices.Sorted(slices.Values(v.names)))
	for _, name := range v.names {
		if err := lockstore.ValidateKey(name); err != nil && (name != "" || v.keys) {
			return err
		}
	}
	if v.keys && len(v.names) == 0 {
		return exit.WrongUsage("--keys wants a key")
	}
	return exit.Bounds("--every", v.every, time.Second, time.Hour)
}

func (v *viewer) serve(ctx context.Context) error {
	p := ui.Page{Store: v.Address(), Which: "Keys that are held, reserved, revoked or in doubt", Every: v.every, Read: v.readListing}
	if v.keys {
		p.Which, p.Read = "Keys "+strings.Join(v.names, ", "), v.readKeys
		if _, err := v.readKeys(ctx); err != nil { // a wrong address is told here, and not by the page
			return err
		}
	} else if err := v.refuseMuch(ctx); err != nil {
		return err
	} else if len(v.names) > 0 {
		p.Which += ", and begin with " + strings.Join(v.names, " or ")
	}
	if v.write {
		p.Act, p.Texts = v.act, map[string]string{
			"revoke": aboutRevoke, "atOnce": aboutAtOnce, "resolve": aboutResolve, "noEffect": aboutNoEffect,
			"effect": "it had its effect: nobody runs the work again for " + resultTime.String() + ". A repeat gets the error RepeatNoAnswer, or, if the work has no result, no error. If you have the result, use lockctl resolve --result.",
		}
	}
	return p.Serve(ctx, v.out)
}

func (v *viewer) readKeys(ctx context.Context) (r ui.Reading, err error) {
	var d damage
	for _, key := range v.names {
		o := v.operator
		o.key = key
		status, err := o.inspect(ctx)
		switch {
		case err == nil:
			r.Keys = append(r.Keys, status)
		case exit.Status(err) == exit.Damaged:
			d.add(1, key)
		default:
			return r, err
		}
	}
	r.Requests, r.Damaged = len(v.names), d.String()
	if v.store.Name() == "dynamostore" {
		r.ReadUnits = float64(r.Requests) // a row of up to 4 kB
	}
	return r, nil
}

var shownStates = []lockstore.State{lockstore.Reserved, lockstore.Held, lockstore.Revoked, lockstore.InDoubt}

// readListing reads the keys that begin with one of the prefixes.
func (v *viewer) readListing(ctx context.Context) (r ui.Reading, err error) {
	var d damage
	prefix := "" // a listing takes one
	if len(v.names) == 1 {
		prefix = v.names[0]
	}
	err = v.store.List(ctx, prefix, func(p lockstore.Page) error {
		r.Requests, r.ReadUnits = r.Requests+p.Requests, r.ReadUnits+p.ReadUnits
		d.add(p.Damaged, p.DamagedNames...)
		for _, s := range p.Keys {
			wanted := len(v.names) == 0 || slices.ContainsFunc(v.names, func(prefix string) bool { return strings.HasPrefix(s.Key, prefix) })
			if wanted && slices.Contains(shownStates, s.State) {
				r.Keys = append(r.Keys, s)
			}
		}
		return pause.For(ctx, pagePause)
	})
	r.Damaged = d.String()
	return r, stores.Failed(err)
}

// act runs a command for the page, and returns what it prints.
func (v *viewer) act(ctx context.Context, a ui.Action) (string, error) {
	var out bytes.Buffer
	o := v.operator
	o.key, o.out, o.err = a.Key, exit.Writer{To: &out}, exit.Writer{To: &out}
	o.store = o.waking(v.store) // its warnings are for the page, too
	resolve := &resolver{operator: o, how: a.Do, fence: a.Fence, time: resultTime}
	check, run := resolve.check, resolve.run
	if a.Do == "revoke" {
		revoke := &revoker{operator: o, fence: a.Fence, openAtOnce: a.AtOnce}
		check, run = revoke.check, revoke.run
	}
	err := check()
	if err == nil {
		err = run(ctx)
	}
	return out.String(), err
}
