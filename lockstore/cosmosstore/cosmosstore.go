package cosmosstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// Opener opens cosmos URLs.
var Opener = lockstore.SchemeOpener{Schemes: []string{"cosmos"}, Open: open}

const (
	// skew is between the clocks of the service's hosts. It is whole seconds, as the stamps
	// are: lockstore.Refused.StateEndsIn would be too short by the rest.
	skew   = time.Second
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
	return newStore(set, httpclient.Client(httpclient.ReplyTimeout))
}

func newStore(set settings, h *http.Client) (*lockstore.Store, error) {
	k, err := newKV(set, h)
	if err != nil {
		return nil, err
	}
	return casstore.New(k, options)
}

var options = casstore.Options{Name: "cosmosstore", MaxClockSkew: skew, Margin: margin}

type settings struct {
	endpoint, database, name string
	key                      azcosmos.KeyCredential
}

// client returns the client of the container.
func (set settings) client(t *transport) (*azcosmos.ContainerClient, error) {
	opt := &azcosmos.ClientOptions{}
	opt.Transport = t
	opt.Retry.MaxRetries = -1 // none: the guard repeats requests, because the guard knows how much time is left
	client, err := azcosmos.NewClientWithKey(set.endpoint, set.key, opt)
	if err != nil {
		return nil, invalid("the endpoint cannot be used")
	}
	container, err := client.NewContainer(set.database, set.name)
	if err != nil {
		return nil, invalid("the database or the container cannot be used")
	}
	return container, nil
}

// emulatorKey is in Microsoft's documentation, and the same for everybody.
const emulatorKey = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="

var account = regexp.MustCompile("^[a-z0-9-]{3,44}$")

func parse(cfg lockstore.Config) (settings, error) {
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{Want: "cosmos://ACCOUNT/DATABASE/CONTAINER?endpoint=https://HOST", Host: true, Path: true, Params: []string{"endpoint"}})
	if err != nil {
		return settings{}, err
	}
	u := cfg.URL
	path := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	// The errors show no part of the URL: a secret may stand there by mistake.
	switch {
	case !account.MatchString(u.Host):
		return settings{}, invalid("the URL's account is not 3 to 44 lower-case letters, digits and '-'")
	case len(path) != 2 || !isID(path[0]) || !isID(path[1]):
		return settings{}, invalid("the URL's path is not a database and a container; want cosmos://ACCOUNT/DATABASE/CONTAINER")
	}
	set := settings{endpoint: "https://" + u.Host + ".documents.azure.com:443/", database: path[0], name: path[1]}
	key := cfg.Getenv("AZURE_COSMOS_KEY")
	if raw, ok := params["endpoint"]; ok {
		e, err := storeurl.Endpoint(raw)
		if err != nil {
			return settings{}, fmt.Errorf("cosmosstore: the parameter endpoint: %w", err)
		}
		local := storeurl.IsThisMachine(e.Hostname())
		if e.Scheme == "http" && !local {
			return settings{}, invalid("the endpoint is without TLS and its host is not this machine; want https://")
		}
		set.endpoint = e.Scheme + "://" + e.Host + "/"
		if local && key == "" {
			key = emulatorKey
		}
	}
	if key == "" {
		return settings{}, invalid("the account's key is missing: set AZURE_COSMOS_KEY")
	}
	if set.key, err = azcosmos.NewKeyCredential(key); err != nil {
		return settings{}, invalid("AZURE_COSMOS_KEY is not a key: it is not base64")
	}
	return set, nil
}

func isID(name string) bool {
	return name != "" && len(name) <= 255 && !strings.ContainsAny(name, `/\?#`) && strings.TrimSpace(name) == name
}

func invalid(format string, args ...any) error {
	return lockstore.Invalidf("cosmosstore: "+format, args...)
}

// kv is the casstore.KV. Each key has one item.
type kv struct {
	settings  // of the URL, and the account's key
	container *azcosmos.ContainerClient
}

