package lockstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Key joins parts into a key so that different parts never give the same key:
// Key("account", "7") is "account/7". In a part "/" and "%" are percent-encoded,
// and so is what a key may not contain: control characters and bytes that are no
// UTF-8. An empty part is nearly always a missing field: then every store refuses
// the key, and the error says which part it is.
//
// The key is as long as its parts need; see KeyOrHash for long ones.
func Key(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		if p == "" {
			p = emptyPart
		} else {
			p = encodePart(p)
		}
		b.WriteString(p)
	}
	return b.String()
}

// KeyOrHash is Key, unless that is longer than MaxKeyBytes: then it is the
// beginning of that key and its SHA-256, 512 bytes in all. It is for parts that
// others choose, such as the object keys of S3: one of those alone may have 1,024
// bytes. In an S3 event they are URL-encoded; decode them first. No key of Key is
// like a hashed one, and different parts give the same hashed key only if SHA-256
// does. With an empty part it is Key's, which every store refuses.
func KeyOrHash(parts ...string) string {
	key := Key(parts...)
	if len(key) <= MaxKeyBytes || firstEmptyPart(key) > 0 {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	end := hashMark + hex.EncodeToString(sum[:])
	cut := maxHashedKeyBytes - len(end)
	for !utf8.RuneStart(key[cut]) {
		cut--
	}
	return key[:cut] + end
}

const (
	// emptyPart stands for an empty part. No other part is like it, because its
	// control character would be encoded.
	emptyPart = "\x00"
	// hashMark is in no key of Key: behind a "%" are two digits there.
	hashMark = "%sha256:"
	// maxHashedKeyBytes is the longest key that DynamoDB writes for one unit.
	maxHashedKeyBytes = 512
)

// encodePart percent-encodes what Key says.
func encodePart(part string) string {
	if utf8.ValidString(part) && !strings.ContainsFunc(part, isEncoded) {
		return part
	}
	var b strings.Builder
	for rest := part; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if isEncoded(r) || r == utf8.RuneError && size == 1 {
			for i := range size {
				fmt.Fprintf(&b, "%%%02X", rest[i])
			}
		} else {
			b.WriteString(rest[:size])
		}
		rest = rest[size:]
	}
	return b.String()
}

func isEncoded(r rune) bool { return r == '/' || r == '%' || isControl(r) }

// firstEmptyPart is the number of the first part of a key of Key that is empty,
// from 1; 0 without one.
func firstEmptyPart(key string) int {
	if !strings.Contains(key, emptyPart) {
		return 0
	}
	return slices.Index(strings.Split(key, "/"), emptyPart) + 1
}

// ValidateKey returns an error matching ErrInvalid unless key is 1 to 1024
// bytes of UTF-8 without control characters.
func ValidateKey(key string) error {
	if n := firstEmptyPart(key); n > 0 {
		return invalid("Key has an empty part, number %d; want a value for each part", n)
	}
	switch {
	case key == "":
		return invalid("Key is empty; want 1 to %d bytes", MaxKeyBytes)
	case len(key) > MaxKeyBytes:
		return invalid("Key has %d bytes; want 1 to %d", len(key), MaxKeyBytes)
	}
	if i := strings.IndexFunc(key, isControl); i >= 0 {
		return invalid("Key has a control character at byte %d", i)
	}
	if !utf8.ValidString(key) {
		return invalid("Key is not valid UTF-8")
	}
	return nil
}

// isControl also names the two Unicode line breaks, which would break a log
// line as a newline does.
func isControl(r rune) bool {
	return r < 0x20 || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029'
}
