package histories

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/go-zookeeper/zk"
	_ "github.com/lib/pq" // the driver
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// system is a store set-up that runs.
type system struct {
	t testing.TB
	// open opens the store of one client.
	open func(seed uint64) *lockstore.Store

	write    []string // one of these texts is in each request that changes something
	servers  []*testservers.Server
	cuts     []*testservers.CutProxy
	pair     *pair
	ensemble *testservers.Ensemble

	// erase deletes a key's entry, as an operator would.
	erase func(key string)
}

// setup is a column of the table.
type setup struct {
	name   string
	late   time.Duration // how long after the end of a TTL a key may still be busy
	length time.Duration // of a history; it goes on for a while when too little has happened
	start  func(t *testing.T, f *fault) *system
	// atLeast is how many operations each history has; 0 is whatever happens.
	atLeast int
	// histories is how many there are at most; 0 is as many as elsewhere. Each new connection to PostgreSQL costs a process.
	histories int
	repeats   bool // the store's client repeats a request within its call
	// learnsTime says that a process knows the server's time from its last reply, which may be late.
	learnsTime bool
}

// limits are those of a fault's histories.
func (s *setup) limits(f *fault) checker.Limits {
	l := checker.Limits{Early: drift, Late: s.late, Refusals: !s.repeats && !f.late}
	if s.learnsTime {
		l.Late += slowReply
		if f.late {
			l.Late += callTime
		}
	}
	return l
}

const (
	dynamo       = "dynamodb local"
	redisOne     = "redis"
	valkey       = "valkey"
	redisPair    = "redis with replica"
	redisCluster = "redis cluster"
	zooKeeper    = "zookeeper"
	postgres     = "postgres"
)

// slowReply is how long a reply takes at most on a machine with too much to do. For that long a process believes that
// it is earlier than it is.
const slowReply = 500 * time.Millisecond

// drift is how far the server's clock and this one drift apart in a TTL. The recorder reads its clock before and
// after each call, so its own error is on the safe side.
const drift = 2 * time.Millisecond

// dynamoLate is the documented bound: a takeover comes after TTL + 2 skew + 2 s.
const dynamoLate = 2*dynamostore.DefaultSkew + 2*time.Second

// zooKeeperSkew is zkstore.Options.MaxClockSkew by default.
const zooKeeperSkew = 500 * time.Millisecond

var setups = []*setup{
	{name: dynamo, late: dynamoLate, length: 14 * time.Second, atLeast: 400, start: startDynamo, repeats: true},
	{name: redisOne, late: drift, length: 10 * time.Second, atLeast: 1000, start: single(testservers.RedisServer)},
	{name: valkey, late: drift, length: 10 * time.Second, atLeast: 1000, start: single(testservers.ValkeyServer)},
	{name: redisPair, late: drift, length: 11 * time.Second, atLeast: 1000, start: onPair(testservers.RedisServer)},
	{name: redisCluster, late: drift, length: 11 * time.Second, atLeast: 1000, start: startCluster, repeats: true},
	{name: zooKeeper, late: drift + zooKeeperSkew + 2*time.Millisecond, length: 7 * time.Second, atLeast: 250, start: startZooKeeper, learnsTime: true},
	{name: postgres, late: drift, length: 8 * time.Second, atLeast: 300, start: startPostgres, histories: 2, repeats: true, learnsTime: true},
}

// connect puts the fault's proxy before a server.
func (s *system) connect(t *testing.T, f *fault, addr string) string {
	if !f.proxied {
		return addr
	}
	p := testservers.Proxy(t, addr)
	s.cuts = append(s.cuts, p)
	return p.Addr
}

const table = "locks"

func startDynamo(t *testing.T, f *fault) *system {
	server := testservers.StartDynamoDB(t)
	s := &system{t: t, servers: []*testservers.Server{server}, write: []string{"UpdateItem"}}
	testservers.Table(t, "http://"+server.Addr, table, "key")
	endpoint := "http://" + s.connect(t, f, server.Addr)
	s.open = func(uint64) *lockstore.Store {
		store, err := dynamostore.New(dynamoClient(t, endpoint), table, dynamostore.Options{})
		require.NoError(t, err)
		return store.Store
	}
	// An operator waits longer than a function.
	admin := dynamodb.New(dynamoClient(t, "http://"+server.Addr).Options(), func(o *dynamodb.Options) { o.HTTPClient = &http.Client{Timeout: time.Minute} })
	s.erase = func(key string) {
		_, err := admin.DeleteItem(context.Background(), &dynamodb.DeleteItemInput{TableName: aws.String(table), Key: map[string]types.AttributeValue{
			"key": &types.AttributeValueMemberS{Value: key},
		}})
		require.NoError(t, err)
	}
	return s
}

// dynamoClient is the client that dynamostore.Open uses.
func dynamoClient(t *testing.T, endpoint string) *dynamodb.Client {
	u, err := url.Parse("dynamodb://" + table + "?endpoint=" + endpoint)
	require.NoError(t, err)
	client, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	return client
}

