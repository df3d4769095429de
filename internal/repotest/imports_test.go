package repotest

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// layers says which of our packages a package may import, its own folder's
// sub-packages aside. The first row that fits a package counts. In a pattern *
// is one folder's name or a part of it, and /... at the end is any folder below.
var layers = []layer{
	{"lockstore", []string{"internal/lib/driver"}},
	{"internal/lib/driver", nil},
	{"lockstore/storetest", []string{"lockstore", "internal/lib/driver", "internal/lib/pause", "internal/lib/rules", "internal/verifyrecord"}},
	{"internal/lib/awsenv", []string{"lockstore"}},
	{"internal/lib/stableowner", []string{"lockstore"}},
	{"internal/lib/storeurl", []string{"lockstore"}},
	{"internal/lib/page", []string{"lockstore"}},
	{"lockstore/casstore/castest", []string{"lockstore", "lockstore/casstore", "internal/lib/driver", "lockstore/storetest"}},
	{"lockstore/internal/beside", nil},
	{"lockstore/internal/httpclient", []string{"lockstore"}},
	{"lockstore/storetest/golden", []string{"lockstore"}},
	{"lockstore/internal/lanes", []string{"lockstore", "internal/lib/driver"}},
	{"lockstore/memstore", []string{"lockstore", "internal/lib/driver", "internal/lib/rules", "internal/lib/storeurl"}},
	{"internal/lib/rules", []string{"internal/lib/driver", "lockstore"}},
	{"internal/wrongrules", []string{"internal/lib/rules", "lockstore", "internal/lib/driver"}},
	{"internal/watchdog", []string{"internal/verifyrecord"}},
	{"internal/leasesim", []string{"guard", "lockstore", "internal/lib/driver", "lockstore/storetest", "internal/lib/seam", "internal/verifyrecord"}},
	{"lockstore/casstore/...", []string{"lockstore", "internal/lib/driver", "internal/lib/pause", "internal/lib/rules", "lockstore/internal/lanes"}},
	{"lockstore/dynamostore/...", []string{"lockstore", "internal/lib/awsenv", "internal/lib/pause", "internal/lib/tell", "internal/lib/driver", "internal/lib/storeurl", "lockstore/internal/httpclient", "lockstore/internal/beside", "internal/lib/rules"}},
	{"lockstore/*store/...", []string{"lockstore", "internal/lib/awsenv", "internal/lib/pause", "lockstore/casstore", "internal/lib/driver", "internal/lib/storeurl", "lockstore/internal/httpclient", "lockstore/internal/beside", "lockstore/internal/lanes"}},
	{"internal/lib/doonce", []string{"internal/lib/driver"}},
	{"guard", []string{"lockstore", "internal/lib/driver", "internal/lib/pause", "internal/lib/seam", "internal/lib/tell", "internal/lib/doonce"}},
	{"guard/internal/batchtest", []string{"guard", "lockstore", "internal/lib/driver", "lockstore/memstore", "lockstore/storetest"}},
	{"guard/internal/once", []string{"guard", "guard/idempotency", "lockstore"}},
	{"guard/internal/httpanswer", []string{"guard", "guard/idempotency", "internal/lib/doonce", "lockstore"}},
	{"guard/internal/*", nil},
	{"guard/idempotency", []string{"guard", "internal/lib/doonce", "lockstore"}},
	{"guard/sfnwake", []string{"lockstore", "internal/lib/awsenv"}},
	{"guard/*", []string{"guard", "guard/idempotency", "guard/internal/*", "internal/lib/eventsource", "internal/lib/tell", "lockstore"}},
	{"boot", []string{"guard", "internal/lib/eventsource", "internal/lib/tell", "lockstore"}},
	// Environments for any function: it knows none of our packages.
	{"lambdatest", nil},
	{"functions/internal/functest", []string{"guard", "lockstore", "lockstore/*store", "functions/internal/...", "lambdatest", "internal/..."}},
	// The lock service: functions/locks and lockctl serve are its mains.
	{"lockhttp", []string{"guard", "guard/httpapi", "lockstore", "internal/lib/awsenv", "internal/lib/stableowner", "internal/lib/strictjson", "internal/lib/tell"}},
	{"functions/internal/...", []string{"boot", "guard/...", "lockstore", "lockstore/*store", "internal/lib/strictjson", "functions/internal/..."}},
	{"functions/*", []string{"boot", "guard/...", "lockhttp", "lockstore", "lockstore/*store/...", "internal/lib/stableowner", "internal/lib/strictjson", "internal/lib/tell", "functions/internal/..."}},
	// Samples that are in no template.
	{"examples/counter/...", []string{"examples/counter", "boot", "guard", "lockstore", "lockstore/*store"}},
	{"examples/...", []string{"boot", "guard", "guard/idempotency", "guard/httpapi", "guard/httpguard", "guard/sqsbatch", "lockstore", "lockstore/*store"}},
	// Measuring and searching use the product, and none of its programs.
	{"bench", []string{"lockstore/..."}},
	{"verify/...", []string{"boot", "guard/...", "lockstore/...", "internal/...", "verify/..."}},
	// A script and its test.
	{"deploy", nil},
	// The command line. It starts functions from outside, and is the lock service.
	{"cmd/lockctl/internal/run", []string{"guard", "lockstore", "internal/lib/driver", "internal/lib/pause", "cmd/lockctl/internal/..."}},
	{"cmd/lockctl/...", []string{"boot", "guard/...", "lockhttp", "lockstore/...", "lambdatest", "internal/lib/page", "internal/lib/pause", "internal/lib/storeurl", "cmd/lockctl/internal/..."}},
	{"internal/openapitest", []string{"guard/httpapi"}},
	// A page: it runs what is shipped, with clocks of its own.
	{"internal/play", []string{"guard", "lockstore", "lockstore/memstore", "internal/lib/driver", "internal/lib/page", "internal/lib/seam"}},
	{"internal/size/...", []string{"boot", "guard", "lockstore", "lockstore/*store", "internal/size/probe"}},
	// The others know none of ours. So a row may name them, and no import leads up through them.
	{"internal/...", nil},
}

