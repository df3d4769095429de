package zkstore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// paths are the names of the store's nodes.
type paths struct{ prefix string }

func (p paths) locks() string   { return p.prefix + "/locks" }
func (p paths) clock() string   { return p.prefix + "/clock" }
func (p paths) waiters() string { return p.prefix + "/waiters" }

// lock is the node of a key. No two keys have the same one.
func (p paths) lock(key string) string {
	name := url.PathEscape(key)
	if strings.HasPrefix(name, ".") { // ZooKeeper refuses "." and ".."
		name = "%2E" + name[1:]
	}
	return p.locks() + "/" + name
}

// waiter is the node of an owner that waits. ZooKeeper's log shows names of nodes, and an
// owner is a secret.
func (p paths) waiter(key, owner string) string {
	sum := sha256.Sum256([]byte(key + "\n" + owner))
	return p.waiters() + "/" + hex.EncodeToString(sum[:16])
}

// above are the parents of the nodes, the highest first.
func (p paths) above() (all []string) {
	for i := 1; i < len(p.prefix); i++ {
		if p.prefix[i] == '/' {
			all = append(all, p.prefix[:i])
		}
	}
	return append(all, p.prefix, p.locks(), p.waiters(), p.clock())
}

// version is that of a lock's node: the birth, which no two nodes of a name share, and
// ZooKeeper's counter, which begins again when a node is deleted.
type version struct {
	birth string
	count int32
}

func newBirth() string { return rand.Text() }

const birthLength = 26 // of rand.Text

func (v version) text() string { return v.birth + "." + strconv.Itoa(int(v.count)) }

func parseVersion(text string) (version, error) {
	birth, count, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(count, 10, 32)
	if err != nil || !isBirth(birth) {
		return version{}, lockstore.Invalidf("zkstore: the version is %.60q; want one that Read or Write returned", text)
	}
	if n == anyVersion {
		// After 2^32 writes of one node. It would mean any version.
		return version{}, fmt.Errorf("the node's version is %d: delete the node while nobody holds the lock: %w", n, lockstore.ErrCorrupt)
	}
	return version{birth, int32(n)}, nil
}

// anyVersion is the version with which ZooKeeper replaces a node whatever its version is.
const anyVersion = -1

func isBirth(s string) bool {
	return len(s) == birthLength && strings.IndexFunc(s, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '2' || r > '7') }) < 0
}

// encode returns what is kept in a lock's node.
func encode(birth string, value []byte) []byte {
	return append([]byte(birth+" "), value...)
}

// decode reads what encode wrote.
func decode(data []byte, stat *zk.Stat) (casstore.Entry, error) {
	if len(data) <= birthLength || data[birthLength] != ' ' || !isBirth(string(data[:birthLength])) {
		return casstore.Entry{}, fmt.Errorf("the node does not begin as a lock's: %.40q: %w", data, lockstore.ErrCorrupt)
	}
	v := version{string(data[:birthLength]), stat.Version}
	return casstore.Entry{Value: data[birthLength+1:], Version: v.text(), WrittenAt: stamp(stat)}, nil
}

// stamp is when a version of a node was written, by the clock of the server that led.
func stamp(stat *zk.Stat) time.Time { return time.UnixMilli(stat.Mtime) }
