// Package elasticache opens a redisstore on Amazon ElastiCache with IAM authentication: a
// signed token instead of a password.
//
// # URL
//
//	elasticache://USER@HOST[:port]?cache=NAME[&serverless=false][&cluster=false][&prefix=text][&connections=n]
//
//	USER         a user of the cache with IAM authentication; its id and its name are equal
//	HOST         the cache's endpoint; the connection always has TLS
//	cache        the name of the cache; the token is valid for this cache only
//	serverless   false for a replication group; true by default
//	cluster      false for a cache without cluster mode; true by default
//	prefix       as in redisstore
//	connections  as in redisstore
//
// The region and the credentials come from Lambda's environment.
//
// # Permissions
//
// The function needs elasticache:Connect on two resources:
//
//	arn:aws:elasticache:REGION:ACCOUNT:serverlesscache:NAME  (or replicationgroup:NAME)
//	arn:aws:elasticache:REGION:ACCOUNT:user:USER
//
// # Tokens
//
// A token is a request with a SigV4 signature that is never sent, see ElastiCache's
// documentation on IAM authentication. The function signs it itself, without a call to AWS. A token
// is valid for 15 minutes, and only a new connection needs it: each gets a new one.
package elasticache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/lambdalock/lambdalock/internal/lib/awsenv"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

const tokenLife = 15 * time.Minute

// Opener opens elasticache URLs.
var Opener = lockstore.SchemeOpener{Schemes: []string{"elasticache"}, Open: open}

func open(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
	return OpenWith(cfg, nil)
}

// OpenWith opens the store that the URL names, see the package documentation, with credentials of the caller, for a program that is no
// Lambda function and has a profile or single sign-on. With nil it is as Opener. It makes no
// network call. Close of the store ends its connections. An error that it returns matches lockstore.ErrInvalid.
func OpenWith(cfg lockstore.Config, creds aws.CredentialsProvider) (*lockstore.Store, error) {
	redisConfig, t, err := parse(cfg, creds)
	if err != nil {
		return nil, err
	}
	return redisstore.OpenWith(redisConfig, t.credentials)
}

// parse splits the URL into redisstore's URL and the token's parameters.
func parse(cfg lockstore.Config, creds aws.CredentialsProvider) (lockstore.Config, *token, error) {
	if cfg.Getenv == nil {
		return cfg, nil, lockstore.Invalidf("elasticache: Config.Getenv is nil")
	}
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{
		Want: "elasticache://USER@HOST:PORT?cache=NAME",
		User: true, Host: true, Port: true, Params: []string{"cache", "serverless", "cluster", "connections", "prefix"},
	})
	if err != nil {
		return cfg, nil, err
	}
	t := &token{cache: strings.ToLower(params["cache"]), region: awsenv.Region(cfg.Getenv), now: time.Now}
	cluster, clusterErr := strconv.ParseBool(cmp.Or(params["cluster"], "true"))
	serverless, serverlessErr := strconv.ParseBool(cmp.Or(params["serverless"], "true"))
	t.serverless, t.user = serverless, cfg.URL.User.Username()
	_, password := cfg.URL.User.Password()
	switch {
	case clusterErr != nil:
		return cfg, nil, lockstore.Invalidf("elasticache: the parameter cluster is not true or false")
	case serverlessErr != nil:
		return cfg, nil, lockstore.Invalidf("elasticache: the parameter serverless is not true or false")
	case t.user == "":
		return cfg, nil, lockstore.Invalidf("elasticache: the URL names no user; want elasticache://USER@HOST?cache=NAME")
	case password:
		return cfg, nil, lockstore.Invalidf("elasticache: the URL has a password; the user gets in by IAM")
	case t.cache == "":
		return cfg, nil, lockstore.Invalidf("elasticache: the parameter cache is missing; want the cache's name")
	case strings.Trim(t.cache, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return cfg, nil, lockstore.Invalidf("elasticache: the parameter cache is not a name: want letters, digits and hyphens, and no endpoint")
	case serverless && !cluster:
		return cfg, nil, lockstore.Invalidf("elasticache: a serverless cache is in cluster mode; leave out cluster=false, or set serverless=false")
	case t.region == "":
		return cfg, nil, lockstore.Invalidf("elasticache: the region is missing: set AWS_REGION")
	}
	if t.source = creds; creds == nil {
		t.source, err = awsenv.Credentials(cfg.Getenv, &http.Client{Timeout: 2 * time.Second})
		if err != nil {
			return cfg, nil, fmt.Errorf("elasticache: %w", err)
		}
	}
	query := cfg.URL.Query()
	query.Del("cache")
	query.Del("serverless")
	query.Set("cluster", strconv.FormatBool(cluster))
	u := &url.URL{Scheme: "rediss", Host: cfg.URL.Host, RawQuery: strings.ReplaceAll(query.Encode(), "+", "%20")}
	return lockstore.Config{URL: u, Getenv: cfg.Getenv}, t, nil
}

// token makes the password of one user of one cache.
type token struct {
	cache, user, region string
	serverless          bool
	source              aws.CredentialsProvider
	now                 func() time.Time
}

// credentials returns the user and a token. The client calls it for each new connection.
func (t *token) credentials(ctx context.Context) (user, password string, err error) {
	creds, err := t.source.Retrieve(ctx)
	if err != nil {
		return "", "", err
	}
	query := url.Values{
		"Action":        {"connect"},
		"User":          {t.user},
		"X-Amz-Expires": {strconv.Itoa(int(tokenLife / time.Second))},
	}
	if t.serverless {
		query.Set("ResourceType", "ServerlessCache")
	}
	req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: t.cache, Path: "/", RawQuery: query.Encode()}, Header: http.Header{}}
	emptyBody := sha256.Sum256(nil)
	signed, _, err := v4.NewSigner().PresignHTTP(ctx, creds, req, hex.EncodeToString(emptyBody[:]), "elasticache", t.region, t.now().UTC())
	if err != nil {
		return "", "", fmt.Errorf("elasticache: the token cannot be signed: %w", err)
	}
	return t.user, strings.TrimPrefix(signed, "http://"), nil
}