type layer struct {
	who string
	may []string
}

// sdks are the only modules from outside that a store may use.
var sdks = map[string][]string{
	"lockstore/dynamostore": {"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go"},
	"lockstore/redisstore":  {"github.com/redis/go-redis/v9"},
	"lockstore/zkstore":     {"github.com/go-zookeeper/zk"},
	"lockstore/cosmosstore": {"github.com/Azure/azure-sdk-for-go"},
	"lockstore/datastore":   {"golang.org/x/oauth2"},
	// Signs ElastiCache's tokens; its users link both.
	"lockstore/redisstore/elasticache": {"github.com/aws/aws-sdk-go-v2"},
}

// mayUseLambda are the packages that know AWS Lambda.
var mayUseLambda = []string{"boot", "guard/*", "functions/...", "examples/queue", "examples/reindex", "internal/...", "cmd/...", "verify/..."}

const lambdaModule = "github.com/aws/aws-lambda-go"

// badDeps are the packages that no function links, with the reason.
var badDeps = map[string]string{
	"testing":                              "test code is not deployed",
	"github.com/stretchr/...":              "test code is not deployed",
	"go.uber.org/goleak/...":               "test code is not deployed",
	"github.com/alicebob/...":              "a fake Redis is for tests",
	"github.com/santhosh-tekuri/...":       "only a test compares with schemas",
	"github.com/yuin/gopher-lua":           "comes with the fake Redis, which is for tests",
	"go.yaml.in/...":                       "only a test reads YAML",
	module + "/lockstore/memstore":         "environments share nothing through it, so it would lock nothing",
	module + "/lockstore/storetest":        "the conformance suite is for tests",
	module + "/lockstore/casstore/castest": "the harness of a register is for tests",
	module + "/internal/...":               "machinery of our tests and tools",
	module + "/cmd/...":                    "an operator's tool is not a function's",
	"github.com/aws/aws-sdk-go-v2/config": "it costs start time and a megabyte; " +
		"the Lambda environment's region and credentials are enough",
	"github.com/aws/aws-sdk-go/...":  "version 1 of the SDK is no longer maintained",
	"net/rpc":                        "2 MB; build with -tags lambda.norpc, and link nothing else that needs it",
	"encoding/gob":                   "comes with net/rpc",
	"text/template":                  "reflection on method names keeps the linker from leaving out methods: megabytes",
	"html/template":                  "see text/template",
	"database/sql":                   "a convenience of some library that every function would carry",
	"database/sql/driver":            "a convenience of some library that every function would carry",
	"expvar":                         "registers HTTP handlers in its init",
	"net/http/pprof":                 "registers HTTP handlers in its init",
	"os/exec":                        "a function starts no process",
	"plugin":                         "turns off the removal of dead code",
	"flag":                           "settings come from the environment, and only boot reads them",
	"google.golang.org/grpc/...":     "4 MB",
	"google.golang.org/protobuf/...": "2 MB",
}

