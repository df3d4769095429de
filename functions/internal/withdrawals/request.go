// Package withdrawals is the HTTP side of a withdrawal: it reads
//
//	POST /accounts/{id}/withdrawals
//	{"id": "w-1", "amount": 500}
//
// and writes the answers. amount is in whole cents. id is the caller's name
// for this withdrawal: repeating the request with the same id is safe.
//
//	200  made, now or by an earlier request with this id and amount
//	400  the request cannot be read; the detail names the field
//	404  no such account
//	409  another request is working on the account; try again
//	422  the balance is too low, or the id was used with another amount
//
// The body of a refusal is a problem of RFC 9457. An error that is the
// service's own fault goes to Lambda, and the client sees a 500.
package withdrawals

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// Bounds of a request.
const (
	maxBodyBytes = 1024
	maxIDBytes   = 64
	maxAmount    = 1_000_000_000_00 // a billion, in cents
)

// Parse reads a request. Its error is for the caller to see.
func Parse(r httpapi.Request) (accounts.Withdrawal, error) {
	w := accounts.Withdrawal{Account: r.PathParameters["id"]}
	if !accountID.MatchString(w.Account) {
		return w, errors.New("account: want 1 to 64 letters, digits, '-' or '_' in the path")
	}
	body, err := requestBody(r)
	if err != nil {
		return w, err
	}
	return w, decodeBody(body, &w)
}

var accountID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func requestBody(r httpapi.Request) (string, error) {
	if len(r.Body) > 2*maxBodyBytes { // base64 takes a third more
		return "", errTooLong
	}
	if !r.IsBase64Encoded {
		return r.Body, nil
	}
	b, err := base64.StdEncoding.DecodeString(r.Body)
	if err != nil {
		return "", errors.New("body: is not valid base64")
	}
	return string(b), nil
}

var errTooLong = fmt.Errorf("body: want at most %d bytes", maxBodyBytes)

// decodeBody takes exactly the two fields. The standard decoder would take
// other spellings of a name and the last of two values.
func decodeBody(body string, w *accounts.Withdrawal) error {
	switch {
	case len(body) > maxBodyBytes:
		return errTooLong
	case !utf8.ValidString(body):
		return errors.New("body: is not valid UTF-8")
	}
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New(`body: want a JSON object, such as {"id": "w-1", "amount": 500}`)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return errNotJSON
		}
		name, ok := t.(string)
		switch {
		case !ok:
			return errNotJSON
		case seen[name]:
			return fmt.Errorf("%s: stands twice", shown(name))
		}
		seen[name] = true
		value, err := d.Token()
		if err != nil {
			return errNotJSON
		}
		switch name {
		case "id":
			err = setID(w, value)
		case "amount":
			err = setAmount(w, value)
		default:
			err = fmt.Errorf("%s: is unknown; want id and amount", shown(name))
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return errNotJSON
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("body: has something after the JSON object")
	}
	for _, name := range []string{"id", "amount"} {
		if !seen[name] {
			return fmt.Errorf("%s: is missing", name)
		}
	}
	return nil
}

var errNotJSON = errors.New("body: is not valid JSON")

func setID(w *accounts.Withdrawal, value json.Token) error {
	id, ok := value.(string)
	switch {
	case !ok:
		return errors.New("id: want a string")
	case len(id) < 1 || len(id) > maxIDBytes:
		return fmt.Errorf("id: has %d bytes; want 1 to %d", len(id), maxIDBytes)
	case strings.IndexFunc(id, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) >= 0:
		return errors.New("id: has a character that cannot be printed")
	}
	w.ID = id
	return nil
}

func setAmount(w *accounts.Withdrawal, value json.Token) error {
	n, ok := value.(json.Number)
	if !ok {
		return errors.New("amount: want a number")
	}
	amount, err := n.Int64()
	if err != nil || amount < 1 || amount > maxAmount {
		return fmt.Errorf("amount: is %s; want a whole number of cents, 1 to %d", shown(n.String()), int64(maxAmount))
	}
	w.Amount = amount
	return nil
}

// shown is a caller's text in an answer, quoted and cut.
func shown(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return fmt.Sprintf("%q", s)
}
