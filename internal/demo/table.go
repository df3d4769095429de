package main

import (
	"fmt"
	"strings"
	"time"
)

// table puts both halves side by side, at most 80 columns wide.
func table(without, with half, color bool) string {
	var b strings.Builder
	row := func(name, a, c string) { fmt.Fprintf(&b, "  %-24s%20s%20s\n", name, a, c) }
	// Colour comes after the padding, which counts bytes.
	count := func(n int, padded string) string {
		switch {
		case !color:
			return padded
		case n > 0:
			return "\x1b[31m" + padded + "\x1b[0m"
		default:
			return "\x1b[32m" + padded + "\x1b[0m"
		}
	}
	counts := func(name string, n, m int) {
		fmt.Fprintf(&b, "  %-24s%s%s\n", name, count(n, fmt.Sprintf("%20d", n)), count(m, fmt.Sprintf("%20d", m)))
	}
	b.WriteByte('\n')
	row("", without.title, with.title)
	row("succeeded", of(without), of(with))
	row("answered busy, retried", fmt.Sprint(without.busy), fmt.Sprint(with.busy))
	row("balance", money(without.closing), money(with.closing))
	row("balance it should have", money(without.expected()), money(with.expected()))
	counts("lost updates", without.lost(), with.lost())
	counts("overlapping sections", without.overlaps, with.overlaps)
	row("wait p50", wait(without, 50), wait(with, 50))
	row("wait p99", wait(without, 99), wait(with, 99))
	row("took", seconds(without.took), seconds(with.took))
	return b.String()
}

func of(h half) string { return fmt.Sprintf("%d of %d", h.succeeded, len(h.attempts)) }

// wait is a percentile of the waits for the lock, "-" where nobody waited.
func wait(h half, p int) string {
	if len(h.waits) == 0 {
		return "-"
	}
	return milliseconds(h.percentile(p))
}

// money writes cents as whole units with two digits.
func money(cents int64) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	return fmt.Sprintf("%s%d.%02d", sign, cents/100, cents%100)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
