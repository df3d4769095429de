package accounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/internal/strictjson"
)

// Bounds of a withdrawal.
const (
	MaxTextBytes = 1024 // of the JSON that Parse reads

	maxIDBytes = 64
	maxAmount  = 1_000_000_000_00 // a billion, in cents
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
		return errAmount(strconv.FormatInt(w.Amount, 10))
	}
	return nil
}

func errAmount(text string) error {
	return fmt.Errorf("amount: is %s; want a whole number of cents, 1 to %d", strictjson.Shown(text), int64(maxAmount))
}

// Parse reads a withdrawal from a JSON object that has exactly the named ones
// of the fields account, id and amount. It does not look at their bounds. Its
// error names the field and is for the caller to see.
func Parse(text string, fields ...string) (Withdrawal, error) {
	var w Withdrawal
	values, err := strictjson.Object(text, MaxTextBytes, fields...)
	if err != nil {
		return w, err
	}
	for _, name := range fields {
		value, ok := values[name]
		if !ok {
			return w, fmt.Errorf("%s: is missing", name)
		}
		if err := w.set(name, value); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *Withdrawal) set(name string, value json.Token) error {
	if name == "amount" {
		n, ok := value.(json.Number)
		if !ok {
			return errors.New("amount: want a number")
		}
		amount, err := n.Int64()
		if err != nil {
			return errAmount(n.String())
		}
		w.Amount = amount
		return nil
	}
	text, ok := value.(string)
	if !ok {
		return fmt.Errorf("%s: want a string", name)
	}
	if name == "id" {
		w.ID = text
	} else {
		w.Account = text
	}
	return nil
}
