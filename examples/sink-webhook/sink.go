package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

const (
	// excerptBytes of an answer are shown to people.
	excerptBytes = 200
	// maxAnswer is as much of an answer as is read, to use its connection again.
	maxAnswer = 256 << 10
)

// writer posts events. Its Write is called side by side.
type writer struct {
	client   *http.Client
	base     *url.URL
	header   http.Header // of every request
	source   string      // ce-source
	timeout  time.Duration
	slots    chan struct{} // one for each request under way
	throttle throttle
	mask     *strings.Replacer
}

// open is the beginning of an attempt. HTTP has no connection to make first: whether the receiver is there shows with the
// first event, and beforehand in relevo doctor.
func open(ctx context.Context, o sdk.SinkOpen[Config]) (sdk.Writer, error) {
	w, err := newWriter(o.Config, o.Instance)
	if err != nil {
		return nil, err
	}
	if to := o.ConstantDestination; to != "" {
		if _, err := w.target(to); err != nil {
			return nil, sdk.Config(err).WithCode("path_invalid").WithHint("change to")
		}
	}
	slog.InfoContext(ctx, "posting", "host", w.base.Host, "concurrency", cap(w.slots))
	return w, nil
}

func newWriter(c Config, i sdk.Instance) (*writer, error) {
	base, err := c.base()
	if err != nil {
		return nil, sdk.Config(err)
	}
	tlsConfig, err := c.TLS.tlsConfig()
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone() // its proxy is that of the environment: process.env in a pipeline
	t.TLSClientConfig = tlsConfig
	t.MaxIdleConns, t.MaxIdleConnsPerHost = c.Concurrency, c.Concurrency
	t.DisableCompression = true // answers are short, and are cut by size
	return &writer{
		client: &http.Client{
			Transport: t,
			// A redirect turns a POST into a GET, or sends events where nobody meant them to go: see errors.go.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		base:    base,
		header:  c.header(),
		source:  "relevo/" + i.Pipeline,
		timeout: c.Timeout.Duration(),
		slots:   make(chan struct{}, c.Concurrency),
		mask:    c.mask(base),
	}, nil
}

// Write posts one event. It returns nil when the receiver has answered 2xx, and has said all of it (I3).
func (w *writer) Write(ctx context.Context, e *sdk.Item) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := w.throttle.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	r, err := w.request(ctx, e)
	if err != nil {
		return err
	}
	res, err := w.client.Do(r)
	if err != nil {
		return w.unanswered(err)
	}
	defer res.Body.Close()
	excerpt, err := readAnswer(res.Body)
	return w.judge(res, excerpt, err)
}

// Close ends the idle connections; Write has returned by now.
func (w *writer) Close(context.Context) error {
	w.client.CloseIdleConnections()
	return nil
}

// readAnswer reads an answer to its end, or so much of it that closing the connection is cheaper.
func readAnswer(body io.Reader) (excerpt []byte, err error) {
	if excerpt, err = io.ReadAll(io.LimitReader(body, excerptBytes)); err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
	}
	return excerpt, err
}
