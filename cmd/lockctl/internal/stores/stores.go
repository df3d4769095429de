// Package stores opens the store that a command works on.
package stores

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// Variable is the environment variable with the store's URL.
const Variable = "LOCK_URL"

// AuthVariable is the environment variable with the credentials for ZooKeeper.
const AuthVariable = "ZOOKEEPER_AUTH"

const Flag = "`URL` of the store; default $" + Variable

const Help = `The store is that of ` + Variable + ` or --store (local and serve begin one of their own without):
  dynamodb://TABLE?region=REGION          redis://HOST:6379, rediss:// with TLS
  elasticache://USER@HOST?cache=NAME      zookeeper://HOST:2181
  postgres://USER@HOST/DATABASE           (the password also in PGPASSWORD)
  mysql://USER@HOST/DATABASE              sqlite:///FILE for this machine
Every user of the machine can see the arguments of a process: put a URL with a password into
` + Variable + `, and not behind --store.`

const callTime = 10 * time.Second

// openers are those of lockctl. credentials are for AWS; nil are those of the environment. For makesFile see Settings.
func openers(credentials aws.CredentialsProvider, makesFile bool) []lockstore.SchemeOpener {
	return append([]lockstore.SchemeOpener{
		redisstore.Opener, zkstore.Opener,
		{Schemes: dynamostore.Opener.Schemes, Open: func(_ context.Context, c lockstore.Config) (*lockstore.Store, error) {
			s, err := dynamostore.OpenWith(c, credentials)
			if err != nil {
				return nil, err
			}
			return s.Store, nil
		}},
		{Schemes: elasticache.Opener.Schemes, Open: func(_ context.Context, c lockstore.Config) (*lockstore.Store, error) {
			return elasticache.OpenWith(c, credentials)
		}},
	}, sqlOpeners(makesFile)...)
}

// Has says that lockctl has the store of a URL's scheme.
func Has(scheme string) bool {
	return slices.ContainsFunc(openers(nil, true), func(o lockstore.SchemeOpener) bool { return slices.Contains(o.Schemes, scheme) })
}

// Settings are the flags of each command that works on a store.
type Settings struct {
	URL, Profile, Region string
	// MakesFile says that a file of SQLite which is not there is made.
	MakesFile bool
}

func (s *Settings) AddTo(f *pflag.FlagSet) {
	f.StringVar(&s.URL, "store", "", Flag)
	f.StringVar(&s.Profile, "profile", "", "`NAME` of the AWS profile; default $AWS_PROFILE")
	f.StringVar(&s.Region, "region", "", "AWS `REGION`; default that of the URL, environment or profile")
}

// Open opens the store that the flags and the environment name. It sends nothing to it.
func (s *Settings) Open(ctx context.Context) (*lockstore.Store, error) {
	url := s.url()
	if url == "" {
		return nil, exit.Errorf(exit.Config, "there is no store: want --store or %s, such as redis://127.0.0.1:6379 or dynamodb://locks?region=eu-central-1", Variable)
	}
	getenv, credentials, err := s.aws(ctx, url)
	if err != nil {
		return nil, err
	}
	return open(ctx, url, getenv, openers(credentials, s.MakesFile)...)
}

func (s *Settings) url() string { return cmp.Or(s.URL, os.Getenv(Variable)) }

// Address is the store's URL without what may be secret.
func (s *Settings) Address() string { return Address(s.url()) }

