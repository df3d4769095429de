package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// kv is the casstore.KV: a node for each key.
type kv struct {
	*client
	paths
	acl []zk.ACL

	watching sync.Mutex
	watches  map[string]chan struct{} // the watches of wake-up nodes, by path
}

var (
	_ casstore.KV     = (*kv)(nil)
	_ casstore.Waker  = (*kv)(nil)
	_ casstore.Lister = (*kv)(nil)
	_ driver.Checker  = (*kv)(nil)
	_ io.Closer       = (*kv)(nil)
)

// ClockResolution implements casstore.KV.
func (k *kv) ClockResolution() time.Duration { return time.Millisecond }

// Read implements casstore.KV. A fresh read writes the clock node first.
func (k *kv) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	type answer struct {
		entry casstore.Entry
		now   time.Time
	}
	get := func(conn *zk.Conn, now time.Time) (answer, error) {
		entry, err := k.get(conn, key)
		return answer{entry, now}, err
	}
	var a answer
	var err error
	if fresh {
		a, err = synced(ctx, k, get)
	} else {
		a, err = call(ctx, k.client, func(conn *zk.Conn) (answer, error) { return get(conn, time.Time{}) })
	}
	if err != nil {
		return casstore.Entry{}, time.Time{}, explain(err)
	}
	return a.entry, a.now, nil
}

// get reads the entry of a node. That of no node is empty.
func (k *kv) get(conn *zk.Conn, key string) (casstore.Entry, error) {
	data, stat, err := conn.Get(k.lock(key))
	if errors.Is(err, zk.ErrNoNode) {
		return casstore.Entry{}, nil
	}
	if err != nil {
		return casstore.Entry{}, err
	}
	return decode(data, stat)
}

// synced writes the clock node before read. The write gives the servers' time, and what read
// asks for in the same session has every write that ended before.
func synced[T any](ctx context.Context, k *kv, read func(conn *zk.Conn, now time.Time) (T, error)) (T, error) {
	return call(ctx, k.client, func(conn *zk.Conn) (none T, err error) {
		session := conn.SessionID()
		now, err := k.now(conn)
		if err != nil {
			return none, err
		}
		value, err := read(conn, now)
		if err == nil && conn.SessionID() != session {
			return none, errors.New("the session ended between the requests of a read")
		}
		return value, err
	})
}

// now writes the clock node. Any version of it will do.
func (k *kv) now(conn *zk.Conn) (time.Time, error) {
	stat, err := conn.Set(k.clock(), nil, anyVersion)
	if errors.Is(err, zk.ErrNoNode) {
		if err := k.createParents(conn); err != nil {
			return time.Time{}, err
		}
		stat, err = conn.Set(k.clock(), nil, anyVersion)
	}
	if err != nil {
		return time.Time{}, err
	}
	return stamp(stat), nil
}

func (k *kv) createParents(conn *zk.Conn) error { return k.create(conn, k.above()) }

// create makes the nodes of these names that do not exist.
func (k *kv) create(conn *zk.Conn, all []string) error {
	for _, path := range all {
		_, err := conn.Create(path, nil, 0, k.acl)
		if errors.Is(err, zk.ErrNoAuth) {
			// The server looks at the rights on the parent before it looks for the node.
			if exists, _, lookErr := conn.Exists(path); lookErr == nil && exists {
				continue
			}
		}
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("the node %s: %w", path, err)
		}
	}
	return nil
}

// Write implements casstore.KV. ZooKeeper's versions begin again when a node is
// deleted, so each node has a child that is named after its birth. A write also checks
// that child.
func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return k.WriteAndWake(ctx, key, value, ifVersion, nil)
}

