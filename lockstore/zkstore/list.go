package zkstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// pageKeys is how many nodes a page of List reads.
const pageKeys = 100

// List implements casstore.Lister. Its first page reads the names of all nodes, and has no
// entries. Each later page reads up to 100 nodes whose keys begin with prefix. Every page also
// writes the clock node once, for the servers' time. The error of a node that the user may
// not read ends the listing.
func (k *kv) List(ctx context.Context, prefix string, page func(casstore.Page) error) error {
	all, _, err := synced(ctx, k, func(conn *zk.Conn) ([]string, error) {
		all, _, err := conn.Children(k.locks())
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return all, err
	})
	if err != nil {
		return unread("list", err)
	}
	keys, damaged := k.keys(all, prefix)
	if err := page(casstore.Page{Damaged: len(damaged), DamagedNames: damaged}); err != nil {
		return err
	}
	for keys := range slices.Chunk(keys, pageKeys) {
		p, now, err := synced(ctx, k, func(conn *zk.Conn) (casstore.Page, error) { return k.page(ctx, conn, keys) })
		if err != nil {
			return unread("list", err)
		}
		p.Now = now
		if err := page(p); err != nil {
			return err
		}
	}
	return nil
}

// keys are the keys of nodes that begin with prefix. Nodes that the store has not made are
// damaged: two of them may be names of one key.
func (p paths) keys(names []string, prefix string) (keys, damaged []string) {
	for _, name := range names {
		key, err := url.PathUnescape(name)
		switch {
		case err != nil || lockstore.ValidateKey(key) != nil || p.lock(key) != p.locks()+"/"+name:
			damaged = append(damaged, name)
		case strings.HasPrefix(key, prefix):
			keys = append(keys, key)
		}
	}
	return keys, damaged
}

// page reads the nodes of keys.
func (k *kv) page(ctx context.Context, conn *zk.Conn, keys []string) (casstore.Page, error) {
	p := casstore.Page{Requests: 1 + len(keys)}
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return p, err
		}
		entry, err := k.get(conn, key)
		name := path.Base(k.lock(key))
		switch {
		case errors.Is(err, lockstore.ErrCorrupt):
			p.Damaged++
			p.DamagedNames = append(p.DamagedNames, name)
		case err != nil:
			return p, fmt.Errorf("key %q: %w", key, err)
		case entry.Version != "": // nobody has deleted it meanwhile
			p.Entries = append(p.Entries, casstore.Listed{Key: key, Name: name, Entry: entry})
		}
	}
	return p, nil
}

// Extent implements casstore.Lister by one request: how many nodes there are.
func (k *kv) Extent(ctx context.Context) (lockstore.Extent, error) {
	nodes, err := call(ctx, k.client, func(conn *zk.Conn) (int32, error) {
		there, stat, err := conn.Exists(k.locks())
		if err != nil || !there {
			return 0, err
		}
		return stat.NumChildren, nil
	})
	if err != nil {
		return lockstore.Extent{}, unread("extent", err)
	}
	return lockstore.Extent{Entries: int64(nodes)}, nil
}

// unread is the error of a method that changes no lock.
func unread(what string, err error) error {
	if !errors.Is(err, lockstore.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	return fmt.Errorf("zkstore: %s: %w", what, err)
}