// forbidden has a row for each function and for each package that others link,
// so that a new function or a heavier dependency needs an edit here.
var forbidden = map[string]map[string]string{
	"functions/locks":    badDeps,
	"functions/nightly":  badDeps,
	"functions/settle":   badDeps,
	"functions/sfnlock":  badDeps,
	"functions/withdraw": badDeps,
	"boot":               with(badDeps, module+"/lockstore/*store", "a store that boot links would be in every function"),
	"guard/httpapi":      adapter(lambdaModule+"/...", "the events of all sources are one type of its own"),
	"guard/httpguard":    adapter(lambdaModule+"/...", "a server runs anywhere"),
	"guard/otelguard":    adapter(lambdaModule+"/...", "the guard knows the request id"),
	"guard/idempotency":  adapter(lambdaModule+"/...", "an event of any kind may come again"),
	"guard/schedule":     adapter(lambdaModule+"/...", "a schedule may send any event, and the guard knows the request id"),
	"guard/sfnwake":      adapter(lambdaModule+"/...", "the guard knows the request id"),
	"guard/sqsbatch":     adapter(lambdaModule+"/lambda", "an adapter needs the event types alone"),
	"guard/stream":       adapter(lambdaModule+"/lambda", "an adapter needs the event types alone"),
	"lockstore/casstore": badDeps,
	// azcore looks for a flag of go test.
	"lockstore/cosmosstore": without(badDeps, "flag"),
	// Google's package of credentials can start a program, but only if an environment
	// variable of its own allows it.
	"lockstore/datastore": without(badDeps, "os/exec"),
	"lockstore/dynamostore": with(badDeps,
		"github.com/aws/aws-sdk-go-v2/service/sts", "roles are assumed by Lambda, not by the store",
		"github.com/aws/aws-sdk-go-v2/feature/...", "nothing there is needed to lock"),
	// The program chooses a driver of database/sql.
	"lockstore/sqlstore": without(without(badDeps, "database/sql"), "database/sql/driver"),
	"lockstore/redisstore": with(badDeps,
		"github.com/aws/...", "ElastiCache's token is a package of its own, handed in as a func"),
	"lockstore/zkstore": badDeps,
}

// adapter is what a package on the guard does not link.
func adapter(lambda, why string) map[string]string {
	return with(badDeps, lambda, why, module+"/lockstore/*store", "main names the stores")
}

// with is deps and further pairs of package and reason.
func with(deps map[string]string, more ...string) map[string]string {
	all := maps.Clone(deps)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// without is deps without one package.
func without(deps map[string]string, p string) map[string]string {
	all := maps.Clone(deps)
	delete(all, p)
	return all
}

func matches(pattern, p string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		n := strings.Count(prefix, "/") + 1
		parts := strings.Split(p, "/")
		if len(parts) < n {
			return false
		}
		pattern, p = prefix, strings.Join(parts[:n], "/")
	}
	ok, err := path.Match(pattern, p)
	return ok && err == nil
}

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

