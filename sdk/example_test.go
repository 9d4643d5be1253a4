package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/relevo-io/relevo/sdk"
)

type config struct {
	URL     string       `json:"url" jsonschema:"required" doc:"Where events are posted to."`
	Token   sdk.Secret   `json:"token" doc:"Bearer token. Defaults to none."`
	Timeout sdk.Duration `json:"timeout" doc:"How long one request may take. Defaults to 10s."`
}

type poster struct {
	c config
	http.Client
}

func (p *poster) Write(ctx context.Context, e *sdk.Item) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.c.URL, strings.NewReader(string(e.Payload)))
	if err != nil {
		return sdk.Permanent(err)
	}
	r.Header.Set("Idempotency-Key", e.ID)
	r.Header.Set("Authorization", "Bearer "+p.c.Token.Reveal())
	resp, err := p.Do(r)
	if err != nil {
		return err // transient: what became of the request is not known
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusUnauthorized:
		return sdk.Config(errors.New(resp.Status)).WithCode("unauthorized").WithHint("check token")
	case resp.StatusCode == http.StatusUnprocessableEntity:
		return sdk.Permanent(errors.New(resp.Status)).WithCode("refused")
	}
	return fmt.Errorf("post: %s", resp.Status)
}

func (p *poster) Close(context.Context) error {
	p.CloseIdleConnections()
	return nil
}

// A sink that posts each event to a URL, 16 at a time: the whole of its main package.
func ExampleSink() {
	sdk.Main(sdk.Sink(sdk.Spec[config]{
		Name:     "webhook",
		Summary:  "Posts events to a URL.",
		Defaults: func() config { return config{Timeout: sdk.Duration(10e9)} },
	}, 16, func(_ context.Context, o sdk.SinkOpen[config]) (sdk.Writer, error) {
		return &poster{c: o.Config, Client: http.Client{Timeout: o.Config.Timeout.Duration()}}, nil
	}))
}