// Address is a store's URL without what may be secret. It is "" for what is no URL.
func Address(url string) string {
	u, err := lockstore.ParseURL(url)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// Call calls the store, which has callTime. Its error has the exit status.
func Call[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := call(ctx)
	return answer, Failed(err)
}

// Open opens the store of a URL with the openers of lockctl and with more of them.
func Open(ctx context.Context, url string, getenv func(string) string, more ...lockstore.SchemeOpener) (*lockstore.Store, error) {
	return open(ctx, url, getenv, append(openers(nil, true), more...)...)
}

func open(ctx context.Context, url string, getenv func(string) string, openers ...lockstore.SchemeOpener) (*lockstore.Store, error) {
	store, err := lockstore.Open(ctx, url, getenv, openers...)
	if err != nil {
		return nil, exit.Errorf(exit.Config, "--store, %s: %w", Variable, err)
	}
	return store, nil
}

// Failed gives a store's error its exit status and a short text. It returns nil for nil.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	// What the guard says around it would say the same again.
	if asked, ok := errors.AsType[*guard.LockStoreUnavailable](err); ok && asked.Err != nil {
		err = asked.Err
	}
	if asked, ok := errors.AsType[*guard.LockCorrupt](err); ok && asked.Err != nil {
		err = asked.Err
	}
	status := cmp.Or(serverStatus(err), exit.Status(err))
	if status == exit.No {
		status = exit.Unavailable // the outcome is unknown, and the text says so
	}
	if _, ok := errors.AsType[*noCredentials](err); ok {
		return exit.Errorf(exit.Config, "there are no AWS credentials to ask with: sign in, or set --profile or AWS_PROFILE: %w", short{err})
	}
	return &exit.Error{Status: status, Err: short{err}}
}

// sdkTrace is what the AWS SDK adds to an error in each of its layers.
var sdkTrace = regexp.MustCompile(`operation error DynamoDB: \w+, (exceeded maximum number of attempts, \d+, )?` +
	`(https response error StatusCode: \d+, RequestID: [^,]*, )?(request send failed, \w+ "[^"]*": )?`)

// short is an error whose text is without sdkTrace, and without the class of a store's error, which the exit status tells, behind what
// is wrong.
type short struct{ error }

func (e short) Error() string {
	return strings.NewReplacer(": "+lockstore.ErrUnavailable.Error()+": ", ": ", ": "+lockstore.ErrCorrupt.Error()+": ", ": ").
		Replace(sdkTrace.ReplaceAllString(e.error.Error(), ""))
}

func (e short) Unwrap() error { return e.error }

// serverStatus is the status of what a server says for which lockstore has no error: that
// this user may not do it, that the table is not there or has another primary key, or that the
// server is in cluster mode and the URL is not, or the reverse. So it is for a server that did not prove by TLS who it
// is, or does not speak TLS. It is 0 for everything else.
func serverStatus(err error) int {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	if unverified || notTLS {
		return exit.Config
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		switch api.ErrorCode() {
		case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "ExpiredToken", "InvalidClientTokenId",
			"InvalidSignatureException", "SignatureDoesNotMatch", "MissingAuthenticationTokenException", "MissingAuthenticationToken":
			return exit.Permission
		case "ResourceNotFoundException", "ValidationException":
			return exit.Config
		}
	}
	for _, prefix := range [...]string{"NOPERM", "NOAUTH", "WRONGPASS",
		"The user executing the script can't", "ACL failure in script"} { // the same of Redis and of Valkey inside a script
		if redis.HasErrorPrefix(err, prefix) {
			return exit.Permission
		}
	}
	// A client of a cluster, too, may see MOVED, while slots move; the advice is only for one without cluster=true.
	if moved := redis.HasErrorPrefix(err, "MOVED"); moved && strings.Contains(err.Error(), "cluster=true") || redis.HasErrorPrefix(err, "This instance has cluster support disabled") {
		return exit.Config
	}
	if status := sqlStatus(err); status != 0 {
		return status
	}
	// ZooKeeper's server says the same to a user without the right and to a wrong password.
	if errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrAuthFailed) {
		return exit.Permission
	}
	return 0
}

// Reach opens the store of a URL and uses it once, so that a wrong address or password is told before anything begins.
func Reach(ctx context.Context, url string, getenv func(string) string, more ...lockstore.SchemeOpener) (*lockstore.Store, error) {
	store, err := Open(ctx, url, getenv, more...)
	if err != nil {
		return nil, err
	}
	_, err = Call(ctx, func(ctx context.Context) (lockstore.Status, error) { return store.Inspect(ctx, "lockctl") })
	return store, err
}
