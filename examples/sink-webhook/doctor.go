package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/relevo-io/relevo/sdk"
)

// check asks the receiver with HEAD, which changes nothing there. It shows that the address is right, TLS is trusted and
// somebody answers; what that somebody does with a POST shows with the first event.
func check(ctx context.Context, c Config, r sdk.CheckRequest) ([]sdk.Finding, error) {
	w, err := newWriter(c, r.Instance)
	if err != nil {
		return problem("/tls", err), nil
	}
	defer w.client.CloseIdleConnections()
	to := r.ConstantDestination
	if to == "" {
		to = "/" // placeholders: no event is at hand
	}
	u, err := w.target(to)
	if err != nil {
		return problem("", sdk.Config(err).WithCode("path_invalid").WithHint("change to")), nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", bare(err))
	}
	req.Header = w.header.Clone()
	res, err := w.client.Do(req)
	if err != nil {
		return problem("/url", w.unanswered(err)), nil
	}
	defer res.Body.Close()
	// To HEAD many receivers say 404 or 405 and take a POST all the same; credentials and redirects count for both.
	switch e := sdk.ErrorOf(w.judge(res, nil, nil)); e.Code {
	case "auth_failed", "proxy_auth_failed":
		return problem("/auth", e), nil
	case "redirected":
		return problem("/url", e), nil
	}
	return []sdk.Finding{{
		Severity: sdk.OK, Code: "receiver_answers", Path: "/url",
		Message: fmt.Sprintf("%s answers, with %d to HEAD", w.base.Host, res.StatusCode),
	}}, nil
}

func problem(path string, err error) []sdk.Finding {
	e := sdk.ErrorOf(err)
	return []sdk.Finding{{Severity: sdk.Problem, Code: e.Code, Path: path, Message: e.Error(), Hint: e.Hint}}
}
