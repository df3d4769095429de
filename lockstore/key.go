package lockstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes bounds a key.
const MaxKeyBytes = 1024

// Key joins parts to a key: Key("account", "7") is "account/7". Different parts never
// give the same key. In a part "/" and "%" are percent-encoded. So is what a key may
// not contain: control characters, and bytes that are not UTF-8. An empty part is nearly
// always a missing field. So every store refuses a key with an empty part, and the error
// has the part's number.
//
// The key is as long as its parts need. For long parts see KeyOrHash.
func Key(parts ...string) string {
	encoded := make([]string, len(parts))
	for i, part := range parts {
		encoded[i] = encodePart(part)
	}
	return strings.Join(encoded, "/")
}

// KeyOrHash is Key for parts that others choose, such as the object keys of S3. (One
// object key may have 1,024 bytes. An S3 event has object keys URL-encoded: decode them
// first.) If the key is longer than MaxKeyBytes, KeyOrHash returns at most 512 bytes: the
// beginning of the key and the SHA-256 of the whole key.
//
// A hashed key is never equal to a key of Key. Different parts give the same hashed key
// only if SHA-256 collides. With an empty part the result is that of Key, which every
// store refuses.
func KeyOrHash(parts ...string) string {
	key := Key(parts...)
	if len(key) <= MaxKeyBytes || firstEmptyPart(key) > 0 {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	end := hashMark + hex.EncodeToString(sum[:])
	return cut(key, maxHashedKeyBytes-len(end)) + end
}

const (
	// emptyPart stands for an empty part. No other part is like it, because its
	// control character would be encoded.
	emptyPart = "\x00"
	// hashMark is in no key of Key: there two hexadecimal digits follow each "%".
	hashMark = "%sha256:"
	// maxHashedKeyBytes is the longest key that DynamoDB writes for one unit.
	maxHashedKeyBytes = 512
)

// encodePart percent-encodes the characters that Key names.
func encodePart(part string) string {
	if part == "" {
		return emptyPart
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

// firstEmptyPart is the number, from 1, of the first empty part of a key of Key. It is 0
// if no part is empty.
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
		return Invalidf("lockstore: Key has an empty part, number %d; want a value for each part", n)
	}
	switch {
	case key == "":
		return Invalidf("lockstore: Key is empty; want 1 to %d bytes", MaxKeyBytes)
	case len(key) > MaxKeyBytes:
		return Invalidf("lockstore: Key has %d bytes; want 1 to %d", len(key), MaxKeyBytes)
	}
	if i := strings.IndexFunc(key, isControl); i >= 0 {
		return Invalidf("lockstore: Key has a control character at byte %d", i)
	}
	if !utf8.ValidString(key) {
		return Invalidf("lockstore: Key is not valid UTF-8")
	}
	return nil
}

// isControl is also true for the two Unicode line breaks, which would break a log line
// as a newline does.
func isControl(r rune) bool {
	return r < 0x20 || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029'
}
