package datastore

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// Opener opens datastore URLs.
var Opener = lockstore.SchemeOpener{Schemes: []string{"datastore"}, Open: open}

const (
	skew   = 500 * time.Millisecond // between the clocks of the service's hosts
	margin = 250 * time.Millisecond
)

// open makes no network call.
func open(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	set, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	k := &kv{settings: set, client: httpclient.Client(httpclient.ReplyTimeout)}
	if !set.emulator {
		if k.token, err = credentials(cfg.Getenv("GOOGLE_APPLICATION_CREDENTIALS"), k.client); err != nil {
			return nil, err
		}
	}
	return casstore.New(k, options)
}

var options = casstore.Options{Name: "datastore", MaxClockSkew: skew, Margin: margin}

type settings struct {
	project, database, kind string
	base                    string // of the API's URLs
	emulator                bool
}

var names = regexp.MustCompile("^[A-Za-z0-9-]{1,63}$")

func parse(cfg lockstore.Config) (settings, error) {
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{Want: "datastore://PROJECT/DATABASE?kind=KIND", Host: true, Path: true, Params: []string{"kind"}})
	if err != nil {
		return settings{}, err
	}
	set := settings{project: cfg.URL.Host, database: strings.Trim(cfg.URL.Path, "/"), kind: cmp.Or(params["kind"], "Lock"), base: "https://datastore.googleapis.com"}
	if set.database == "(default)" {
		set.database = ""
	}
	// The errors show no part of the URL: a secret may stand there by mistake.
	switch {
	case !names.MatchString(set.project):
		return settings{}, invalid("the URL's project is missing or has other characters than letters, digits and '-'")
	case set.database != "" && !names.MatchString(set.database):
		return settings{}, invalid("the URL's database has other characters than letters, digits and '-'")
	case len(set.kind) > 100 || strings.HasPrefix(set.kind, "__"):
		return settings{}, invalid("the parameter kind is longer than 100 bytes or begins with __")
	}
	if host := cfg.Getenv("DATASTORE_EMULATOR_HOST"); host != "" {
		u, err := storeurl.Endpoint("http://" + strings.TrimPrefix(host, "http://"))
		if err != nil || !storeurl.IsThisMachine(u.Hostname()) {
			return settings{}, invalid("DATASTORE_EMULATOR_HOST is not host:port of this machine; the store uses no TLS there, so other machines are refused")
		}
		set.base, set.emulator = "http://"+u.Host, true
	}
	return set, nil
}

func invalid(format string, args ...any) error {
	return lockstore.Invalidf("datastore: "+format, args...)
}

// kv is the casstore.KV. Each key has one entity with one property.
type kv struct {
	settings
	client  *http.Client
	token   tokens       // nil for the emulator
	refused atomic.Value // a string: the token that the service refused last
}

// property has the value of the entry.
const property = "lock"

// object is a request of the REST API, or a part of one.
type object = map[string]any

// A property of an entity, and replies of the REST API.
type (
	value struct {
		StringValue        string `json:"stringValue"`
		ExcludeFromIndexes bool   `json:"excludeFromIndexes"`
	}
	lookupReply struct {
		Found []struct {
			Entity struct {
				Properties map[string]struct {
					StringValue *string `json:"stringValue"`
				} `json:"properties"`
			} `json:"entity"`
			Version    string    `json:"version"`
			UpdateTime time.Time `json:"updateTime"`
		} `json:"found"`
		Missing  []struct{} `json:"missing"`
		ReadTime time.Time  `json:"readTime"`
	}
	commitReply struct {
		MutationResults []struct {
			Version          string    `json:"version"`
			UpdateTime       time.Time `json:"updateTime"`
			ConflictDetected bool      `json:"conflictDetected"`
		} `json:"mutationResults"`
	}
)

func (k *kv) ClockResolution() time.Duration { return time.Microsecond }

func (k *kv) key(key string) object {
	return object{
		"partitionId": object{"projectId": k.project, "databaseId": k.database},
		"path":        []any{object{"kind": k.kind, "name": name(key)}},
	}
}

// name is a key as the name of an entity. Names like __this__ are the service's own.
func name(key string) string {
	if strings.HasPrefix(key, "__") || strings.HasPrefix(key, "=") {
		return "=" + key
	}
	return key
}

// Read implements casstore.KV. Every read is fresh.
func (k *kv) Read(ctx context.Context, key string, _ bool) (casstore.Entry, time.Time, error) {
	var reply lookupReply
	if err := k.call(ctx, "lookup", object{"databaseId": k.database, "keys": []any{k.key(key)}}, &reply); err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	now := reply.ReadTime.Truncate(k.ClockResolution())
	switch {
	case now.IsZero():
		return casstore.Entry{}, now, httpclient.Corrupt("the service's answer has no readTime (the older Datastore emulator has none)")
	case len(reply.Found) == 0 && len(reply.Missing) == 1:
		return casstore.Entry{}, now, nil
	case len(reply.Found) != 1:
		return casstore.Entry{}, now, httpclient.Unavailable("the service has put this read off") // deferred
	}
	found := reply.Found[0]
	lock, ok := found.Entity.Properties[property]
	if !ok || lock.StringValue == nil || len(found.Entity.Properties) != 1 {
		return casstore.Entry{}, now, httpclient.Corrupt("the entity of the kind " + k.kind + " is another program's")
	}
	e := casstore.Entry{Value: []byte(*lock.StringValue), Version: found.Version, WrittenAt: found.UpdateTime.Truncate(k.ClockResolution())}
	if e.Version == "" || e.WrittenAt.IsZero() {
		return casstore.Entry{}, now, httpclient.Corrupt("the service's answer has no version or no updateTime")
	}
	return e, now, nil
}

func (k *kv) Write(ctx context.Context, key string, text []byte, ifVersion string) (casstore.Entry, error) {
	e := object{"key": k.key(key), "properties": object{property: value{string(text), true}}}
	// Without FAIL the service may resolve a conflict by dropping the write, and say that it
	// was applied. An insert needs no strategy: there is none but to fail.
	mutation := object{"update": e, "baseVersion": ifVersion, "conflictResolutionStrategy": "FAIL"}
	if ifVersion == "" {
		mutation = object{"insert": e}
	}
	var reply commitReply
	err := k.call(ctx, "commit", object{"databaseId": k.database, "mode": "NON_TRANSACTIONAL", "mutations": []any{mutation}}, &reply)
	if err != nil {
		return casstore.Entry{}, err
	}
	if len(reply.MutationResults) != 1 {
		return casstore.Entry{}, errUnclear
	}
	result := reply.MutationResults[0]
	if result.ConflictDetected {
		return casstore.Entry{}, casstore.ErrConflict
	}
	return casstore.Entry{Version: result.Version, WrittenAt: result.UpdateTime.Truncate(k.ClockResolution())}, nil
}
