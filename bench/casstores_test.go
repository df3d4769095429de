package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/cosmosstore"
	"github.com/lambdalock/lambdalock/lockstore/datastore"
)

// entryText is like the entry of a key that many have had: it has 16 marks. Each one is different, because the
// emulator does less for a value that is there already.
func entryText(n int) string {
	return fmt.Sprintf(`{"n":%d,"ended":[%s]}`, n, strings.Repeat(`{"owner":"3RRJFFNEZ4CHLR4VYSWAGHKEAN","fence":1795703544066511},`, 16))
}

func openBy(t *testing.T, o lockstore.Opener, rawURL string, env map[string]string) *lockstore.Store {
	cfg := config(t, rawURL)
	cfg.Getenv = func(name string) string { return env[name] }
	store, err := o.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// testDatastore compares with two writes of an entity by hand, each on the version of the last.
func testDatastore(t *testing.T) {
	addr := testservers.Datastore(t).Addr
	ours := cycle(t, openBy(t, datastore.Opener, "datastore://project", map[string]string{"DATASTORE_EMULATOR_HOST": addr}))
	client := &http.Client{}
	version, n := "", 0
	write := func() {
		n++
		entity := map[string]any{
			"key":        map[string]any{"partitionId": map[string]any{"projectId": "project"}, "path": []any{map[string]any{"kind": "ByHand", "name": key}}},
			"properties": map[string]any{"lock": map[string]any{"stringValue": entryText(n), "excludeFromIndexes": true}},
		}
		mutation := map[string]any{"update": entity, "baseVersion": version, "conflictResolutionStrategy": "FAIL"}
		if version == "" {
			mutation = map[string]any{"insert": entity}
		}
		body, err := json.Marshal(map[string]any{"mode": "NON_TRANSACTIONAL", "mutations": []any{mutation}})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/projects/project:commit", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		var reply struct{ MutationResults []struct{ Version string } }
		if err != nil || json.Unmarshal(answer, &reply) != nil || len(reply.MutationResults) != 1 || reply.MutationResults[0].Version == "" {
			t.Fatalf("%s: %s, %v", resp.Status, answer, err)
		}
		version = reply.MutationResults[0].Version
	}
	write() // a busy machine's first answer takes longer than a store waits
	againstTwoWrites(t, "datastore", ours, write)
}

// testCosmos compares with two replacements of an item by the SDK, each on the ETag of the last.
func testCosmos(t *testing.T) {
	endpoint := "http://" + testservers.Cosmos(t)
	ours := cycle(t, openBy(t, cosmosstore.Opener, "cosmos://account/db/locks?endpoint="+endpoint, nil))
	credential, err := azcosmos.NewKeyCredential("bG9jYWw=") // the server checks none
	if err != nil {
		t.Fatal(err)
	}
	opt := &azcosmos.ClientOptions{}
	opt.Transport = through(strings.TrimPrefix(endpoint, "http://"))
	client, err := azcosmos.NewClientWithKey(endpoint, credential, opt)
	if err != nil {
		t.Fatal(err)
	}
	container, err := client.NewContainer("db", "locks")
	if err != nil {
		t.Fatal(err)
	}
	partition, n := azcosmos.NewPartitionKeyString("by-hand"), 0
	item := func() []byte {
		n++
		text, err := json.Marshal(map[string]string{"id": "by-hand", "key": key, "lock": entryText(n)})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	made, err := container.CreateItem(t.Context(), partition, item(), nil)
	if err != nil {
		t.Fatal(err)
	}
	etag := made.ETag
	write := func() {
		r, err := container.ReplaceItem(t.Context(), partition, "by-hand", item(), &azcosmos.ItemOptions{IfMatchEtag: to.Ptr(etag)})
		if err != nil {
			t.Fatal(err)
		}
		etag = r.ETag
	}
	againstTwoWrites(t, "cosmosstore", ours, write)
}

// through sends every request to one address, that of the proxy before the server, as the store does. The
// account has another one, the server's own, and azcosmos prefers that.
type through string

func (addr through) Do(req *http.Request) (*http.Response, error) {
	req.URL.Host = string(addr)
	return http.DefaultClient.Do(req)
}

// againstTwoWrites compares acquire and release with two writes. The same process has released
// the key last, so neither of the two reads.
func againstTwoWrites(t *testing.T, name string, ours, write func()) {
	contestants := []contestant{{name, ours}, {"by hand", func() { write(); write() }}}
	contest(1, 100, contestants...) // the server's compiler is busy at first
	judge(t, func() [][]time.Duration { return contest(rounds, 30, contestants...) },
		figure{name + " : its two writes by hand", 1.5, "x", compare(0, 1)},
	)
}
