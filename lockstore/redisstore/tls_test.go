package redisstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// trusted are the same in each run of the test: that of this machine, and that of another address.
var trusted = sync.OnceValue(func() []tls.Certificate {
	return []tls.Certificate{selfSigned("127.0.0.1"), selfSigned("192.0.2.1")}
})

// Go reads SSL_CERT_FILE once in a process, so this test has all cases of TLS.
func TestTLSIsVerified(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "trusted.pem")
	var text []byte
	for _, c := range trusted() {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})...)
	}
	require.NoError(t, os.WriteFile(file, text, 0o600))
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", dir)

	local := trusted()[0]
	for _, scheme := range []string{"rediss://", "valkeys://"} {
		lockUnlock(t, openStore(t, scheme+withTLS(t, local, 0)))
	}
	for name, c := range map[string]struct{ addr, cause string }{
		"F21 name mismatch":     {withTLS(t, trusted()[1], 0), "192.0.2.1"},
		"F21 unknown authority": {withTLS(t, selfSigned("127.0.0.1"), 0), "unknown authority"},
		"F21 old version":       {withTLS(t, local, tls.VersionTLS11), "version"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openStore(t, "rediss://"+c.addr).Acquire(t.Context(), newRequest("k"))
			t.Log(err)
			requireUnavailable(t, err, c.cause)
		})
	}
	for name, url := range map[string]string{
		"TLS at a server without":   "rediss://" + miniredis.RunT(t).Addr(),
		"no TLS at a server with":   "redis://" + withTLS(t, local, 0),
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

// withTLS is a server with TLS.
func withTLS(t *testing.T, c tls.Certificate, maxVersion uint16) (addr string) {
	m, err := miniredis.RunTLS(&tls.Config{Certificates: []tls.Certificate{c}, MaxVersion: maxVersion})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m.Addr()
}

// selfSigned is a certificate for an address.
func selfSigned(ip string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
