package dynamostore

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/lambdalock/lambdalock/lockstore"
)

// SetRandom gives the store another source of random pauses.
func (s *Store) SetRandom(upTo func(time.Duration) time.Duration) { s.table.random = upTo }

// SetNow gives the store another local clock.
func (s *Store) SetNow(now func() time.Time) { s.table.clock.now = now }

// Correction is what the store adds to its local clock.
func (s *Store) Correction() time.Duration {
	return s.table.clock.correct(time.Time{}).Sub(time.Time{})
}

// AddressRow is the name of the row of an owner's address.
func (s *Store) AddressRow(key string, owner lockstore.Owner) string {
	return s.table.names.addressRow(key, owner)
}

// Remembered are the names of the attributes of a key's row that the store remembers.
func (s *Store) Remembered(key string) (names []string) {
	r, _ := s.table.memory.of(key)
	return slices.Collect(maps.Keys(r.item))
}

// ClientOver is the lean client over another transport, without time limits.
func ClientOver(transport http.RoundTripper, endpoint string) *dynamodb.Client {
	return ClientWith(&http.Client{Transport: transport}, endpoint)
}

// ClientWith is the lean client with another one of HTTP.
func ClientWith(h *http.Client, endpoint string) *dynamodb.Client {
	return newClient("eu-west-1", endpoint, credentials.NewStaticCredentialsProvider("local", "local", ""), h)
}

// HTTPClient is the client of HTTP that the opener takes.
var HTTPClient = httpClient

// For tests.
const (
	Margin      = margin
	MaxSkew     = maxSkew
	ClosedOwner = closedOwner
	SharedOwner = sharedOwner
)
