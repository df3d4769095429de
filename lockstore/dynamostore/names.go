package dynamostore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// names are the attributes of a table that the table decides: its primary key and its
// time to live.
type names struct {
	key, sort string // sort is "" for a table without a sort key
	prefix    string // of each value of key
	ttl       string
}

// sortValue is the value of the sort key in each row of a lock.
const sortValue = "lambdalock"

// maxPartitionKey is DynamoDB's limit, in bytes. maxPrefix keeps prefix and key below it.
const (
	maxPartitionKey = 2048
	maxPrefix       = maxPartitionKey - lockstore.MaxKeyBytes
)

// names checks the names of the table, and puts the defaults in. New calls it.
func (opt Options) names() (names, error) {
	n := names{key: cmp.Or(opt.Key, attrKey), sort: opt.Sort, prefix: opt.Prefix, ttl: cmp.Or(opt.TTL, attrTTL)}
	used := slices.Clone(lockAttributes)
	for _, a := range []struct{ option, name string }{{"Key", n.key}, {"Sort", n.sort}, {"TTL", n.ttl}} {
		switch {
		case a.name == "" && a.option == "Sort":
		case len(a.name) > 255 || !utf8.ValidString(a.name) || strings.ContainsFunc(a.name, unicode.IsControl):
			return n, invalid("%s is no name of an attribute; want 1 to 255 bytes of text", a.option)
		case slices.Contains(used, a.name):
			return n, invalid("%s is %q, which is another attribute of a lock's row already; want none of %s", a.option, a.name, strings.Join(used, ", "))
		default:
			used = append(used, a.name)
		}
	}
	if len(n.prefix) > maxPrefix || !utf8.ValidString(n.prefix) || strings.ContainsFunc(n.prefix, unicode.IsControl) {
		return n, invalid("Prefix has %d bytes, or is no text; want text of at most %d bytes without control characters", len(n.prefix), maxPrefix)
	}
	return n, nil
}

// row is the primary key of a lock's row. table.read and encodeWrite call it.
func (n names) row(key string) values {
	k := values{n.key: text(n.prefix + key)}
	if n.sort != "" {
		k[n.sort] = text(sortValue)
	}
	return k
}

// is reports whether an item may be the row of a lock: it has what each such row has. names.ended calls it.
func (n names) is(item values) bool {
	key := textOf(item[n.key])
	_, hasTTL := item[n.ttl].(*types.AttributeValueMemberN)
	return key != "" && hasTTL && strings.HasPrefix(key, n.prefix) && (n.sort == "" || textOf(item[n.sort]) == sortValue)
}

// wrongTTL says what a row has instead of its time to live. It gives names only: a value
// may be another program's. decode and notOurs call it.
func (n names) wrongTTL(key string, item values) error {
	var like []string
	for _, name := range slices.Sorted(maps.Keys(item)) {
		_, number := item[name].(*types.AttributeValueMemberN)
		if number && name != n.key && name != n.sort && !slices.Contains(lockAttributes, name) {
			like = append(like, strconv.Quote(name))
		}
	}
	has := "no other number that could be it"
	if len(like) > 0 {
		has = strings.Join(like[:min(len(like), 4)], ", ")
	}
	return &failure{text: fmt.Sprintf("dynamostore: the row of key %q has no %q, the attribute of its time to live in this store's settings (ttl in the URL); it has %s: "+
		"a program with another ttl in its URL uses this row, and DynamoDB could delete the row under a live lease; "+
		"give all programs the same ttl", key, n.ttl, has), class: lockstore.ErrCorrupt}
}

// aliases are the attributes in the text of expressions: some of the names are reserved words, so there is a '#' before each. DynamoDB
// refuses a name that no expression has. List and encodeWrite call it.
func (n names) aliases(expressions string) map[string]string {
	decided := map[string]string{"#key": n.key, "#sort": n.sort, "#ttl": n.ttl}
	all := map[string]string{}
	for word := range strings.FieldsFuncSeq(expressions, func(c rune) bool { return c != '#' && !unicode.IsLetter(c) }) {
		if name, is := strings.CutPrefix(word, "#"); is {
			all[word] = cmp.Or(decided[word], name)
		}
	}
	return all
}

// want is the primary key that the table must have, as keySchema says it. checkTable and explain call it.
func (n names) want() string {
	if n.sort == "" {
		return fmt.Sprintf("the partition key %q of type S and no sort key", n.key)
	}
	return fmt.Sprintf("the partition key %q of type S and the sort key %q of type S", n.key, n.sort)
}
