package zkstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestURL(t *testing.T) {
	for url, want := range map[string]struct {
		servers []string
		prefix  string
		skew    time.Duration
		tls     bool
	}{
		"zookeeper://127.0.0.1":                       {servers: []string{"127.0.0.1:2181"}},
		"zookeeper://localhost:1/":                    {servers: []string{"localhost:1"}},
		"zookeeper://[::1]:1/a/b/":                    {servers: []string{"[::1]:1"}, prefix: "/a/b"},
		"zookeeper://[::1]":                           {servers: []string{"[::1]:2181"}},
		"zookeeper://a:1,b:2,c:3/locks":               {servers: []string{"a:1", "b:2", "c:3"}, prefix: "/locks", tls: true},
		"zookeeper://localhost,other,127.0.0.1":       {servers: []string{"localhost:2181", "other:2181", "127.0.0.1:2181"}, tls: true},
		"zookeeper://a?tls=false":                     {servers: []string{"a:2181"}},
		"zookeeper://localhost?tls=true&skew=2s":      {servers: []string{"localhost:2181"}, skew: 2 * time.Second, tls: true},
		"zookeeper://host.docker.internal:9/p?skew=1": {},
	} {
		opt, err := options(config(t, url, ""))
		if want.servers == nil {
			require.ErrorIs(t, err, lockstore.ErrInvalid, url)
			continue
		}
		require.NoError(t, err, url)
		require.Equal(t, want.servers, opt.Servers, url)
		require.Equal(t, want.prefix, opt.Prefix, url)
		require.Equal(t, want.skew, opt.MaxClockSkew, url)
		require.Equal(t, want.tls, opt.TLS != nil, url)
		require.Nil(t, opt.Credentials, url)
	}
}

func TestInvalidSettings(t *testing.T) {
	storetest.URLs(t, Opener, func(string) string { return "" }, "zookeeper://localhost/p?skew=1s", "port", "path")
	const secret = "s3cr3t"
	for url, auth := range map[string]string{
		"zk://host":                         "",
		"zookeeper:///" + secret:            "",
		"zookeeper://a,,b/" + secret:        "",
		"zookeeper://a,:1/" + secret:        "",
		"zookeeper://a?tls=" + secret:       "",
		"zookeeper://a?skew=" + secret:      "",
		"zookeeper://a?skew=-1s":            "",
		"zookeeper://a?skew=0s":             "",
		"zookeeper://a?skew=2m":             "",
		"zookeeper://a//" + secret:          "",
		"zookeeper://a/../" + secret:        "",
		"zookeeper://a/zookeeper/" + secret: "",
		"zookeeper://a/ö" + secret:          "",
		"zookeeper://b":                     secret,
		"zookeeper://c":                     ":" + secret,
		"zookeeper://d":                     secret + ":",
	} {
		s, err := open(context.Background(), config(t, url, auth))
		require.ErrorIs(t, err, lockstore.ErrInvalid, url)
		require.Nil(t, s, url)
		require.NotContains(t, err.Error(), secret)
		require.Regexp(t, "zkstore|the zookeeper URL", err.Error(), url)
	}
	for _, url := range []string{"zookeeper://[::1]:1,[::2]:1/" + secret, "zookeeper://a:1,[::1]:1/" + secret, "zookeeper://[::1],b/" + secret, "zookeeper://a:1,b/" + secret} {
		_, err := lockstore.Open(t.Context(), url, func(string) string { return "" }, Opener)
		require.ErrorIs(t, err, lockstore.ErrInvalid, url)
		require.NotContains(t, err.Error(), secret)
	}
	_, err := open(context.Background(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	for _, opt := range []Options{
		{},
		{Servers: []string{"host"}},
		{Servers: []string{":2181"}},
		{Servers: []string{"host:"}},
		{Servers: []string{"host:1"}, Prefix: "locks"},
		{Servers: []string{"host:1"}, Prefix: "/"},
		{Servers: []string{"host:1"}, MaxClockSkew: -1},
		{Servers: []string{"host:1"}, MaxClockSkew: time.Hour},
		{Servers: []string{"host:1"}, Credentials: func() (string, string) { return "a:b", "c" }},
		{Servers: []string{"host:1"}, Credentials: func() (string, string) { return "a", "" }},
	} {
		s, err := New(opt)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "%+v", opt)
		require.Nil(t, s)
	}
}

func TestTLS(t *testing.T) {
	addr, roots := testservers.ZooKeeperTLS(t)
	open := func(roots *x509.CertPool, name string) opened {
		return openWith(t, Options{Servers: []string{addr}, TLS: &tls.Config{RootCAs: roots, ServerName: name}})
	}
	s := open(roots, "")
	repeat(t, func(ctx context.Context) error { // a new server's first handshake may take a second
		_, err := s.Inspect(ctx, "k")
		return err
	})
	_, lease := acquire(t, s, "k")
	require.NoError(t, s.Release(t.Context(), lease))
	for what, s := range map[string]opened{
		"F21 unknown authority":          openStore(t, "zookeeper://"+addr+"?tls=true"),
		"F21 name mismatch":              open(roots, "another.example"),
		"F21 no TLS at a server with it": openStore(t, "zookeeper://"+addr),
	} {
		t.Run(what, func(t *testing.T) {
			_, err := s.Acquire(t.Context(), newRequest("k"))
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			t.Log(err)
		})
	}
}
