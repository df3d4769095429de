package lockservice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/awsenv"
)

// minSecretBytes is the least length of a secret: that of the hash.
const minSecretBytes = 32

// secretUse is how long the secrets are used before they are read again. A
// rotation has to keep the one before for longer than this and a lease.
const secretUse = 5 * time.Minute

// Secrets gives the secrets that tokens are made with, the current one first.
type Secrets func(context.Context) ([]secret, error)

// Open makes the service from its environment. The URL says where the secret is:
//
//	secretsmanager:///NAME or .../ARN   AWS Secrets Manager; a rotated secret's previous version counts, too
//	text:///TEXT                        the secret itself, for a machine of one's own
//
// and the variable LOCK_CALLERS who may use which keys, see Callers. It makes no
// request.
func Open(g *guard.Guard, cfg lockstore.Config) (*Service, error) {
	secrets, err := openSecrets(cfg)
	if err != nil {
		return nil, fmt.Errorf("the token secret's URL: %w", err)
	}
	callers, err := ParseCallers(cfg.Getenv("LOCK_CALLERS"))
	if err != nil {
		return nil, fmt.Errorf("LOCK_CALLERS: %w", err)
	}
	return New(g, secrets, callers), nil
}

func openSecrets(cfg lockstore.Config) (Secrets, error) {
	if _, err := cfg.Params(); err != nil {
		return nil, err
	}
	text := strings.TrimPrefix(cfg.URL.Path, "/")
	if cfg.URL.Host != "" || cfg.URL.User != nil || text == "" {
		return nil, errors.New("want secretsmanager:///NAME, or text:///TEXT on a machine of your own")
	}
	switch cfg.URL.Scheme {
	case "text":
		if len(text) < minSecretBytes {
			return nil, tooShort(len(text))
		}
		return func(context.Context) ([]secret, error) { return []secret{secret(text)}, nil }, nil
	case "secretsmanager":
		client := &http.Client{Timeout: 2 * time.Second}
		credentials, err := awsenv.Credentials(cfg.Getenv, client)
		if err != nil {
			return nil, err
		}
		region := awsenv.Region(cfg.Getenv)
		if region == "" {
			return nil, errors.New("the region is missing: set AWS_REGION")
		}
		m := &managed{id: text, now: time.Now, api: secretsmanager.New(secretsmanager.Options{
			Region:       region,
			Credentials:  credentials,
			HTTPClient:   client,
			BaseEndpoint: endpoint(cfg.Getenv("AWS_ENDPOINT_URL_SECRETS_MANAGER")),
		})}
		return m.secrets, nil
	}
	return nil, fmt.Errorf("the scheme is %q; want secretsmanager or text", cfg.URL.Scheme)
}

func endpoint(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func tooShort(n int) error {
	return fmt.Errorf("the secret has %d bytes; want at least %d", n, minSecretBytes)
}

// secretsAPI is what is asked of AWS Secrets Manager.
type secretsAPI interface {
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

// managed reads a secret's current and previous version.
type managed struct {
	api secretsAPI
	id  string
	now func() time.Time

	mu   sync.Mutex
	all  []secret
	read time.Time
}

// secrets reads them again after secretUse. When that fails those it has are
// used on: a lock service should not fall with another.
func (m *managed) secrets(ctx context.Context) ([]secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The wall clock alone: a frozen environment may stop the other one.
	now := m.now().Round(0)
	if age := now.Sub(m.read); m.all != nil && age >= 0 && age < secretUse {
		return m.all, nil
	}
	var all []secret
	for _, stage := range []string{"AWSCURRENT", "AWSPREVIOUS"} {
		s, err := m.version(ctx, stage)
		if _, none := errors.AsType[*types.ResourceNotFoundException](err); none && all != nil {
			break // it was never rotated
		}
		if err != nil {
			if m.all != nil {
				return m.all, nil
			}
			return nil, fmt.Errorf("the secret %s cannot be read: %w", stage, err)
		}
		all = append(all, s)
	}
	m.all, m.read = all, now
	return all, nil
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
