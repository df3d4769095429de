package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// hostName is what the functions call this machine.
const hostName = "host.docker.internal"

const loopback = "127.0.0.1"

// store is a real server for locks and accounts: on this machine, or AWS.
type store struct {
	name   string
	server *process
	url    func(host, table string) string // "" as the table where a server has none
	fresh  func(context.Context) error     // forgets everything, or what the fixtures use
	open   func(context.Context, lockstore.Config) (lockstore.Store, error)
	close  func() error
	getenv func(string) string // has its credentials
	env    []string            // the same for another process, "NAME=value"
	noHold string              // why no lock can be taken from here, "" where it can
	keeps  bool                // fresh forgets no lock

	held func(context.Context) error // releases what prepare holds
}

// letGo releases the lock that prepare took, if any.
func (s *store) letGo(ctx context.Context) error {
	release := s.held
	s.held = nil
	if release == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return release(ctx)
}

// localSecret is what the lock service signs with where there is no other.
const localSecret = "text:///signs-tokens-on-this-machine-and-nowhere-else"

// anything is as good as credentials for the servers on this machine.
func anything(string) string { return "local" }

// variables are the environment of the functions, for who calls this machine
// by that name. The SAM CLI has no authorizer: its requests are anonymous.
func (s *store) variables(t template, host string) map[string]string {
	v := map[string]string{
		"LOCK_TOKEN_SECRET": localSecret,
		"LOCK_CALLERS":      `{"*": ["shared/"], "anonymous": ["shared/"]}`,
	}
	for name, table := range t.urls {
		v[name] = s.url(host, table)
	}
	return v
}

// hold takes a lock as another invocation would. What it returns releases it.
func (s *store) hold(ctx context.Context, t template, key string) (release func(context.Context) error, err error) {
	u, err := url.Parse(s.url(loopback, t.urls[lockVariable]))
	if err != nil {
		return nil, err
	}
	locks, err := s.open(ctx, lockstore.Config{URL: u, Getenv: s.getenv})
	if err != nil {
		return nil, err
	}
	lease, err := locks.Acquire(ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
	return func(ctx context.Context) error { return locks.Release(ctx, lease) }, err
}

const startTime = 30 * time.Second

// startRedis starts a redis-server that the containers reach, and who else is
// on this machine, but nobody from outside.
func startRedis(ctx context.Context, e *engine, dir string) (*store, error) {
	program, err := find("redis-server")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{"--port", port, "--protected-mode", "no", "--save", "", "--dir", dir, "--bind", loopback}
	if e.bridge != "" {
		args = append(args, e.bridge)
	}
	server, err := background(ctx, dir, "redis", exec.Command(program, args...), startTime, connects(port))
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(loopback, port), DisableIdentity: true})
	return &store{
		name:   "Redis",
		server: server,
		url:    func(host, _ string) string { return "redis://" + net.JoinHostPort(host, port) },
		fresh:  func(ctx context.Context) error { return client.FlushAll(ctx).Err() },
		open:   redisstore.Open,
		close:  client.Close,
		getenv: anything,
	}, nil
}

// startDynamo starts a DynamoDB Local. It has no option to listen on some
// addresses only.
func startDynamo(ctx context.Context, t template, cache, dir string) (*store, error) {
	java, err := find("java")
	if err != nil {
		return nil, err
	}
	libs, err := filepath.Glob(filepath.Join(cache, "dynamodb-local-*", "lib"))
	if err != nil || len(libs) == 0 {
		return nil, errors.Join(errors.New("DynamoDB Local is not installed"), err)
	}
	lib := libs[len(libs)-1]
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	endpoint := "http://" + net.JoinHostPort(loopback, port)
	// Shared, because the functions' credentials are the SAM CLI's and not ours.
	server, err := background(ctx, dir, "dynamodb", exec.Command(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		"-Djava.library.path="+lib, "-cp", filepath.Join(lib, "*"), "com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
		"-inMemory", "-sharedDb", "-disableTelemetry", "-port", port), startTime, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
	if err != nil {
		return nil, err
	}
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: &endpoint, Region: region,
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	})
	return &store{
		name:   "DynamoDB Local",
		server: server,
		url: func(host, table string) string {
			return fmt.Sprintf("dynamodb://%s?region=%s&endpoint=http://%s", table, region, net.JoinHostPort(host, port))
		},
		fresh: func(ctx context.Context) error {
			for _, t := range t.tables {
				if err := freshTable(ctx, client, t); err != nil {
					return err
				}
			}
			return nil
		},
		open:   dynamostore.Open,
		close:  func() error { return nil },
		getenv: anything,
	}, nil
}

const region = "us-east-1"

func freshTable(ctx context.Context, client *dynamodb.Client, t dynamoTable) error {
	_, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &t.id})
	if _, absent := errors.AsType[*types.ResourceNotFoundException](err); err != nil && !absent {
		return err
	}
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &t.id,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(t.key), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(t.key), KeyType: types.KeyTypeHash}},
	})
	return err
}
