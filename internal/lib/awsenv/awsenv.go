// Package awsenv reads the region and the credentials from Lambda's environment. The
// SDK's config package would read shared files too, start slower, and make each binary a
// megabyte larger.
package awsenv

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Region is AWS_REGION, or AWS_DEFAULT_REGION, or "".
func Region(getenv func(string) string) string {
	return cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
}

// Credentials returns the credentials that Lambda provides: in variables, or at an
// endpoint on managed instances and with SnapStart. It calls the endpoint through client.
// Its errors match lockstore.ErrInvalid. The provider's error, when the endpoint returns
// no credentials, matches lockstore.ErrUnavailable.
func Credentials(getenv func(string) string, client *http.Client) (aws.CredentialsProvider, error) {
	id, secret := getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY")
	if id != "" && secret != "" {
		return credentials.NewStaticCredentialsProvider(id, secret, getenv("AWS_SESSION_TOKEN")), nil
	}
	if id != "" || secret != "" {
		return nil, lockstore.Invalidf("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set")
	}
	endpoint := getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if endpoint == "" {
		return nil, lockstore.Invalidf("there are no credentials: want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_CONTAINER_CREDENTIALS_FULL_URI (for a profile or single sign-on build a client yourself)")
	}
	if !safeForCredentials(endpoint) {
		return nil, lockstore.Invalidf("AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor on this host")
	}
	provider := endpointcreds.New(endpoint, func(o *endpointcreds.Options) {
		o.HTTPClient = client
		o.AuthorizationToken = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
		if file := getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
			o.AuthorizationTokenProvider = endpointcreds.TokenProviderFunc(func() (string, error) {
				token, err := os.ReadFile(file)
				return strings.TrimSpace(string(token)), err
			})
		}
	})
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, err := provider.Retrieve(ctx)
		if err != nil {
			return c, fmt.Errorf("%w: the credentials endpoint returns no credentials: %w", lockstore.ErrUnavailable, err)
		}
		return c, nil
	}), func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 5 * time.Minute }), nil
}

// safeForCredentials is the SDKs' rule: https, or an address on this host.
func safeForCredentials(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return false
	}
	if u.Scheme == "https" || u.Scheme == "http" && u.Hostname() == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && u.Scheme == "http" &&
		(ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip == netip.MustParseAddr("fd00:ec2::23"))
}
