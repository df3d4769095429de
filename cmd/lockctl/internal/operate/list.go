package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	refuseAbove = 1 << 30 // bytes
	// pagePause is between two pages, so that a listing leaves the table or server to those who lock.
	pagePause = time.Second / 5
)

type lister struct {
	operator // its key is the prefix
	states   []string
	limit    int
	yes      bool
	json     bool
	longer   time.Duration // only keys that somebody has for longer
}

func List() *cobra.Command {
	var l lister
	cmd := &cobra.Command{
		Use:   "list [flags] [PREFIX]",
		Short: "List the locks that are held or in doubt",
		Long: `List the keys that begin with PREFIX, which is no pattern, and are held, revoked or in doubt. It
reads the whole table or server, 5 pages in a second at most; above 1 GB on DynamoDB and in SQL
it wants --yes. What changes meanwhile may be missing or old. --longer-than also lists keys whose
AGE is not known. AGE is of the holder that has had the key for the longest time.

` + aboutState + `

With --json each key is a line. Without the last line, {"end":true}, the listing is not complete.

Exit status with --longer-than: 0 if no key is listed, 1 if one is.`,
		Example: `  lockctl list account/
  0 * * * * lockctl list --yes --limit 0 --longer-than 1h  # cron sends a mail if it finds one
  lockctl list --json --limit 0 | jq -r 'select(.state == "held") | .key'`,
		Args:    exit.Args(0, 1),
		PreRunE: l.validate,
	}
	f := cmd.Flags()
	f.StringSliceVar(&l.states, "state", []string{lockstore.Held.String(), lockstore.Revoked.String(), lockstore.InDoubt.String()}, "list keys in these `STATES`")
	f.Lookup("state").DefValue = "held,revoked,in doubt"
	timeflag.Var(f, &l.longer, "longer-than", "", "list only keys that somebody has for longer than `TIME`")
	f.IntVar(&l.limit, "limit", 1000, "end after `N` keys; 0 is no limit")
	f.BoolVar(&l.yes, "yes", false, "read also more than 1 GB")
	f.BoolVar(&l.json, "json", false, "print JSON, a line for each key")
	return l.command(cmd, l.list)
}

type damage struct {
	entries int
	names   []string // of some
}

func (d *damage) add(entries int, names ...string) {
	const most = 10
	d.entries += entries
	d.names = append(d.names, names[:min(len(names), most-len(d.names))]...)
}

// String is "" if nothing is damaged.
func (d damage) String() string {
	if d.entries == 0 {
		return ""
	}
	return fmt.Sprintf("%d entries are damaged or another program's, and not listed, such as %q", d.entries, d.names)
}

var errEnough = errors.New("that is enough")

func (l *lister) validate(_ *cobra.Command, args []string) error {
	if len(l.states) == 0 {
		l.states = []string{""}
	}
	if err := wantStates("--state", l.states...); err != nil {
		return err
	}
	switch {
	case l.longer < 0:
		return exit.WrongUsage("--longer-than is %v; want 0s or more", l.longer)
	case l.limit < 0:
		return exit.WrongUsage("--limit is %d; want 0 or more", l.limit)
	case len(args) > 0 && args[0] != "":
		return lockstore.ValidateKey(args[0])
	}
	return nil
}

func (l *lister) list(ctx context.Context) error {
	if err := l.refuseMuch(ctx); err != nil {
		return err
	}
	listed, damaged := 0, damage{}
	show := (&table{out: l.out}).print
	if l.json {
		show = func(s lockstore.Status) error { return printJSON(l.out, page.KeyOf(s)) }
	}
	// There is no time for each call: one call is the whole listing. Its parts have times
	// of the store's own client.
	err := l.store.List(ctx, l.key, func(p lockstore.Page) error {
		damaged.add(p.Damaged, p.DamagedNames...)
		for _, s := range p.Keys {
			if !l.wants(s) {
				continue
			}
			if listed++; l.limit > 0 && listed > l.limit {
				return errEnough
			}
			if err := show(s); err != nil {
				return err
			}
		}
		return pause.For(ctx, pagePause)
	})
	enough := errors.Is(err, errEnough)
	switch {
	case ctx.Err() != nil:
		return exit.Ended(ctx)
	case err != nil && !enough:
		return stores.Failed(err)
	}
	if damaged.entries > 0 {
		fmt.Fprintln(l.err, "lockctl:", damaged)
	}
	if enough {
		fmt.Fprintf(l.err, "lockctl: there are more; this is --limit %d\n", l.limit)
	} else if l.json {
		if err := printJSON(l.out, map[string]bool{"end": true}); err != nil {
			return err
		}
	}
	if l.longer > 0 && listed > 0 {
		return &exit.Error{Status: exit.No}
	}
	return nil
}

func (l *lister) wants(s lockstore.Status) bool {
	if !slices.Contains(l.states, s.State.String()) {
		return false
	}
	if l.longer == 0 {
		return true
	}
	d, known := age(page.Since(s), time.Now())
	return s.State.Taken() && (!known || d > l.longer)
}

// refuseMuch is an error if a listing reads much, and nobody has said that it may.
func (l *lister) refuseMuch(ctx context.Context) error {
	if l.yes {
		return nil
	}
	e, err := stores.Call(ctx, l.store.Extent)
	if err == nil && e.Bytes > refuseAbove {
		return exit.WrongUsage("a listing reads all of the store, about %d entries, %.1f GB; want --yes", e.Entries, float64(e.Bytes)/1e9)
	}
	return err
}