// wrongWay finds imports between our own packages that point the wrong way.
func wrongWay(t *testing.T, g graph) {
	for _, p := range g.own() {
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.who, p) })
		if i < 0 {
			t.Errorf("%s has no row in layers: say what it may import", p)
			continue
		}
		for _, imported := range g[module+"/"+p].Imports {
			to, ours := strings.CutPrefix(imported, module+"/")
			if ours && !matchesAny(layers[i].may, to) && !strings.HasPrefix(to, p+"/") && !sameStore(p, to) {
				t.Errorf("%s imports %s; it may import only %q. Move the code, or hand it in as a parameter", p, to, layers[i].may)
			}
		}
	}
}

// sameStore says that both packages belong to one store's folder.
func sameStore(a, b string) bool {
	root := func(p string) string {
		parts := strings.Split(p, "/")
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	return root(a) == root(b) && matches("lockstore/*store", root(a))
}

// outside finds what the contract and the guard take from outside the standard
// library, and what a store takes from outside its SDK.
func outside(t *testing.T, g graph) {
	for _, p := range []string{"lockstore", "guard", "guard/idempotency"} {
		for dep := range g.deps(module + "/" + p) {
			if !g[dep].Standard && !strings.HasPrefix(dep, module+"/") {
				t.Errorf("%s is to use the standard library only, but links %s: %s", p, dep, g.chain(module+"/"+p, dep))
			}
		}
	}
	for _, p := range g.own() {
		if !matches("lockstore/*store/...", p) {
			continue
		}
		root := p
		if sdks[root] == nil {
			root = strings.Join(strings.Split(p, "/")[:2], "/")
		}
		for _, dep := range g[module+"/"+p].Imports {
			own := strings.HasPrefix(dep, module+"/") || g[dep].Standard
			if !own && !slices.ContainsFunc(sdks[root], func(sdk string) bool { return dep == sdk || strings.HasPrefix(dep, sdk+"/") }) {
				t.Errorf("%s imports %s, which is not part of its one SDK: %q. Do without, or add the SDK to sdks", p, dep, sdks[root])
			}
		}
	}
}

// lambdaUsers finds packages that use aws-lambda-go and are not to know it.
func lambdaUsers(t *testing.T, g graph) {
	for _, p := range g.own() {
		for _, dep := range g[module+"/"+p].Imports {
			if strings.HasPrefix(dep, lambdaModule) && !matchesAny(mayUseLambda, p) {
				t.Errorf("%s imports %s; only %q know Lambda. Take what is needed as a parameter", p, dep, mayUseLambda)
			}
		}
	}
}

// tooMuch finds forbidden dependencies, and what has no row.
func tooMuch(t *testing.T, g graph) {
	for _, p := range g.own() {
		row, known := forbidden[p]
		if !known && (matches("functions/*", p) && g[module+"/"+p].Name == "main" || p == "boot" || matches("guard/*", p) || p != "lockstore/memstore" && matches("lockstore/*store", p)) {
			t.Errorf("%s has no row in forbidden: add one that says what it may not link", p)
		}
		deps := g.deps(module + "/" + p)
		for bad, why := range row {
			for dep := range deps {
				if matches(bad, dep) && !strings.HasPrefix(dep, module+"/internal/lib/") {
					t.Errorf("%s links %s (%s): %s. Take the import out of one of them", p, dep, why, g.chain(module+"/"+p, dep))
				}
			}
		}
	}
	for p := range forbidden {
		if _, ok := g[module+"/"+p]; !ok {
			t.Errorf("forbidden has a row for %s, which is not there: take it out", p)
		}
	}
}

func TestImports(t *testing.T) {
	g := loadGraph(t)
	t.Run("imports point one way", func(t *testing.T) { wrongWay(t, g) })
	t.Run("the contract and the guard use the standard library only, a store its one SDK", func(t *testing.T) { outside(t, g) })
	t.Run("only boot, adapters, functions and tools know Lambda", func(t *testing.T) { lambdaUsers(t, g) })
	t.Run("nobody links what is forbidden", func(t *testing.T) { tooMuch(t, g) })
}
