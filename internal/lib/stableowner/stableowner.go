// Package stableowner makes an owner from the parts of a request. The same request
// gives the same owner; no other request does.
package stableowner

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Of is the owner of what the parts say. The first one says what they are for.
func Of(parts ...string) lockstore.Owner {
	h := sha256.New()
	Write(h, parts...)
	return lockstore.Owner(base64.RawURLEncoding.EncodeToString(h.Sum(nil)))
}

// Write puts each part behind its length, so that other parts never give the
// same bytes.
func Write(h hash.Hash, parts ...string) {
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
}
