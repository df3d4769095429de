package stores

import (
	"cmp"
	"context"
	"os"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sfn"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
)

// noCredentials is an error of a source of AWS credentials, see signer: this attempt did not reach the store.
type noCredentials struct{ error }

func (e *noCredentials) Unwrap() error { return e.error }

func signer(source aws.CredentialsProvider) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		found, err := source.Retrieve(ctx)
		if err != nil {
			err = &noCredentials{err}
		}
		return found, err
	})
}

// aws returns the environment and the credentials of stores on AWS, see openers. The region and the
// credentials are those of the AWS CLI: of --profile and --region, of the environment, of
// the shared files, single sign-on included. An emulator on this machine needs neither, and
// has its own defaults: there AWS_PROFILE, which is for AWS, does not count, and --profile does.
func (s *Settings) aws(ctx context.Context, url string) (getenv func(string) string, credentials aws.CredentialsProvider, err error) {
	region := cmp.Or(s.Region, os.Getenv("AWS_REGION"))
	u, err := lockstore.ParseURL(url) // the openers say what is wrong with it
	if onAWS := err == nil && (u.Scheme == "dynamodb" || u.Scheme == "elasticache"); onAWS && (s.Profile != "" || !storeurl.IsLocalDynamoDB(u)) {
		if s.Region != "" && u.Scheme == "dynamodb" && u.Query().Has("region") {
			return nil, nil, exit.WrongUsage("--region, and a region in the store's URL; want one of them")
		}
		cfg, err := s.awsConfig(ctx, s.Region)
		if err != nil {
			return nil, nil, err
		}
		region, credentials = cfg.Region, signer(cfg.Credentials)
	}
	return func(name string) string {
		if name == "AWS_REGION" {
			return region
		}
		return os.Getenv(name)
	}, credentials, nil
}

func (s *Settings) awsConfig(ctx context.Context, region string) (aws.Config, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithSharedConfigProfile(s.Profile), config.WithRegion(region))
	if err != nil {
		return cfg, exit.Errorf(exit.Config, "the AWS configuration cannot be read: %w", err)
	}
	return cfg, nil
}

// Waker returns what wakes a parked owner, as guard.Options.Wake does, with the user's credentials. The region is that
// of the flags, of the store's URL or of the AWS configuration, which is read once.
func (s *Settings) Waker() func(context.Context, lockstore.WakeAddress) error {
	open := sync.OnceValues(func() (*sfn.Client, error) {
		region := s.Region
		if u, err := lockstore.ParseURL(s.url()); err == nil {
			region = cmp.Or(region, u.Query().Get("region"))
		}
		cfg, err := s.awsConfig(context.Background(), region)
		return sfn.NewFromConfig(cfg), err
	})
	return func(ctx context.Context, a lockstore.WakeAddress) error {
		client, err := open()
		if err != nil {
			return err
		}
		return sfnwake.New(client)(ctx, a)
	}
}
