package httpanswer

import (
	"errors"
	"fmt"
	"regexp"
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
func parseKey(key string) (string, error) {
	if inner := quoted.FindStringSubmatch(key); inner != nil {
		key = unescape.Replace(inner[1])
	} else if !word.MatchString(key) {
		return "", errKey
	}
	if len(key) > maxKey {
		return "", errLongKey
	}
	return key, nil
}

var (
	// Both are of printable ASCII.
	quoted   = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])+)"$`) // an escape is \" or \\
	word     = regexp.MustCompile(`^[!#-+\--:<-~]+$`)                // without spaces, quotes, commas and semicolons
	unescape = strings.NewReplacer(`\"`, `"`, `\\`, `\`)

	errKey = errors.New("the header " + Header + ` is not one key: want one text in quotes, such as "8e03978e-40d5-43dd-bc93-6894a57f9324", or a word without spaces, commas and semicolons`)

	errLongKey = fmt.Errorf("the header "+Header+" is too long; want a key of at most %d bytes", maxKey)
)