// WriteAndWake implements casstore.Waker. The write of a lock's node and those of the wake-up nodes are one
// transaction.
func (k *kv) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, owners []string) (casstore.Entry, error) {
	path := k.lock(key)
	if ifVersion == "" { // nobody waits
		v := version{newBirth(), 1}
		return k.multi(ctx, v, 2, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
			create := func() ([]zk.MultiResponse, error) {
				return conn.Multi(
					&zk.CreateRequest{Path: path, Acl: k.acl},
					&zk.CreateRequest{Path: birthNode(path, v), Acl: k.acl},
					// The reply to a create has no time, and the reply to this has one.
					&zk.SetDataRequest{Path: path, Data: encode(v.birth, value), Version: 0})
			}
			done, err := create()
			if errors.Is(err, zk.ErrNoNode) {
				if err := k.createParents(conn); err != nil {
					return nil, err
				}
				done, err = create()
			}
			return done, err
		})
	}
	v, err := parseVersion(ifVersion)
	if err != nil {
		return casstore.Entry{}, err
	}
	next := version{v.birth, v.count + 1}
	wakeUps := k.wakeUps(key, owners)
	ops := []any{
		&zk.CheckVersionRequest{Path: birthNode(path, v), Version: 0},
		&zk.SetDataRequest{Path: path, Data: encode(v.birth, value), Version: v.count},
	}
	for _, node := range wakeUps {
		ops = append(ops, &zk.SetDataRequest{Path: node, Version: anyVersion})
	}
	return k.multi(ctx, next, 1, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		done, err := conn.Multi(ops...)
		if len(wakeUps) > 0 && (errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth)) {
			// Mostly a node for wake-ups that nobody has used yet. If the user may not make or change it, the key
			// is handed over without a wake-up.
			if errors.Is(err, zk.ErrNoAuth) || k.create(conn, wakeUps) != nil {
				ops = ops[:2]
			}
			done, err = conn.Multi(ops...)
		}
		if errors.Is(err, zk.ErrNoNode) {
			if e, _, err := conn.Get(path); err == nil && string(e[:min(len(e), birthLength)]) == v.birth {
				return nil, fmt.Errorf("the node has lost its child %s: delete the node while nobody holds the lock: %w", v.birth, lockstore.ErrCorrupt)
			}
		}
		return done, err
	})
}

func birthNode(path string, v version) string { return path + "/" + v.birth }

// multi writes, and reads the time from the reply to one of the operations.
func (k *kv) multi(ctx context.Context, v version, timed int, write func(*zk.Conn) ([]zk.MultiResponse, error)) (casstore.Entry, error) {
	done, err := call(ctx, k.client, write)
	switch {
	case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode):
		return casstore.Entry{}, casstore.ErrConflict
	case err != nil:
		return casstore.Entry{}, explain(err)
	}
	stat := done[timed].Stat
	if stat == nil || stat.Version != v.count {
		return casstore.Entry{}, errors.New("the reply to a write has no version or a wrong one")
	}
	return casstore.Entry{Version: v.String(), WrittenAt: stamp(stat)}, nil
}

// explain marks an error after which it is certain that nothing was applied. After all
// others, the end of the connection for one, a write may have been applied.
func explain(err error) error {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w: the server denies access to the node: look at %s and at the node's ACL: %w", lockstore.ErrUnavailable, authVariable, err)
	case errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL), errors.Is(err, zk.ErrNoServer):
		return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	return err
}

// Listen implements casstore.Waker. Waiters of one process that have the same wake-up node share a watch, since
// ZooKeeper's client keeps a watch until the node changes.
func (k *kv) Listen(ctx context.Context, key, owner string) (<-chan struct{}, func(), error) {
	path := k.wakeUp(key, owner)
	k.watching.Lock()
	woken := k.watches[path]
	k.watching.Unlock()
	if woken == nil {
		var err error
		if woken, err = call(ctx, k.client, func(conn *zk.Conn) (chan struct{}, error) { return k.watch(conn, path) }); err != nil {
			return nil, nil, err
		}
	}
	return woken, func() {}, nil
}

// watch returns what is closed when a wake-up node changes or is made, and when the session ends.
func (k *kv) watch(conn *zk.Conn, path string) (chan struct{}, error) {
	_, _, events, err := conn.ExistsW(path)
	if err != nil {
		return nil, err
	}
	woken := make(chan struct{})
	k.watching.Lock()
	k.watches[path] = woken
	k.watching.Unlock()
	go func() {
		<-events
		k.watching.Lock()
		if k.watches[path] == woken {
			delete(k.watches, path)
		}
		k.watching.Unlock()
		close(woken)
	}()
	return woken, nil
}
