package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Check implements lockstore.Checker. It reads INFO of the server, or of every master of a
// cluster. It finds an eviction policy that may delete live locks, and a server that is a
// replica. It needs one more permission than locking: INFO.
func (s *Store) Check(ctx context.Context) ([]lockstore.Finding, error) {
	if err := s.made(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisstore: check: not sent: %w: %w", lockstore.ErrUnavailable, err)
	}
	var (
		mu       sync.Mutex
		findings []lockstore.Finding
	)
	check := func(ctx context.Context, node redis.Cmdable) error {
		text, err := node.Info(ctx).Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, f := range findingsIn(text) {
			if !slices.Contains(findings, f) { // all nodes of a cluster have the same problem
				findings = append(findings, f)
			}
		}
		return nil
	}
	var failed error
	err := new(detached).run(ctx, func() {
		if cluster, ok := s.client.(*redis.ClusterClient); ok {
			failed = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return check(ctx, node) })
		} else {
			failed = check(ctx, s.client)
		}
	})
	if err == nil && failed != nil {
		err = withContext(ctx, withoutSecrets(failed, ""))
	}
	if err != nil {
		// INFO changes nothing, so whatever failed, nothing was applied.
		return nil, fmt.Errorf("redisstore: check: INFO failed: %w: %w", lockstore.ErrUnavailable, withAdvice(err))
	}
	return findings, nil
}

func findingsIn(info string) []lockstore.Finding {
	var found []lockstore.Finding
	if policy := infoField(info, "maxmemory_policy"); policy != "" && policy != "noeviction" {
		found = append(found, lockstore.Finding{
			Problem: fmt.Sprintf("the eviction policy is %s: when memory runs out the server may delete live locks, and then two owners hold the same key", policy),
			Fix: "set maxmemory-policy to noeviction (ElastiCache: in the parameter group); " +
				"where it cannot be set (ElastiCache Serverless) keep memory use below the limit, with an alarm, and check fences in the resource",
		})
	}
	if isReplica(info) {
		found = append(found, lockstore.Finding{
			Problem: "this server is a replica: it refuses every lock, or, with replica-read-only set to no, grants locks of which its primary does not know",
			Fix:     "use the primary's address in the URL",
		})
	}
	return found
}

func isReplica(info string) bool {
	role := infoField(info, "role")
	return role == "slave" || role == "replica"
}

// infoField returns the value of a line "name:value" of INFO's answer.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
