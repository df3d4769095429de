package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// kv is the casstore.KV: a node for each key.
type kv struct {
	*client
	paths
	acl []zk.ACL
}

var (
	_ casstore.KV     = (*kv)(nil)
	_ casstore.Waker  = (*kv)(nil)
	_ casstore.Lister = (*kv)(nil)
	_ driver.Checker  = (*kv)(nil)
	_ io.Closer       = (*kv)(nil)
)

func (k *kv) ClockResolution() time.Duration { return time.Millisecond }

// Read implements casstore.KV. A fresh read writes the clock node first.
func (k *kv) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	get := func(conn *zk.Conn) (casstore.Entry, error) { return k.get(conn, key) }
	if fresh {
		return synced(ctx, k, get)
	}
	e, err := call(ctx, k.client, get)
	return e, time.Time{}, err
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

// synced writes the clock node before read, whatever its version is. The write gives the servers' time, and what read
// asks for in the same session has every write that ended before.
func synced[T any](ctx context.Context, k *kv, read func(*zk.Conn) (T, error)) (T, time.Time, error) {
	type answer struct {
		value T
		now   time.Time
	}
	a, err := call(ctx, k.client, func(conn *zk.Conn) (a answer, err error) {
		stat, err := withParents(k, conn, func() (*zk.Stat, error) { return conn.Set(k.clock(), nil, anyVersion) })
		if err != nil {
			return a, err
		}
		a.now = stamp(stat)
		a.value, err = read(conn)
		return a, err
	})
	return a.value, a.now, err
}

// withParents does something again after it has made the parents of the nodes, if they were missing.
func withParents[T any](k *kv, conn *zk.Conn, do func() (T, error)) (T, error) {
	value, err := do()
	if errors.Is(err, zk.ErrNoNode) {
		if err := k.createParents(conn); err != nil {
			return value, err
		}
		value, err = do()
	}
	return value, err
}

func (k *kv) createParents(conn *zk.Conn) error {
	for _, path := range k.above() {
		_, err := conn.Create(path, nil, 0, k.acl)
		if errors.Is(err, zk.ErrNoAuth) {
			// The server looks at the rights on the parent before it looks for the node.
			if exists, _, lookErr := conn.Exists(path); lookErr == nil && exists {
				continue
			}
		}
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			level := strings.Count(path, "/") // the path has the prefix, which no error shows
			return fmt.Errorf("the parents of the locks' nodes: level %d of their path cannot be made; the ACL of level %d says who may: %w", level, level-1, err)
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

// WriteAndWake implements casstore.Waker. One transaction writes the lock's node and deletes those of the owners.
func (k *kv) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	path := k.lock(key)
	if ifVersion == "" { // nobody waits
		v := version{newBirth(), 1}
		return k.multi(ctx, v, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
			return withParents(k, conn, func() ([]zk.MultiResponse, error) {
				return conn.Multi(
					&zk.CreateRequest{Path: path, Acl: k.acl},
					&zk.CreateRequest{Path: birthNode(path, v), Acl: k.acl},
					// The reply to a create has no time, and the reply to this has one.
					&zk.SetDataRequest{Path: path, Data: encode(v.birth, value), Version: 0})
			})
		})
	}
	v, err := parseVersion(ifVersion)
	if err != nil {
		return casstore.Entry{}, err
	}
	next := version{v.birth, v.count + 1}
	ops := []any{
		&zk.CheckVersionRequest{Path: birthNode(path, v), Version: 0},
		&zk.SetDataRequest{Path: path, Data: encode(v.birth, value), Version: v.count},
	}
	for owner := range notes {
		ops = append(ops, &zk.DeleteRequest{Path: k.waiter(key, owner), Version: anyVersion})
	}
	return k.multi(ctx, next, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		done, err := conn.Multi(ops...)
		if len(notes) > 0 && (errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth)) {
			// Probably an owner does not listen, or its node may not be deleted. The others are woken after the write.
			if done, err = conn.Multi(ops[:2]...); err == nil {
				go func() {
					for owner := range notes {
						k.delete(k.waiter(key, owner))
					}
				}()
			}
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

// multi writes, and reads the time from the reply to the only operation that sets data.
func (k *kv) multi(ctx context.Context, v version, write func(*zk.Conn) ([]zk.MultiResponse, error)) (casstore.Entry, error) {
	done, err := call(ctx, k.client, write)
	switch {
	case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode):
		return casstore.Entry{}, casstore.ErrConflict
	case err != nil:
		return casstore.Entry{}, err
	}
	i := slices.IndexFunc(done, func(r zk.MultiResponse) bool { return r.Stat != nil })
	if i < 0 || done[i].Stat.Version != v.count {
		return casstore.Entry{}, errors.New("the reply to a write has no version or a wrong one")
	}
	return casstore.Entry{Version: v.text(), WrittenAt: stamp(done[i].Stat)}, nil
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

// Listen implements casstore.Waker. An owner that waits has a node, and whoever deletes
// the node wakes the owner, without a note. The node is ephemeral, so that it ends with its process.
func (k *kv) Listen(ctx context.Context, key, owner string, _ time.Time) (<-chan string, bool, func(), error) {
	path := k.waiter(key, owner)
	woken, stopped := make(chan string), make(chan struct{})
	_, err := call(ctx, k.client, func(conn *zk.Conn) (struct{}, error) {
		events, err := k.watch(conn, path)
		// This comes also after the end of ctx, and after an error: the node may be there.
		go func() {
			select {
			case <-events:
				close(woken)
			case <-stopped:
				k.delete(path)
			}
		}()
		return struct{}{}, err
	})
	if err != nil {
		close(stopped)
		return nil, false, nil, err
	}
	return woken, false, func() { close(stopped) }, nil
}

// watch makes the node of a waiter. It returns what tells that the node is deleted; nil, which
// never tells, with an error.
func (k *kv) watch(conn *zk.Conn, path string) (<-chan zk.Event, error) {
	_, err := withParents(k, conn, func() (string, error) { return conn.Create(path, nil, zk.FlagEphemeral, k.acl) })
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return nil, err
	}
	_, _, events, err := conn.GetW(path)
	if errors.Is(err, zk.ErrNoNode) { // somebody has deleted it meanwhile
		closed := make(chan zk.Event)
		close(closed)
		return closed, nil
	}
	if err != nil {
		return nil, err
	}
	return events, nil
}

// delete deletes a node of a waiter, which has no version. After an error the waiter looks for itself, and the node
// ends with its session.
func (k *kv) delete(path string) {
	_, _ = call(context.Background(), k.client, func(conn *zk.Conn) (struct{}, error) {
		return struct{}{}, conn.Delete(path, anyVersion)
	})
}
