package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
)

// List implements driver.Lister. It sends SCAN to the server, or to every master of a
// cluster, and one request for each key that it finds. It needs two more permissions than
// locking: SCAN and INFO. A failover meanwhile may hide keys.
func (s *server) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	nodes, err := s.masters(ctx)
	if err != nil {
		return err
	}
	match := escapeGlob(s.prefix+prefix) + "*"
	seen, seed := map[uint64]bool{}, maphash.MakeSeed() // SCAN may return a key more than once
	for _, node := range nodes {
		for cursor := uint64(0); ; {
			var scan *redis.ScanCmd
			err := s.readPrimary(ctx, "SCAN", node, func(p redis.Pipeliner) { scan = p.ScanType(ctx, cursor, match, 1000, "string") })
			if err != nil {
				return err
			}
			var names []string
			names, cursor = scan.Val()
			p := driver.Page{Requests: 1}
			for _, name := range names {
				key, ours := strings.CutPrefix(name, s.prefix)
				hash := maphash.String(seed, name)
				if !ours || seen[hash] || lockstore.ValidateKey(key) != nil {
					continue
				}
				seen[hash] = true
				p.Requests++
				a, err := s.Do(ctx, key, driver.Request{Kind: driver.Inspect})
				switch {
				case errors.Is(err, lockstore.ErrCorrupt):
					p.Damaged++
					p.DamagedNames = append(p.DamagedNames, name)
				case err != nil:
					return err
				case a.Status.Fence != 0: // or the entry has gone meanwhile
					p.Keys = append(p.Keys, driver.Listed{Key: key, Status: a.Status})
				}
			}
			if err := page(p); err != nil {
				return err
			}
			if cursor == 0 {
				break
			}
		}
	}
	return nil
}

// Extent implements driver.Lister by DBSIZE: all keys of the server or of all masters
// of a cluster, locks or not.
func (s *server) Extent(ctx context.Context) (driver.Extent, error) {
	nodes, err := s.masters(ctx)
	if err != nil {
		return driver.Extent{}, err
	}
	var e driver.Extent
	for _, node := range nodes {
		var size *redis.IntCmd
		if err := s.readPrimary(ctx, "DBSIZE", node, func(p redis.Pipeliner) { size = p.DBSize(ctx) }); err != nil {
			return driver.Extent{}, err
		}
		e.Entries += size.Val()
	}
	return e, nil
}

// readPrimary sends a command that only reads, and over the same connection INFO. What a
// replica reads may be old.
func (s *server) readPrimary(ctx context.Context, what string, node redis.Cmdable, read func(redis.Pipeliner)) error {
	return s.read(ctx, what, func() error {
		var info *redis.StringCmd
		_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
			read(p)
			info = p.Info(ctx)
			return nil
		})
		if err == nil && isReplica(info.Val()) {
			err = errors.New("this server is a replica; want the primary's address in the URL")
		}
		return err
	})
}

// masters are the server, or all masters of a cluster.
func (s *server) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return []redis.Cmdable{s.client}, nil
	}
	var mu sync.Mutex
	var all []redis.Cmdable
	err := s.read(ctx, "the list of the masters", func() error {
		return cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node)
			return nil
		})
	})
	if err != nil {
		return nil, err // the client may be at work on the list
	}
	return all, nil
}

// read calls the client for a command that only reads, so a failure means that nothing was
// applied. It returns when ctx ends.
func (s *server) read(ctx context.Context, what string, f func() error) error {
	_, err := beside.Do(ctx, func() (struct{}, error) { return struct{}{}, f() })
	if err != nil {
		return fmt.Errorf("redisstore: %s failed: %w: %w", what, lockstore.ErrUnavailable, s.withAdvice(meaningOf(err), withContext(ctx, withoutSecrets(err, ""))))
	}
	return nil
}

// escapeGlob makes a text that, as a pattern of SCAN, matches itself alone.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
