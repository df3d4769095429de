package cosmosstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// Check implements driver.Checker. It reads the account's and the container's
// properties; the account's key may do that.
func (k *kv) Check(ctx context.Context) ([]lockstore.Finding, error) {
	var account []byte
	h := httpclient.Client(httpclient.ReplyTimeout)
	defer h.CloseIdleConnections()
	ctx, sent := httpclient.Begin(ctx)
	// azcosmos reads the account's properties and does not show them.
	container, err := k.client(&transport{client: h, account: func(body []byte) { account = body }, check: ctx})
	if err != nil {
		return nil, err
	}
	resp, err := container.Read(ctx, nil)
	if err != nil {
		err = explain(sent, opCreate, err)
	} else {
		var findings []lockstore.Finding
		if p := resp.ContainerProperties; p != nil {
			ttl := int32(0)
			if p.DefaultTimeToLive != nil {
				ttl = *p.DefaultTimeToLive
			}
			findings = checkContainer(p.PartitionKeyDefinition.Paths, ttl)
		}
		if findings, err = checkAccount(findings, account); err == nil {
			return findings, nil
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if !errors.Is(err, lockstore.ErrCorrupt) && !errors.Is(err, lockstore.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err) // a read changes nothing
	}
	return nil, fmt.Errorf("cosmosstore: Check: %w", err)
}

func checkContainer(paths []string, ttl int32) (findings []lockstore.Finding) {
	if !slices.Equal(paths, []string{"/id"}) {
		findings = append(findings, lockstore.Finding{
			Problem: fmt.Sprintf("the partition key is %q; no lock can be written", strings.Join(paths, ", ")),
			Fix:     "make a container with the partition key /id",
		})
	}
	if ttl > 0 {
		findings = append(findings, lockstore.Finding{
			Problem: fmt.Sprintf("the container deletes items %d s after their last write, so it can delete a live lock, and then two owners hold the same key", ttl),
			Fix:     "switch the container's time to live off",
		})
	}
	return findings
}

func checkAccount(findings []lockstore.Finding, text []byte) ([]lockstore.Finding, error) {
	var account struct {
		Multi       *bool `json:"enableMultipleWriteLocations"`
		Consistency struct {
			Level string `json:"defaultConsistencyLevel"`
		} `json:"userConsistencyPolicy"`
	}
	if json.Unmarshal(text, &account) != nil || account.Multi == nil || account.Consistency.Level == "" {
		return nil, errUnclear
	}
	if *account.Multi {
		findings = append(findings, lockstore.Finding{
			Problem: "the account has several write regions; two regions can grant the same lock",
			Fix:     "keep locks in an account with a single write region",
		})
	}
	if level := account.Consistency.Level; level != "Strong" && level != "BoundedStaleness" {
		findings = append(findings, lockstore.Finding{
			Problem: fmt.Sprintf("the account's default consistency is %s; at most one owner holds a lock, but a read can be old: a renewal or a release may say that a lease is lost when it is held, and an event may count as covered by a run that began before it was sent", level),
			Fix:     "set the account's default consistency to Strong or BoundedStaleness",
		})
	}
	return findings, nil
}
