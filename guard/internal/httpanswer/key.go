package httpanswer

import (
	"errors"
	"fmt"
	"strings"
)

// Header is that of a request which names what is to be done once.
const Header = "Idempotency-Key"

// maxKey bounds the key in the header, in bytes.
const maxKey = 255

// Key reads the values of the header: text in quotes, or the text alone, which most clients
// send. It is "" if there is none.
func Key(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return parseKey(strings.Trim(values[0], " \t"))
	}
	return "", errors.New("the header " + Header + " is there more than once")
}

// parseKey reads a string as RFC 8941 has it, or a word without quotes.
func parseKey(value string) (string, error) {
	if len(value) > 2*maxKey+2 { // each character may be escaped
		return "", errLongKey
	}
	var b strings.Builder
	inner, quoted := strings.CutPrefix(value, `"`)
	closed := !quoted
	for i := 0; i < len(inner); i++ {
		c := inner[i]
		switch {
		case c < ' ' || c > '~', !quoted && (c == ' ' || c == ',' || c == ';' || c == '"'):
			return "", errKey
		case quoted && c == '"':
			if closed = i == len(inner)-1; !closed {
				return "", errKey
			}
			continue
		case quoted && c == '\\':
			if i++; i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
				return "", errKey
			}
			c = inner[i]
		}
		b.WriteByte(c)
	}
	switch {
	case !closed || b.Len() == 0:
		return "", errKey
	case b.Len() > maxKey:
		return "", errLongKey
	}
	return b.String(), nil
}

var (
	errKey = errors.New("the header " + Header + ` is not one key: want one text in quotes, such as "8e03978e-40d5-43dd-bc93-6894a57f9324", or a word without spaces, commas and semicolons`)

	errLongKey = fmt.Errorf("the header "+Header+" is too long; want a key of at most %d bytes", maxKey)
)
