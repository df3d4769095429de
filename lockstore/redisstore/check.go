package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Check implements driver.Checker. It reads INFO of the server, or of every master of a
// cluster. It finds an eviction policy that may delete live locks, a server with neither an
// append-only file nor a replica, a server that is a replica, a server in cluster mode behind a client
// that is not, and a server older than Redis 7. It needs one more permission than locking: INFO.
func (s *server) Check(ctx context.Context) ([]driver.Finding, error) {
	nodes, err := s.masters(ctx)
	if err != nil {
		return nil, err
	}
	var findings []driver.Finding
	for _, node := range nodes {
		var info string
		err := s.read(ctx, "INFO", func() (err error) {
			info, err = node.Info(ctx).Result()
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, f := range findingsIn(info, s.cluster) {
			if !slices.Contains(findings, f) { // all nodes of a cluster have the same problem
				findings = append(findings, f)
			}
		}
	}
	return findings, nil
}

// oldest is the first version of Redis with the commands of the scripts.
const oldest = 7

func findingsIn(info string, clusterClient bool) (found []driver.Finding) {
	version, policy := infoField(info, "redis_version"), infoField(info, "maxmemory_policy") // Valkey has the first one, too
	number, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(number)
	for _, f := range []struct {
		is           bool
		problem, fix string
	}{
		{err == nil && major < oldest,
			fmt.Sprintf("the server is Redis %s: it grants free keys, and fails when a key is not free", version),
			fmt.Sprintf("use Redis %d or later, or Valkey", oldest)},
		{infoField(info, "cluster_enabled") == "1" && !clusterClient,
			"the server is in cluster mode, and the client is not: it reaches the keys of this one node only",
			"add cluster=true to the URL"},
		{infoField(info, "aof_enabled") == "0" && infoField(info, "connected_slaves") == "0" && !isReplica(info),
			"the server has no append-only file and no replica: a restart loses all leases and results, and then two owners may hold the same key",
			"set appendonly to yes, or add a replica and an automatic failover; in either case check fences in the resource, because the last second may be lost"},
		{policy != "" && policy != "noeviction",
			fmt.Sprintf("the eviction policy is %s: when memory runs out the server may delete live locks, and then two owners hold the same key", policy),
			"set maxmemory-policy to noeviction (ElastiCache: in the parameter group); " +
				"where it cannot be set (ElastiCache Serverless) keep memory use below the limit, with an alarm, and check fences in the resource"},
		{isReplica(info),
			"this server is a replica: it refuses every lock, or, with replica-read-only set to no, grants locks of which its primary does not know",
			"use the primary's address in the URL"},
	} {
		if f.is {
			found = append(found, driver.Finding{Problem: f.problem, Fix: f.fix})
		}
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
