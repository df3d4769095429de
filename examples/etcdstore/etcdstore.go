// Package etcdstore keeps locks in etcd. It is an example of a store of one's own over a casstore.KV: copy this file.
//
// # Clock
//
// etcd's database has no clock. No reply says when a key was written, and the remaining time of an etcd lease may
// begin again when the leader changes. But the members also answer HTTP, and their answers have the header Date. So
// each Write first asks a member for its time, and writes it into the entry. Never keep such a time for a later
// Write: a lease would begin before its holder has asked for it, and end while the holder trusts it.
//
// A Date has whole seconds. So another owner gets the lock of a dead holder up to 2 s and MaxClockSkew after
// the end of the lease. If the members' clocks differ by more than MaxClockSkew, a lease may end early. Then only
// fences protect the resource.
//
// # Keys
//
// The entry of a key is at PREFIX/KEY: the time in seconds, a space, and the entry of casstore. A role needs
// read and write for the keys with this prefix. The store deletes no key.
package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

// Options are the settings of a store.
type Options struct {
	Client       *clientv3.Client // its endpoints begin with http:// or https://; the store's Close closes it
	Prefix       string           // of all keys, without the slash behind it
	HTTP         *http.Client     // asks the members for their time; nil is one with a timeout of a second
	MaxClockSkew time.Duration    // how far the members' clocks may disagree; 0 is 500 ms
}

// New returns a store, which makes no network call yet.
func New(opt Options) (*lockstore.Store, error) { return casstore.New(newKV(opt), options(opt)) }

func options(opt Options) casstore.Options {
	return casstore.Options{Name: "etcdstore", MaxClockSkew: cmp.Or(opt.MaxClockSkew, 500*time.Millisecond)}
}

func newKV(opt Options) *kv {
	return &kv{Client: opt.Client, http: cmp.Or(opt.HTTP, &http.Client{Timeout: time.Second}), prefix: opt.Prefix + "/"}
}

// kv is the casstore.KV: a key of etcd for each key.
type kv struct {
	*clientv3.Client // for Close
	http             *http.Client
	prefix           string
	failed           atomic.Uint32 // how many times a member has not said its time
}

func (k *kv) ClockResolution() time.Duration { return time.Second }

// Read implements casstore.KV. A fresh read is linearizable. Another one asks one member alone.
func (k *kv) Read(ctx context.Context, key string, fresh bool) (e casstore.Entry, now time.Time, err error) {
	how := []clientv3.OpOption{clientv3.WithSerializable()}
	if fresh {
		if now, err = k.now(ctx); err != nil {
			return e, now, err
		}
		how = nil
	}
	r, err := k.Get(ctx, k.prefix+key, how...)
	if err != nil || len(r.Kvs) == 0 {
		return e, now, explain(err)
	}
	stamp, value, _ := bytes.Cut(r.Kvs[0].Value, []byte(" "))
	seconds, err := strconv.ParseInt(string(stamp), 10, 64)
	if err != nil {
		return e, now, fmt.Errorf("the entry does not begin with a time: %w", lockstore.ErrCorrupt)
	}
	return casstore.Entry{Value: value, Version: version(r.Kvs[0].ModRevision), WrittenAt: time.Unix(seconds, 0)}, now, nil
}

// Write implements casstore.KV. The version is the revision of the whole database, which no other write has,
// also if the key was deleted meanwhile.
func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	now, err := k.now(ctx)
	if err != nil {
		return casstore.Entry{}, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err) // nothing was written
	}
	name, revision := k.prefix+key, int64(0) // 0 is that of no entry
	if ifVersion != "" {
		if revision, err = strconv.ParseInt(ifVersion, 10, 64); err != nil {
			return casstore.Entry{}, err
		}
	}
	r, err := k.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(name), "=", revision)).
		Then(clientv3.OpPut(name, fmt.Sprintf("%d %s", now.Unix(), value))).
		Commit()
	if err != nil {
		return casstore.Entry{}, explain(err)
	}
	if !r.Succeeded {
		return casstore.Entry{}, casstore.ErrConflict
	}
	return casstore.Entry{Version: version(r.Header.Revision), WrittenAt: now}, nil
}

func version(revision int64) string { return strconv.FormatInt(revision, 10) }

// now is the time of the first member that answers. It begins behind the one that failed last: a member that is silent until
// the end of one request must not take the time of the next one, too.
func (k *kv) now(ctx context.Context) (now time.Time, err error) {
	members := k.Endpoints()
	for range members {
		n := k.failed.Load()
		var failed error
		if now, failed = k.timeOf(ctx, members[int(n)%len(members)]); failed == nil {
			return now, nil
		}
		err = errors.Join(err, failed)
		if errors.Is(ctx.Err(), context.Canceled) { // the member may be well
			break
		}
		k.failed.CompareAndSwap(n, n+1)
		if ctx.Err() != nil { // the next member could not answer
			break
		}
	}
	return now, fmt.Errorf("no member says what time it is: %w", err)
}

func (k *kv) timeOf(ctx context.Context, member string) (now time.Time, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, member+"/version", nil)
	if err != nil {
		return now, err
	}
	reply, err := k.http.Do(request)
	if err != nil {
		return now, err
	}
	reply.Body.Close() // a reply to HEAD has none
	return http.ParseTime(reply.Header.Get("Date"))
}

// explain marks the errors after which it is certain that etcd has applied nothing. After all others it may have; after
// "database space exceeded", too.
func explain(err error) error {
	refusals := []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument}
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok && slices.Contains(refusals, e.Code()) {
		return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	return err
}
