package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	leastRate = 0.001 // pages in a second
	mostRate  = 1000

	askAbove = 1 << 30 // bytes
	// unitPrice is dollars for a read unit, on demand in us-east-1.
	unitPrice = 0.125 / 1_000_000
)

type lister struct {
	stores.Settings
	states []string
	limit  int
	rate   float64
	yes    bool
	sort   string
	longer time.Duration // only keys that somebody has for longer

	width    int
	in       io.Reader
	out, err io.Writer
	progress io.Writer // a terminal, or nil
	unseen   bool      // standard error is no terminal: only what went wrong is said there
}

// Orders of --sort.
const (
	sortAge     = "age"
	sortKey     = "key"
	sortWaiting = "waiting"
)

var orders = []string{sortAge, sortKey, sortWaiting}

var sorts = map[string]func(a, b lockstore.Status) int{
	sortAge: func(a, b lockstore.Status) int { // an unknown age may be long
		return since(a).Compare(since(b))
	},
	sortKey:     func(a, b lockstore.Status) int { return strings.Compare(a.Key, b.Key) },
	sortWaiting: func(a, b lockstore.Status) int { return cmp.Compare(b.Waiting, a.Waiting) },
}

// List is lockctl list.
func List() *cobra.Command {
	var l lister
	cmd := &cobra.Command{
		Use:   "list [flags] [PREFIX]",
		Short: "List the locks that are held or in doubt",
		Long: `List the keys that begin with PREFIX and are held, revoked or in doubt; without PREFIX all
of them. PREFIX is no pattern: "*" in it stands for itself.

It reads the whole table or server, page by page. At a terminal it says first how large that
is and, on DynamoDB, what it costs. It asks above 1 GB on DynamoDB and PostgreSQL. A key that
was held from the beginning to the end is listed, and once. What changes meanwhile may be
missing or old. With --sort nothing is printed before all is read, and --limit takes the first
keys of that order. --longer-than also lists keys whose AGE is not known. If several hold a
key, AGE is of the one that has had it for the longest time. HOLDER is cut at the width of the
terminal, or at COLUMNS.

` + aboutState + `

With --json each key is a line, as it comes. The last line is
{"end":true,"scanned":N,"requests":N}; without it the listing is not complete.

Exit status with --longer-than: 0 if no key is listed, 1 if one is.`,
		Example: `  lockctl list account/
  lockctl list --longer-than 10m --sort age
  0 * * * * lockctl list --yes --limit 0 --longer-than 1h  # cron sends a mail if it finds one
  lockctl list --json --limit 0 | jq -r 'select(.state == "held") | .key'`,
		Args:              exit.Args(0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			l.in, l.out, l.err = cmd.InOrStdin(), output(cmd), warnings(cmd)
			if to := cmd.ErrOrStderr(); isTerminal(to) {
				l.progress = to
			} else {
				l.unseen = true
			}
			l.width = width(cmd.OutOrStdout())
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return l.run(cmd.Context(), prefix)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&l.states, "state", []string{lockstore.Held.String(), lockstore.Revoked.String(), lockstore.InDoubt.String()}, "list keys in these `STATES`")
	f.Lookup("state").DefValue = "held,revoked,in doubt"
	f.StringVar(&l.sort, "sort", "", "read all, then print in this `ORDER`: "+strings.Join(orders, ", "))
	timeflag.Var(f, &l.longer, "longer-than", "", "list only keys that somebody has for longer than `TIME`")
	f.IntVar(&l.limit, "limit", 1000, "end after `N` keys; 0 is no limit")
	f.Float64Var(&l.rate, "rate", 5, "read `N` pages in a second at most, 0.001 to 1000")
	f.BoolVar(&l.yes, "yes", false, "do not ask")
	l.AddTo(f)
	complete(cmd, "state", states)
	complete(cmd, "sort", orders)
	return cmd
}

var errEnough = errors.New("that is enough")

func (l *lister) run(ctx context.Context, prefix string) error {
	if len(l.states) == 0 {
		return exit.WrongUsage("--state is empty; want some of %s", strings.Join(states, ", "))
	}
	for _, s := range l.states {
		if !slices.Contains(states, s) {
			return exit.WrongUsage("--state is %.40q; want some of %s", s, strings.Join(states, ", "))
		}
	}
	switch {
	case l.sort != "" && sorts[l.sort] == nil:
		return exit.WrongUsage("--sort is %.40q; want one of %s", l.sort, strings.Join(orders, ", "))
	case l.longer < 0:
		return exit.WrongUsage("--longer-than is %v; want 0s or more", l.longer)
	}
	if l.limit < 0 {
		return exit.WrongUsage("--limit is %d; want 0 or more", l.limit)
	}
	if !(l.rate >= leastRate && l.rate <= mostRate) { // NaN is neither less nor more
		return exit.WrongUsage("--rate is %v; want %v to %v", l.rate, leastRate, mostRate)
	}
	if prefix != "" {
		if err := lockstore.ValidateKey(prefix); err != nil {
			return &exit.Error{Status: exit.Usage, Err: err}
		}
	}
	store, err := l.Open(ctx)
	if err != nil {
		return err
	}
	return l.list(ctx, store, prefix)
}

// list lists the keys of a store.
func (l *lister) list(ctx context.Context, store *lockstore.Store, prefix string) error {
	order := sorts[l.sort]
	extent, err := l.ask(ctx, store)
	if err != nil {
		return err
	}
	listed, scanned, requests, damaged := 0, 0, 0, 0
	var names []string            // of damaged entries, some
	var sorted []lockstore.Status // before they are printed
	rows := listTable(l.out, l.width)
	rows.json = l.JSON
	pace := time.NewTicker(time.Duration(float64(time.Second) / l.rate))
	defer pace.Stop()
	// There is no time for each call: one call is the whole listing. Its parts have times
	// of the store's own client.
	err = store.List(ctx, prefix, func(p lockstore.Page) error {
		scanned, requests, damaged = scanned+p.Read, requests+p.Requests, damaged+p.Damaged
		names = append(names, p.DamagedNames[:min(len(p.DamagedNames), namesShown-len(names))]...)
		found := slices.DeleteFunc(p.Keys, func(s lockstore.Status) bool { return !l.wants(s) })
		if order != nil {
			sorted = append(sorted, found...)
			found = nil
		}
		l.erase()
		more := l.limit > 0 && listed+len(found) > l.limit
		if more {
			found = found[:l.limit-listed]
		}
		if err := rows.print(found...); err != nil {
			return err
		}
		if listed += len(found); more {
			return errEnough
		}
		if l.progress != nil {
			text := fmt.Sprintf("%d of about %d entries read", scanned, extent.Entries)
			if prefix != "" { // some stores read all, and return only what begins with it
				text = fmt.Sprintf("%d requests sent", requests)
			}
			fmt.Fprintf(l.progress, "\r%s, %d keys found", text, listed+len(sorted))
		}
		select {
		case <-pace.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	l.erase()
	enough := errors.Is(err, errEnough)
	switch {
	case ctx.Err() != nil:
		return exit.Ended(ctx)
	case err != nil && !enough:
		return stores.Failed(err)
	}
	if order != nil {
		slices.SortStableFunc(sorted, order)
	}
	if enough = enough || l.limit > 0 && len(sorted) > l.limit; enough && order != nil {
		sorted = sorted[:l.limit]
	}
	if err := rows.print(sorted...); err != nil {
		return err
	}
	listed += len(sorted)
	if damaged > 0 {
		fmt.Fprintln(l.err, "lockctl: "+damagedText(damaged, names))
	}
	if listed == 0 && !l.unseen {
		fmt.Fprintln(l.err, "lockctl: "+l.nothing(prefix))
	}
	if enough {
		fmt.Fprintf(l.err, "lockctl: there are more; this is --limit %d\n", l.limit)
	} else if l.JSON {
		err := printJSON(l.out, struct {
			End      bool `json:"end"`
			Scanned  int  `json:"scanned"`
			Requests int  `json:"requests"`
		}{true, scanned, requests})
		if err != nil {
			return err
		}
	}
	if l.longer > 0 && listed > 0 {
		return &exit.Silent{Status: exit.No}
	}
	return nil
}

// wants says if a key is to be listed.
func (l *lister) wants(s lockstore.Status) bool {
	if !slices.Contains(l.states, s.State.String()) {
		return false
	}
	if l.longer == 0 {
		return true
	}
	d, known := age(since(s), time.Now())
	return s.State.Taken() && (!known || d > l.longer)
}

// erase takes the progress away, so that a line can be printed in its place.
func (l *lister) erase() {
	if l.progress != nil {
		fmt.Fprint(l.progress, "\r\x1b[K")
	}
}

// namesShown is how many damaged entries list names.
const namesShown = 10

func damagedText(n int, names []string) string {
	text := "1 entry is damaged or another program's, and not listed"
	if n > 1 {
		text = fmt.Sprintf("%d entries are damaged or another program's, and not listed", n)
	}
	for i, name := range names {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + strconv.Quote(name)
	}
	if len(names) > 0 && n > len(names) {
		text += fmt.Sprintf(" and %d more", n-len(names))
	}
	return text
}

// nothing says what was not found.
func (l *lister) nothing(prefix string) string {
	text := strings.Join(l.states, ", ")
	if last := len(l.states) - 1; last > 0 {
		text = strings.Join(l.states[:last], ", ") + " or " + l.states[last]
	}
	if l.longer > 0 {
		text += fmt.Sprintf(" for longer than %v", l.longer)
	}
	if prefix == "" {
		return "no key has the state " + text
	}
	return fmt.Sprintf("no key that begins with %q has the state %s", prefix, text)
}

// ask says how much a listing reads, and asks if that is much.
func (l *lister) ask(ctx context.Context, store *lockstore.Store) (e lockstore.Extent, err error) {
	err = l.Call(ctx, func(ctx context.Context) (err error) {
		e, err = store.Extent(ctx)
		return err
	})
	if err != nil {
		return e, err
	}
	if e.Bytes > askAbove || !l.unseen {
		fmt.Fprintln(l.err, "lockctl: "+extentText(e))
	}
	if e.Bytes <= askAbove || l.yes {
		return e, nil
	}
	if !isTerminal(l.in) {
		return e, exit.WrongUsage("that is more than 1 GB; want --yes, or a terminal to ask")
	}
	fmt.Fprint(l.err, "lockctl: read all of it? [y/N] ")
	line, err := readLine(ctx, l.in)
	if ctx.Err() != nil {
		return e, ctx.Err()
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); err == nil && (answer == "y" || answer == "yes") {
		return e, nil
	}
	return e, &exit.Silent{Status: exit.No}
}

func extentText(e lockstore.Extent) string {
	s := fmt.Sprintf("reading about %d entries", e.Entries)
	if e.Bytes >= 50_000 { // less would be 0.0 MB
		s += fmt.Sprintf(", %.1f MB", float64(e.Bytes)/1e6)
	}
	if e.ReadUnits > 0 {
		s += fmt.Sprintf(", %d read units, about $%.4f", e.ReadUnits, float64(e.ReadUnits)*unitPrice)
	}
	return s
}
