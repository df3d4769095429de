package zkstore

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Opener opens zookeeper URLs.
var Opener = lockstore.SchemeOpener{Schemes: []string{"zookeeper"}, Open: open}

// authVariable is the environment variable with the credentials.
const authVariable = "ZOOKEEPER_AUTH"

// open makes no network call.
func open(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
	opt, err := options(cfg)
	if err != nil {
		return nil, err
	}
	return New(opt)
}

func options(cfg lockstore.Config) (Options, error) {
	params, err := storeurl.Params(cfg.URL, storeurl.Parts{
		Want: "zookeeper://HOST:PORT,HOST:PORT/PREFIX?tls=true, and user:password in " + authVariable,
		Host: true, Port: true, Path: true, Params: []string{"tls", "skew"},
	})
	if err != nil {
		return Options{}, err
	}
	u := cfg.URL
	switch {
	case u.Scheme != "zookeeper":
		return Options{}, lockstore.Invalidf("zkstore: the URL has an unknown scheme; want zookeeper")
	case u.Host == "":
		return Options{}, lockstore.Invalidf("zkstore: the URL has no server; want zookeeper://host:2181,host:2181")
	}
	opt := Options{Prefix: strings.TrimSuffix(u.Path, "/")}
	encrypted := false
	for server := range strings.SplitSeq(u.Host, ",") {
		host, port, err := net.SplitHostPort(server)
		if err != nil { // it has no port
			host, port = strings.Trim(server, "[]"), "2181"
		}
		opt.Servers = append(opt.Servers, net.JoinHostPort(host, port))
		encrypted = encrypted || !storeurl.IsThisMachine(host)
	}
	if text, ok := params["tls"]; ok {
		if encrypted, err = strconv.ParseBool(text); err != nil {
			return Options{}, lockstore.Invalidf("zkstore: the URL has a parameter tls that is not true or false")
		}
	}
	if encrypted {
		opt.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if text, ok := params["skew"]; ok {
		if opt.MaxClockSkew, err = time.ParseDuration(text); err != nil || opt.MaxClockSkew <= 0 {
			return Options{}, lockstore.Invalidf("zkstore: the URL has a parameter skew that is not a duration of more than 0, such as 500ms")
		}
	}
	if cfg.Getenv == nil {
		return opt, nil
	}
	if text := cfg.Getenv(authVariable); text != "" {
		user, password, ok := strings.Cut(text, ":")
		if !ok || user == "" || password == "" {
			return Options{}, lockstore.Invalidf("zkstore: %s is not user:password", authVariable)
		}
		opt.Credentials = func() (string, string) { return user, password }
	}
	return opt, nil
}