var (
	_ casstore.KV    = (*kv)(nil)
	_ driver.Checker = (*kv)(nil)
)

func newKV(set settings, h *http.Client) (*kv, error) {
	container, err := set.client(&transport{client: h})
	if err != nil {
		return nil, err
	}
	return &kv{set, container}, nil
}

// item is what is written. The service adds fields whose names begin with "_".
type item struct {
	ID   string `json:"id"`
	Key  string `json:"key"`
	Lock string `json:"lock"`
}

func id(key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (k *kv) ClockResolution() time.Duration { return time.Second }

// Read implements casstore.KV. Only a fresh read has a time: the store's own
// reckoning from the times that it has seen is finer than whole seconds, and fences are made
// of it.
func (k *kv) Read(ctx context.Context, key string, fresh bool) (e casstore.Entry, now time.Time, err error) {
	ctx, sent := httpclient.Begin(ctx)
	resp, err := k.container.ReadItem(ctx, azcosmos.NewPartitionKeyString(id(key)), id(key), nil)
	refused, _ := errors.AsType[*refusal](err)
	switch {
	case err == nil:
		now = date(resp.RawResponse.Header)
		if e, err = decode(key, resp.Value); err != nil {
			return casstore.Entry{}, time.Time{}, err
		}
	case refused != nil && refused.missingItem():
		now = refused.date
	default:
		return casstore.Entry{}, time.Time{}, explain(sent, opRead, err)
	}
	switch {
	case !fresh:
		return e, time.Time{}, nil
	case now.IsZero():
		return casstore.Entry{}, now, httpclient.Unavailable("the reply has no Date")
	}
	return e, now, nil
}

func (k *kv) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	text, err := json.Marshal(item{ID: id(key), Key: key, Lock: string(value)})
	if err != nil {
		return casstore.Entry{}, err
	}
	opt := &azcosmos.ItemOptions{EnableContentResponseOnWrite: true} // for _ts
	partition, op := azcosmos.NewPartitionKeyString(id(key)), opCreate
	ctx, sent := httpclient.Begin(ctx)
	var resp azcosmos.ItemResponse
	if ifVersion == "" {
		resp, err = k.container.CreateItem(ctx, partition, text, opt)
	} else {
		op = opReplace
		opt.IfMatchEtag = new(azcore.ETag(ifVersion))
		resp, err = k.container.ReplaceItem(ctx, partition, id(key), text, opt)
	}
	if err != nil {
		return casstore.Entry{}, explain(sent, op, err)
	}
	e, err := decode(key, resp.Value)
	if err != nil {
		return casstore.Entry{}, errUnclear // the write was applied
	}
	return e, nil
}

// decode reads an item. Its errors do not show the text.
func decode(key string, text []byte) (casstore.Entry, error) {
	var fields map[string]json.RawMessage
	var known struct {
		item
		Lock *string `json:"lock"`
		ETag string  `json:"_etag"`
		TS   int64   `json:"_ts"`
	}
	if json.Unmarshal(text, &fields) != nil || json.Unmarshal(text, &known) != nil {
		return casstore.Entry{}, httpclient.Corrupt("the item is another program's")
	}
	for name := range fields {
		if !strings.HasPrefix(name, "_") && name != "id" && name != "key" && name != "lock" {
			return casstore.Entry{}, httpclient.Corrupt("the item has fields of another program")
		}
	}
	if known.Lock == nil || known.Key != key || known.ID != id(key) {
		return casstore.Entry{}, httpclient.Corrupt("the item is another program's, or of another key")
	}
	if known.ETag == "" || known.TS <= 0 {
		return casstore.Entry{}, httpclient.Corrupt("the service's answer has no _etag or no _ts")
	}
	return casstore.Entry{Value: []byte(*known.Lock), Version: known.ETag, WrittenAt: time.Unix(known.TS, 0)}, nil
}
