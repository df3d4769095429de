package zkstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// Options are settings of New. Servers is required.
type Options struct {
	// Servers are the addresses of the ensemble's servers, host:port.
	Servers []string

	// Prefix is the node below which the store keeps its nodes; "" means DefaultPrefix. All
	// users of a resource need the same prefix and the same key.
	//
	// To separate stores, choose prefixes of which none is below another one. With the prefixes /shop and /shop/locks the
	// clock of the second is the node of the key "clock" of the first, and its writes erase the entry of that lock.
	Prefix string

	// MaxClockSkew is how far the clocks of the ensemble's servers may disagree. Others wait
	// longer by MaxClockSkew when a holder dies. 0 means 500 ms; at most a minute.
	// All users of a resource need the same MaxClockSkew.
	MaxClockSkew time.Duration

	// Credentials returns a user and a password, without ":" in the user. New calls it once.
	// The store's nodes are then for this user alone. nil means that everybody who
	// reaches the servers may read, take and release locks.
	Credentials func() (user, password string)

	// TLS makes every connection a TLS connection; nil means none. An empty ServerName is the
	// server's host.
	TLS *tls.Config
}

// DefaultPrefix is Options.Prefix by default.
const DefaultPrefix = "/lambdalock"

const defaultMaxClockSkew = 500 * time.Millisecond

// New returns a store. It connects when the first call needs a connection, and keeps the
// connection until Close. An error that it returns matches lockstore.ErrInvalid.
//
// Close ends the session and its connection, and returns nil after at most three seconds. A
// later call returns an error that matches lockstore.ErrUnavailable. A function of Lambda need
// not close its store.
func New(opt Options) (*lockstore.Store, error) {
	k, err := newKV(opt)
	if err != nil {
		return nil, err
	}
	return opt.store(k)
}

func (opt Options) store(k *kv) (*lockstore.Store, error) {
	skew := cmp.Or(opt.MaxClockSkew, defaultMaxClockSkew)
	return casstore.New(k, casstore.Options{Name: "zkstore", MaxClockSkew: skew})
}

func newKV(opt Options) (*kv, error) {
	if len(opt.Servers) == 0 {
		return nil, lockstore.Invalidf("zkstore: Servers is empty; want the address of a server")
	}
	for _, server := range opt.Servers {
		if host, port, err := net.SplitHostPort(server); err != nil || host == "" || port == "" {
			return nil, lockstore.Invalidf("zkstore: Servers has %.100q; want host:port", server)
		}
	}
	opt.Prefix = cmp.Or(opt.Prefix, DefaultPrefix)
	if !validPrefix(opt.Prefix) {
		return nil, lockstore.Invalidf("zkstore: Prefix is not a path of letters, digits, '_', '-' and '.', such as %s", DefaultPrefix)
	}
	k := &kv{
		client: &client{servers: opt.Servers, dial: (&net.Dialer{}).DialContext, limits: usual},
		paths:  paths{opt.Prefix},
		acl:    zk.WorldACL(zk.PermAll),
	}
	if opt.Credentials != nil {
		user, password := opt.Credentials()
		if user == "" || password == "" || strings.Contains(user, ":") {
			return nil, lockstore.Invalidf("zkstore: Credentials returns no user, no password or a user with \":\"; want a user and a password")
		}
		k.auth, k.acl = []byte(user+":"+password), zk.DigestACL(zk.PermAll, user, password)
	}
	if opt.TLS != nil {
		k.dial = (&tls.Dialer{Config: opt.TLS}).DialContext
	}
	return k, nil
}

// validPrefix also refuses a path of ZooKeeper's own.
func validPrefix(prefix string) bool {
	names := strings.Split(prefix, "/")
	if names[0] != "" || len(names) < 2 || names[1] == "zookeeper" {
		return false
	}
	for _, name := range names[1:] {
		if name == "" || name == "." || name == ".." || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != "" {
			return false
		}
	}
	return true
}

// manyKeys is from how many nodes on Check advises to delete some.
const manyKeys = 100_000

// Check implements driver.Checker. It reads the parent of the locks' nodes: who may
// change the locks, and how many keys have a node.
func (k *kv) Check(ctx context.Context) ([]lockstore.Finding, error) {
	findings, err := call(ctx, k.client, func(conn *zk.Conn) ([]lockstore.Finding, error) {
		acl, stat, err := conn.GetACL(k.locks())
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil // the first lock makes it
		}
		if err != nil {
			return nil, err
		}
		return findingsIn(acl, stat, k.locks()), nil
	})
	if err != nil {
		return nil, unread("check", err)
	}
	return findings, nil
}

func findingsIn(acl []zk.ACL, stat *zk.Stat, path string) (found []lockstore.Finding) {
	for _, a := range acl {
		if a.Scheme == "world" && a.Perms&^zk.PermRead != 0 {
			found = append(found, lockstore.Finding{
				Problem: fmt.Sprintf("everybody who reaches the servers may change %s, and so take and release locks", path),
				Fix:     "set " + authVariable + ", and an ACL for its user on the node: setAcl -R " + path + " auth::cdrwa",
			})
		}
	}
	if stat.NumChildren > manyKeys {
		found = append(found, lockstore.Finding{
			Problem: fmt.Sprintf("%d keys have a node, and every server keeps all nodes in memory", stat.NumChildren),
			Fix:     "delete the nodes of keys that nobody uses any more, each with its child",
		})
	}
	return found
}
