package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/relevo-io/relevo/sdk"
)

const codeThrottled = "throttled"

// judge says what an answer means; nil: the event is published. Every branch has its reason. What stops all events alike
// is CONFIG and not PERMANENT, so that no policy can discard an outbox because of a wrong address.
func (w *writer) judge(res *http.Response, excerpt []byte, cut error) error {
	err := fmt.Errorf("the receiver answers %s%s", strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", http.StatusText(res.StatusCode))),
		w.quote(excerpt))
	switch status := res.StatusCode; {
	case status/100 == 2 && cut != nil:
		// It began to say yes. A handler that streams says so before it has done its work: an unknown outcome (I3).
		return sdk.Transient(fmt.Errorf("read the answer %d to its end: %w", status, bare(cut))).WithCode("answer_cut")
	case status/100 == 2:
		// Also 202: how safe an event is behind the answer is the receiver's word.
		return nil
	case status/100 == 3:
		// Not followed: most clients turn a POST into a GET, and events do not go where nobody has sent them.
		return sdk.Config(err).WithCode("redirected").WithHint(w.redirectHint(res))
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired:
		// Who we are, or what we may: the same for the next event, until a person changes it on either side.
		return sdk.Config(err).WithCode("auth_failed").WithHint("check auth and headers, and what the receiver allows")
	case status == http.StatusProxyAuthRequired:
		return sdk.Config(err).WithCode("proxy_auth_failed").WithHint("put user and password into the proxy's URL, under process.env")
	case status == http.StatusNotFound:
		// Nobody serves the path: a wrong address, a handler that is missing for one type, or a deployment half done. The
		// event itself is fine.
		return sdk.Config(err).WithCode("not_found").WithHint("check url and to: the receiver serves no such path")
	case status == http.StatusGone:
		// The receiver wants no more of it. Whether its events are to be thrown away, only a person can say.
		return sdk.Config(err).WithCode("gone").WithHint("the receiver has closed this path for good: change url or to, or remove the sink")
	case status == http.StatusMethodNotAllowed, status == http.StatusUpgradeRequired:
		// Something else than a receiver of events lives there.
		return sdk.Config(err).WithCode("method_not_allowed").WithHint("check url and to: the receiver takes no POST there")
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusMisdirectedRequest:
		// By their definition the same request may succeed later, or on another connection.
		return sdk.Transient(err).WithCode("try_again")
	case status == http.StatusConflict:
		// To a receiver that honours Idempotency-Key: the first request with this key is still at work (after a time-out of
		// ours). One that has the event already answers 2xx.
		return sdk.Transient(err).WithCode("conflict").WithHint("a receiver that has the event already answers 2xx")
	case status == http.StatusTooManyRequests:
		w.throttle.hold(retryAfter(res.Header, time.Now()))
		return sdk.Transient(err).WithCode(codeThrottled)
	case status/100 == 5:
		// The receiver's own trouble, 503 with the time when it hopes to be over it. A receiver that answers 500 to an event
		// that it will never take holds that key, and no other.
		w.throttle.hold(retryAfter(res.Header, time.Now()))
		return sdk.Transient(err).WithCode("server_error")
	case status/100 == 4:
		// 400, 413, 415, 422, 431 and the rest: this event, as it is, never.
		return sdk.Permanent(err).WithCode("refused")
	}
	return sdk.Transient(err).WithCode("status_unknown") // no status of HTTP: an unknown outcome
}

// unanswered says what the lack of an answer means. The network is TRANSIENT, whom to trust is for a person to change.
func (w *writer) unanswered(err error) error {
	err = bare(err)
	wrap := fmt.Errorf("post: %w", err)
	config := func(code, hint string) error { return sdk.Config(wrap).WithCode(code).WithHint(hint) }
	if errors.Is(err, context.DeadlineExceeded) {
		// It may have the event, and may be at work on it still.
		return sdk.Transient(fmt.Errorf("no answer within %v", w.timeout)).WithCode("timeout").
			WithHint("raise timeout, if the receiver needs longer")
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return config("tls_not_offered", "the receiver speaks no TLS on this port: change https to http in url, or the port")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return config("tls_unknown_ca", "set tls.ca to the authority of the receiver's certificate")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return config("tls_server_name", "use a name in url that is in the receiver's certificate")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return config("tls_certificate", "the receiver's certificate is not valid")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return config("tls_refused", "the receiver refuses our TLS: it may demand a certificate, which this sink does not have")
	}
	// Refused, reset, no such host, cut before the answer: it may come back.
	return sdk.Transient(wrap).WithCode("unreachable").WithHint("check url, and that the receiver runs")
}

// bare takes the address off an error of the client: it may be a secret (I9).
func bare(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// redirectHint says where the receiver points to.
func (w *writer) redirectHint(res *http.Response) string {
	to, err := res.Location()
	if err != nil {
		return "set url to what the receiver wants; redirects are not followed"
	}
	to.User, to.RawQuery, to.Fragment = nil, "", ""
	return "set url or to so that events go to " + w.mask.Replace(to.String()) + " directly; redirects are not followed"
}

// quote shows a person the beginning of an answer.
func (w *writer) quote(excerpt []byte) string {
	text := strings.Join(strings.FieldsFunc(w.mask.Replace(string(excerpt)), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if text == "" {
		return ""
	}
	return ": " + strconv.QuoteToGraphic(text)
}
