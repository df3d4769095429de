package lockhttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"github.com/lambdalock/lambdalock/internal/lib/stableowner"
	"github.com/lambdalock/lambdalock/lockstore"
)

// A token is what its bearer renews and releases a lease with. It is a secret,
// and says all that the service needs to know:
//
//	version 1 byte, fence 8, tag 32, owner 1 to 64; base64url
//
// The tag is an HMAC-SHA256 (RFC 2104) over key, owner and fence. So a token that
// was made up or changed reaches no store, and whoever knows the owner has no
// token. No owner depends on the secret: when that is rotated no lease ends.
const (
	tokenVersion = 1
	tokenHead    = 1 + 8
	tokenBody    = tokenHead + sha256.Size
)

// secret is what tokens are made with.
type secret []byte

// Format hides the secret, whatever it is printed with.
func (s secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "secret") }

// token writes the token of a lease for its bearer.
func (s secret) token(lease lockstore.Lease) string {
	b := binary.BigEndian.AppendUint64([]byte{tokenVersion}, uint64(lease.Fence))
	b = append(b, s.tag(lease)...)
	return base64.RawURLEncoding.EncodeToString(append(b, lease.Owner...))
}

// leaseOf reads a token of the key that was made with one of the secrets.
func leaseOf(text, key string, secrets []secret) (lease lockstore.Lease, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) <= tokenBody || b[0] != tokenVersion {
		return lockstore.Lease{}, false
	}
	// The decoder passes over line ends and the last letter's unused bits, but a
	// token has one spelling.
	if base64.RawURLEncoding.EncodeToString(b) != text {
		return lockstore.Lease{}, false
	}
	lease = lockstore.Lease{
		Key:   key,
		Owner: lockstore.Owner(b[tokenBody:]),
		Fence: lockstore.Fence(binary.BigEndian.Uint64(b[1:])),
	}
	for _, s := range secrets {
		if hmac.Equal(b[tokenHead:tokenBody], s.tag(lease)) {
			return lease, true
		}
	}
	return lockstore.Lease{}, false
}

func (s secret) tag(lease lockstore.Lease) []byte {
	h := hmac.New(sha256.New, s)
	stableowner.Write(h, "token", lease.Key, string(lease.Owner), strconv.FormatInt(int64(lease.Fence), 10))
	return h.Sum(nil)
}
