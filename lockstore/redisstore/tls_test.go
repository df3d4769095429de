package redisstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// trustedAuthority is the same in each run of the test.
var trustedAuthority = sync.OnceValue(newAuthority)

// Go reads SSL_CERT_FILE once in a process, so this test has all cases of TLS.
func TestTLSIsVerified(t *testing.T) {
	addr := testservers.Redis(t)
	dir := t.TempDir()
	trusted, stranger := trustedAuthority(), newAuthority()
	file := filepath.Join(dir, "trusted.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.cert.Raw}), 0o600))
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", dir)

	local := trusted.issue(t, "127.0.0.1")
	for _, scheme := range []string{"rediss://", "valkeys://"} {
		lockUnlock(t, openStore(t, scheme+tlsFront(t, addr, &tls.Config{Certificates: []tls.Certificate{local}})))
	}
	for name, c := range map[string]struct {
		server *tls.Config
		cause  string
	}{
		"F21 name mismatch":     {&tls.Config{Certificates: []tls.Certificate{trusted.issue(t, "192.0.2.1")}}, "192.0.2.1"},
		"F21 unknown authority": {&tls.Config{Certificates: []tls.Certificate{stranger.issue(t, "127.0.0.1")}}, "unknown authority"},
		"F21 old version":       {&tls.Config{Certificates: []tls.Certificate{local}, MaxVersion: tls.VersionTLS11}, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			for what, err := range everyRequest(t.Context(), openStore(t, "rediss://"+tlsFront(t, addr, c.server))) {
				t.Log(what, err)
				requireUnavailable(t, err, c.cause)
			}
		})
	}
	for name, url := range map[string]string{
		"TLS at a server without":   "rediss://" + addr,
		"no TLS at a server with":   "redis://" + tlsFront(t, addr, &tls.Config{Certificates: []tls.Certificate{local}}),
		"no TLS at a silent server": "redis://" + silent(t),
		"TLS at a silent server":    "rediss://" + silent(t),
	} {
		t.Run(name, func(t *testing.T) {
			_, host, _ := strings.Cut(url, "//")
			advice := "no connection to " + host + " was ready; if this goes on, check the scheme: rediss:// is with TLS, redis:// is without"
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := openStore(t, url).Acquire(ctx, newRequest("k"))
			t.Log(err)
			requireUnavailable(t, err, advice)
			t.Run("Check, without a deadline", func(t *testing.T) {
				requireUnavailable(t, check(t.Context(), openStore(t, url)), advice)
			})
		})
	}
}

// silent is a server that never answers.
func silent(t *testing.T) (addr string) {
	p := testservers.Proxy(t, testservers.Redis(t))
	p.Swallow()
	return p.Addr
}

// tlsFront is a TLS listener in front of a server without TLS.
func tlsFront(t *testing.T, target string, cfg *tls.Config) (addr string) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			wg.Go(func() {
				defer client.Close()
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				wg.Go(func() {
					_, _ = io.Copy(client, server) // ends when either side closes
					client.Close()
				})
				_, _ = io.Copy(server, client)
				server.Close()
			})
		}
	})
	// Cleanups run in reverse order, so the clients are closed before.
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority() authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := certificate(1)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return authority{cert, key}
}

func (a authority) issue(t *testing.T, ip string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificate(2)
	template.IPAddresses = []net.IP{net.ParseIP(ip)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func certificate(serial int64) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: "lambdalock test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}
