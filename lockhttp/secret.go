package lockhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/lambdalock/lambdalock/internal/lib/awsenv"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

const (
	// minSecretBytes is the least length of a secret: that of the hash.
	minSecretBytes = 32
	// secretUse is how long secrets are used before they are read again. A
	// rotation has to keep the one before for longer than this and a lease.
	secretUse = 5 * time.Minute
	// secretRest is how long they are not read again, whoever asks: tokens that
	// are no good ask each time.
	secretRest = time.Second
	// secretTrouble is the same after a read that failed, while there are secrets from before.
	secretTrouble = 30 * time.Second
	// secretTime bounds a read, secretCall one call of it.
	secretTime = 5 * time.Second
	secretCall = 2 * time.Second
)

// secretsFunc returns the secrets that tokens are made with, the current one
// first. They were read maxAge ago at most, if that is possible; a maxAge of 0
// insists on that, but for those of the last second. Its error is a *secretError.
type secretsFunc func(ctx context.Context, maxAge time.Duration) ([]secret, error)

// secretError: there is no secret. It never says what a secret is.
type secretError struct{ error }

func openSecrets(u *url.URL, getenv func(string) string) (secretsFunc, error) {
	// None of these is shown: it may be the secret.
	text := strings.TrimPrefix(u.Path, "/")
	switch {
	case u.Host != "" || u.User != nil || text == "":
		return nil, errors.New("want secretsmanager:///NAME, or text:///TEXT on a machine of your own")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("want no ? and no #; write %3F and %23")
	}
	switch u.Scheme {
	case "text":
		if len(text) < minSecretBytes {
			return nil, tooShort(len(text))
		}
		return func(context.Context, time.Duration) ([]secret, error) { return []secret{secret(text)}, nil }, nil
	case "secretsmanager":
		m, err := openManaged(getenv, text)
		if err != nil {
			return nil, err
		}
		return m.secrets, nil
	}
	return nil, fmt.Errorf("the scheme is %q; want secretsmanager or text", u.Scheme)
}

type tooShort int

func (n tooShort) Error() string {
	return fmt.Sprintf("the secret has %d bytes; want at least %d", int(n), minSecretBytes)
}

// managed is a secret of AWS Secrets Manager, with its version before.
type managed struct {
	api *secretsmanager.Client
	id  string
	now func() time.Time

	mu    sync.Mutex
	all   []secret
	read  time.Time     // when all was read
	tried time.Time     // when the last try to read it was
	pause time.Duration // for which it is not read again after that
	err   error         // of the last try; nil or a *secretError
}

func openManaged(getenv func(string) string, id string) (*managed, error) {
	client := &http.Client{Timeout: secretCall}
	credentials, err := awsenv.Credentials(getenv, client)
	if err != nil {
		return nil, err
	}
	region := awsenv.Region(getenv)
	if region == "" {
		return nil, errors.New("the region is missing: set AWS_REGION")
	}
	options := secretsmanager.Options{Region: region, Credentials: credentials, HTTPClient: client, RetryMaxAttempts: 2}
	if endpoint := getenv("AWS_ENDPOINT_URL_SECRETS_MANAGER"); endpoint != "" {
		options.BaseEndpoint = &endpoint
	}
	return &managed{api: secretsmanager.New(options), id: id, now: time.Now}, nil
}

// secrets is a secretsFunc. When the secrets cannot be read again those it has
// are used on: a lock service is not to fall with another.
func (m *managed) secrets(ctx context.Context, maxAge time.Duration) ([]secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// By the wall clock alone: a frozen environment may stop the other one.
	// If it was set back, both are below 0.
	now := m.now().Round(0)
	age, since := now.Sub(m.read), now.Sub(m.tried)
	if (age < 0 || age >= maxAge) && (since < 0 || since >= m.pause) {
		m.readAgain(ctx, now)
	}
	if m.err != nil && (m.all == nil || maxAge == 0) {
		return nil, m.err
	}
	return m.all, nil
}

func (m *managed) readAgain(ctx context.Context, now time.Time) {
	// Others need them, too, when this caller has gone away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secretTime)
	defer cancel()
	all, err := m.versions(ctx)
	if err == nil {
		m.all, m.read, m.tried, m.pause, m.err = all, now, now, secretRest, nil
		return
	}
	// Others have waited for this read, so the pause begins at its end.
	m.tried, m.pause, m.err = m.now().Round(0), secretRest, &secretError{fmt.Errorf("the token secret cannot be read: %w", err)}
	if m.all != nil {
		m.pause = secretTrouble
		tell.Log(ctx, nil, slog.LevelWarn, "lock service: the token secret cannot be read again; the one from before is used", slog.String("error", err.Error()))
	}
}

// versions are the current secret and, when there is one, that before.
func (m *managed) versions(ctx context.Context) ([]secret, error) {
	current, err := m.version(ctx, "AWSCURRENT")
	if err != nil {
		return nil, err
	}
	previous, err := m.version(ctx, "AWSPREVIOUS")
	_, none := errors.AsType[*types.ResourceNotFoundException](err) // it was never rotated
	_, short := errors.AsType[tooShort](err)                        // no token was made with it
	if none || short {
		return []secret{current}, nil
	}
	return []secret{current, previous}, err
}

func (m *managed) version(ctx context.Context, stage string) (secret, error) {
	out, err := m.api.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &m.id, VersionStage: aws.String(stage)})
	if err != nil {
		return nil, err
	}
	s := secret(out.SecretBinary)
	if out.SecretString != nil {
		s = secret(*out.SecretString)
	}
	if len(s) < minSecretBytes {
		return nil, tooShort(len(s))
	}
	return s, nil
}
