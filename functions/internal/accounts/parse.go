package accounts

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/internal/lib/strictjson"
)

// Bounds of a withdrawal.
const (
	MaxTextBytes = 1024 // of the JSON that Parse reads

	maxIDBytes = 64
	maxAmount  = 1_000_000_000_00 // a billion, in cents
	wholeCents = "a whole number of cents"
)

var accountID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate checks the bounds. Its error names the field and is for the caller
// to see.
func (w Withdrawal) Validate() error {
	switch {
	case !accountID.MatchString(w.Account):
		return errors.New("account: want 1 to 64 letters, digits, '-' or '_'")
	case len(w.ID) < 1 || len(w.ID) > maxIDBytes:
		return fmt.Errorf("id: has %d bytes; want 1 to %d", len(w.ID), maxIDBytes)
	case strings.IndexFunc(w.ID, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0:
		return errors.New("id: has a character that cannot be printed")
	case w.Amount < 1 || w.Amount > maxAmount:
		return fmt.Errorf("amount: is %q; want %s, 1 to %d", strconv.FormatInt(w.Amount, 10), wholeCents, int64(maxAmount))
	}
	return nil
}

// Parse reads a withdrawal from a JSON object that has exactly the named ones
// of the fields account, id and amount. Only Validate looks at all their bounds.
// Its error names the field and is for the caller to see.
func Parse(text string, fields ...string) (Withdrawal, error) {
	var w Withdrawal
	values, err := strictjson.Object(text, MaxTextBytes, fields...)
	if err != nil {
		return w, err
	}
	for _, name := range fields {
		switch name {
		case "account":
			w.Account, err = strictjson.String(values, name)
		case "id":
			w.ID, err = strictjson.String(values, name)
		case "amount":
			w.Amount, err = strictjson.Whole(values, name, wholeCents, 1, maxAmount)
		}
		if err != nil {
			return w, err
		}
	}
	return w, nil
}
