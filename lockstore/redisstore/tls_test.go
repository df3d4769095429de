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
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// Go reads SSL_CERT_FILE once in a process, so this test has all cases of TLS.
func TestTLSIsVerified(t *testing.T) {
	https := httptest.NewTLSServer(nil) // its certificate is the same in each run of the test
	t.Cleanup(https.Close)
	dir, trusted := t.TempDir(), https.TLS.Certificates[0]
	file := filepath.Join(dir, "trusted.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Certificate[0]}), 0o600))
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", dir)

	for _, scheme := range []string{"rediss://", "valkeys://"} {
		lockUnlock(t, openStore(t, scheme+withTLS(t, trusted, 0)), "k")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	const advice = "no connection to HOST was ready; if this goes on, check the scheme: rediss:// is with TLS, redis:// is without"
	for name, c := range map[string]struct{ url, says string }{
		"F21 name mismatch":         {"rediss://" + strings.Replace(withTLS(t, trusted, 0), "127.0.0.1", "localhost", 1), "not localhost"},
		"F21 unknown authority":     {"rediss://" + withTLS(t, selfSigned(t), 0), "unknown authority"},
		"F21 old version":           {"rediss://" + withTLS(t, trusted, tls.VersionTLS11), "version"},
		"TLS at a server without":   {"rediss://" + miniredis.RunT(t).Addr(), advice},
		"no TLS at a server with":   {"redis://" + withTLS(t, trusted, 0), advice},
		"no TLS at a silent server": {"redis://" + silent.Addr().String(), advice},
		"TLS at a silent server":    {"rediss://" + silent.Addr().String(), advice},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, host, _ := strings.Cut(c.url, "//")
			says := strings.Replace(c.says, "HOST", host, 1)
			limit := time.Minute
			if strings.HasSuffix(name, "silent server") {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			requireUnavailable(t, failure(openStore(t, c.url).Acquire(ctx, newRequest("k"))), says)
			requireUnavailable(t, check(t.Context(), openStore(t, c.url)), says)
		})
	}
}

// withTLS is a server with TLS.
func withTLS(t *testing.T, c tls.Certificate, maxVersion uint16) (addr string) {
	m, err := miniredis.RunTLS(&tls.Config{Certificates: []tls.Certificate{c}, MaxVersion: maxVersion})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m.Addr()
}

// selfSigned is a certificate for this machine.
func selfSigned(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