func single(program string) func(*testing.T, *fault) *system {
	return func(t *testing.T, f *fault) *system {
		if f.processes > 0 {
			return onPair(program)(t, f)
		}
		server := testservers.Start(t, program, f.redis...)
		s := &system{t: t, servers: []*testservers.Server{server}, write: []string{"evalsha"}}
		addr := s.connect(t, f, server.Addr)
		s.redis(t, "redis://"+server.Addr, func(string) string { return addr })
		return s
	}
}

func onPair(program string) func(*testing.T, *fault) *system {
	return func(t *testing.T, f *fault) *system {
		s := &system{t: t, pair: startPair(t, program, f.redis...), write: []string{"evalsha"}}
		first := s.pair.server()
		s.servers = []*testservers.Server{first}
		addr := s.connect(t, f, first.Addr)
		s.redis(t, "redis://"+first.Addr, func(string) string {
			if f.proxied {
				return addr
			}
			return s.pair.primaryAddr() // as a name that follows the primary
		})
		return s
	}
}

func startCluster(t *testing.T, f *fault) *system {
	s := &system{t: t, servers: testservers.StartCluster(t, testservers.RedisServer, f.redis...), write: []string{"evalsha"}}
	route := map[string]string{}
	for _, node := range s.servers {
		route[node.Addr] = s.connect(t, f, node.Addr)
	}
	s.redis(t, "redis://"+s.servers[0].Addr+"?cluster=true", func(addr string) string { return route[addr] })
	return s
}

// startZooKeeper starts one server, or an ensemble where the leader fails.
func startZooKeeper(t *testing.T, f *fault) *system {
	s := &system{t: t, write: []string{"lambdalock2 "}} // the beginning of the data of a lock's node
	if f.name == keyMoves {
		s.ensemble = testservers.ZooKeeperEnsemble(t)
		s.servers = s.ensemble.Servers
	} else {
		s.servers = []*testservers.Server{testservers.ZooKeeper(t)}
	}
	var addrs []string
	for _, server := range s.servers {
		addrs = append(addrs, s.connect(t, f, server.Addr))
	}
	s.open = func(uint64) *lockstore.Store {
		store, err := zkstore.New(zkstore.Options{Servers: addrs})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		return store
	}
	if f.name == dataLost {
		admin, _, err := zk.Connect([]string{s.servers[0].Addr}, time.Minute, zk.WithLogInfo(false))
		require.NoError(t, err)
		t.Cleanup(admin.Close)
		s.erase = func(key string) { eraseNode(t, admin, zkstore.DefaultPrefix+"/locks/"+url.PathEscape(key)) }
	}
	return s
}

// eraseNode deletes the node of a lock, and its child.
func eraseNode(t *testing.T, admin *zk.Conn, path string) {
	children, _, err := admin.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return
	}
	require.NoError(t, err)
	var deletes []any
	for _, child := range children {
		deletes = append(deletes, &zk.DeleteRequest{Path: path + "/" + child, Version: -1})
	}
	_, err = admin.Multi(append(deletes, &zk.DeleteRequest{Path: path, Version: -1})...)
	require.NoError(t, err)
}

func startPostgres(t *testing.T, f *fault) *system {
	server := testservers.StartPostgreSQL(t)
	s := &system{t: t, servers: []*testservers.Server{server}}
	addr := s.connect(t, f, server.Addr)
	open := func(addr string) *sql.DB {
		db, err := sql.Open("postgres", testservers.PostgreSQLURL(addr)+"&connect_timeout=2")
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() }) // its error is that of a connection that has ended before
		return db
	}
	db := open(server.Addr)
	db.SetMaxIdleConns(0) // a connection may have ended since it was used
	table := sqlstore.Table{Dialect: sqlstore.PostgreSQL}
	schema, err := table.Schema()
	require.NoError(t, err)
	do := func(statement string, args ...any) {
		_, err := db.ExecContext(context.Background(), statement, args...)
		require.NoError(t, err)
	}
	do(schema)
	s.write = []string{"SET version =", "INSERT INTO"}
	s.open = func(uint64) *lockstore.Store {
		store, err := sqlstore.New(open(addr), sqlstore.Options{Table: table})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		return store
	}
	s.erase = func(key string) { do("DELETE FROM "+sqlstore.DefaultTable+" WHERE key = $1", key) }
	return s
}

// redis opens the stores of clients, whose client is that of redisstore.Open, but connects where route says.
func (s *system) redis(t *testing.T, rawURL string, route route) {
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	s.open = func(uint64) *lockstore.Store {
		client, err := redisstore.Client(lockstore.Config{URL: u})
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		if cluster, ok := client.(*redis.ClusterClient); ok {
			cluster.OnNewNode(func(node *redis.Client) { node.AddHook(route) })
		} else {
			client.AddHook(route)
		}
		store, err := redisstore.New(client, redisstore.Options{})
		require.NoError(t, err)
		return store
	}
}

// route says where a client connects that wants to connect to an address.
type route func(addr string) string

func (r route) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, r(addr)) }
}

func (route) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (route) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// onAll sends one command to all servers.
func (s *system) onAll(args ...any) {
	for _, server := range s.servers {
		command(s.t, server.Addr, args...)
	}
}
