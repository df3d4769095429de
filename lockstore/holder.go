package lockstore

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// HolderInfo says, for people, who holds a lock. A store never compares holders. The
// acquiring program writes its own holder, so Name and ID may be made up.
type HolderInfo struct {
	Name  string    `json:"name,omitempty"` // what holds it, for example the function's name
	ID    string    `json:"id,omitempty"`   // which run of it, for example the request id
	Since time.Time `json:"since,omitzero"` // when it sent the request that was granted, by its own clock; kept in milliseconds

	// Caller is for a service that takes locks for its callers. It is the caller that
	// the service has authenticated, for example the ARN of a role; "" when there is
	// none. The service never takes it from the request.
	Caller string `json:"caller,omitempty"`
}

// Bounds of a stored Holder: of its whole text, and of Caller in this text.
const (
	maxHolderBytes = 256
	maxCallerBytes = 128
)

// String is a part of a sentence for people: who, which run, since when. The caller
// comes first. A name that a caller gave is in quotes. So is a name that could be taken
// for a caller.
func (h HolderInfo) String() string {
	if h == (HolderInfo{}) {
		return "unknown"
	}
	s := h.Name
	switch {
	case h.Caller != "" && h.Name != "" && h.Name != h.Caller:
		s = h.Caller + " as " + strconv.Quote(h.Name)
	case h.Caller != "":
		s = h.Caller
	case h.Name == "":
		s = "a holder without a name"
	case strings.IndexFunc(h.Name, isSpecial) >= 0:
		s = strconv.Quote(h.Name) // or it could look like a caller
	}
	if h.ID != "" {
		s += " (" + h.ID + ")"
	}
	if !h.Since.IsZero() {
		s += " since " + h.Since.UTC().Format(time.RFC3339)
	}
	return s
}

// isSpecial is false for the characters in names of functions and programs.
func isSpecial(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(" _-.", r)
}

// Encode writes the holder as stores keep it: milliseconds since 1970, id, name
// and, if there is one, caller, separated by tabs, at most 256 bytes. Control
// characters and invalid UTF-8 become spaces. A caller of more than 128 bytes
// keeps its beginning and its end, and "…" between them. To fit, the end of the
// name is cut, then the end of the id.
func (h HolderInfo) Encode() string {
	since := "0"
	if !h.Since.IsZero() {
		since = strconv.FormatInt(h.Since.UnixMilli(), 10)
	}
	caller := clean(h.Caller)
	if caller != "" {
		caller = "\t" + shorten(caller, maxCallerBytes)
	}
	room := maxHolderBytes - len(since) - len("\t\t") - len(caller)
	id := cut(clean(h.ID), room)
	name := cut(clean(h.Name), room-len(id))
	return since + "\t" + id + "\t" + name + caller
}

// cut keeps the beginning of s: at most n bytes, and no half character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// shorten keeps the beginning of s, which has the account or the issuer, and the end,
// which has the name.
func shorten(s string, n int) string {
	const gap = "…"
	if len(s) <= n {
		return s
	}
	half := (n - len(gap)) / 2
	end := len(s) - half
	for !utf8.RuneStart(s[end]) {
		end++
	}
	return cut(s, half) + gap + s[end:]
}

// DecodeHolderInfo reads what Encode wrote, with a caller or without one. Other text
// becomes the name, cut and cleaned: a holder is for people, and an incomplete answer
// is better than none.
func DecodeHolderInfo(s string) HolderInfo {
	s = s[:min(len(s), maxHolderBytes)]
	parts := strings.SplitN(s, "\t", 4)
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return HolderInfo{Name: clean(s)}
	}
	var h HolderInfo
	// JSON refuses other years, and a holder must not spoil the log line it is in.
	if since := time.UnixMilli(ms).UTC(); ms != 0 && since.Year() >= 1 && since.Year() <= 9999 {
		h.Since = since
	}
	for i, field := range []*string{&h.ID, &h.Name, &h.Caller} {
		if len(parts) > i+1 {
			*field = clean(parts[i+1])
		}
	}
	return h
}

func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || isControl(r) {
			return ' '
		}
		return r
	}, s)
}
