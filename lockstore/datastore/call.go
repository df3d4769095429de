package datastore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
)

// call sends one request. Its errors are those of a casstore.KV.
func (k *kv) call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, k.base+"/v1/projects/"+k.project+":"+method, bytes.NewReader(body))
	if err != nil {
		return httpclient.Unavailable(err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	// The service routes requests for other databases than (default) by this header.
	req.Header.Set("X-Goog-Request-Params", url.Values{"project_id": {k.project}, "database_id": {k.database}}.Encode())
	token := ""
	if k.token != nil {
		refused, _ := k.refused.Load().(string)
		if token, err = k.token(ctx, refused); err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	traced, sent := httpclient.Begin(ctx)
	resp, err := k.client.Do(req.WithContext(traced))
	if err != nil {
		return sent.Failed("Datastore", plain(ctx, err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, httpclient.MaxReply))
	if err != nil {
		return plain(ctx, err)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		k.refused.Store(token) // the next call asks for another one
	}
	if resp.StatusCode != http.StatusOK {
		return refusal(method, resp.StatusCode, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return errUnclear // its text could quote what was sent
	}
	return nil
}

// plain is the error of a request without an answer, without what the server sent.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return httpclient.Plain(err)
}

var errUnclear = errors.New("the reply is not Datastore's")

// refusal is the error of an answer that is not OK. It does not show the answer's message,
// which could quote what was sent.
func refusal(method string, status int, text []byte) error {
	var reply struct {
		Error struct {
			Status string `json:"status"`
		} `json:"error"`
	}
	code := ""
	if json.Unmarshal(text, &reply) == nil && slices.Contains(codes, reply.Error.Status) {
		code = reply.Error.Status
	}
	switch {
	case method == "commit" && slices.Contains(conflicts, code):
		return casstore.ErrConflict
	case code == "PERMISSION_DENIED", code == "UNAUTHENTICATED":
		return httpclient.Unavailable("the answer is " + code + "; the credentials need the role roles/datastore.user, and the project the Datastore API")
	case code == "RESOURCE_EXHAUSTED":
		return httpclient.Unavailable("the answer is " + code + "; a quota is used up")
	case code == "NOT_FOUND", code == "FAILED_PRECONDITION", code == "INVALID_ARGUMENT":
		return httpclient.Corrupt("the answer is " + code + "; the URL's project, database or kind is wrong, or the database is not in Datastore mode")
	}
	return fmt.Errorf("the answer is HTTP %d %s", status, code)
}

// conflicts are the answers to a commit whose base version is not the entity's. The emulator
// gives the first three. ABORTED is the general answer of Google's APIs when two requests meet.
var conflicts = []string{"ALREADY_EXISTS", "FAILED_PRECONDITION", "NOT_FOUND", "ABORTED"}

// codes are those of Google's APIs. Another text could quote what was sent.
var codes = []string{
	"CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
	"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

const scope = "https://www.googleapis.com/auth/datastore"

// tokens is a func that returns an access token. It asks for a new one instead of a token that
// the service has refused; "" is none.
type tokens = func(ctx context.Context, refused string) (string, error)

// credentials reads the file at once. The func that it returns asks for a token at its first use.
func credentials(file string, client *http.Client) (tokens, error) {
	// The tokens' own requests outlive a call: the next call can use the token.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, client)
	find := func() (*google.Credentials, error) { return google.FindDefaultCredentials(ctx, scope) }
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, invalid("the file that GOOGLE_APPLICATION_CREDENTIALS names cannot be read")
		}
		var typed struct {
			Type google.CredentialsType `json:"type"`
		}
		if json.Unmarshal(text, &typed) != nil {
			return nil, invalid("the file that GOOGLE_APPLICATION_CREDENTIALS names is not JSON")
		}
		find = func() (*google.Credentials, error) {
			return google.CredentialsFromJSONWithType(ctx, text, typed.Type, scope)
		}
		if _, err := find(); err != nil {
			return nil, invalid("the file that GOOGLE_APPLICATION_CREDENTIALS names has no credentials that can be used")
		}
	}
	return takingTurns(find), nil
}

// takingTurns asks for tokens in a goroutine of its own, because Google's package takes no
// context. Calls that come meanwhile wait, and then use the same token. After a failure each of
// them asks again.
func takingTurns(find func() (*google.Credentials, error)) tokens {
	var source oauth2.TokenSource
	turn := make(chan struct{}, 1) // who has sent there may use source
	ask := func(refused string) (token *oauth2.Token, err error) {
		for range 2 {
			if source == nil {
				found, err := find()
				if err != nil {
					return nil, httpclient.Unavailable("there are no credentials for Google Cloud: set GOOGLE_APPLICATION_CREDENTIALS")
				}
				source = oauth2.ReuseTokenSource(nil, found.TokenSource)
			}
			if token, err = source.Token(); err != nil {
				return nil, tokenError(err)
			}
			if token.AccessToken != refused {
				break
			}
			source = nil // every source keeps its token until the token expires
		}
		return token, nil
	}
	return func(ctx context.Context, refused string) (token string, err error) {
		select {
		case turn <- struct{}{}:
			token, err = beside.Do(ctx, func() (string, error) {
				defer func() { <-turn }()
				token, err := ask(refused)
				if err != nil {
					return "", err
				}
				return token.AccessToken, nil
			})
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil && !errors.Is(err, lockstore.ErrUnavailable) {
			err = fmt.Errorf("no access token yet: %w: %w", lockstore.ErrUnavailable, err)
		}
		return token, err
	}
}

// tokenError does not show the texts of other servers' answers, which could quote a secret.
func tokenError(err error) error {
	why := "no answer that can be used"
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response != nil {
		why = fmt.Sprintf("HTTP %d", refused.Response.StatusCode)
	} else if network, ok := errors.AsType[*net.OpError](err); ok {
		why = network.Error()
	}
	return httpclient.Unavailable("Google gives no access token for these credentials (" + why + ")")
}
