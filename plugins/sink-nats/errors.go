package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

// Error codes of the server, from its errors.json. The client's own names cover few of them, and its numbers for batches
// have drifted from the server's: the table is tested against the server that is built in.
const (
	codeAccountResources    = 10002
	codeClusterIncomplete   = 10004
	codeClusterNotActive    = 10006
	codeClusterNotAssigned  = 10007
	codeClusterNotAvailable = 10008
	codeClusterNotLeader    = 10009
	codeInsufficient        = 10023
	codeMemoryExceeded      = 10028
	codeNoAccount           = 10035
	codeNotEnabledAccount   = 10039
	codeStorageExceeded     = 10047
	codeMessageTooLarge     = 10054
	codeStreamNotFound      = 10059
	codeWrongStream         = 10060
	codeSequenceMismatch    = 10063
	codeNotEnabled          = 10076
	codeStoreFailed         = 10077
	codeHeaderTooLarge      = 10097
	codeSealed              = 10109
	codeStreamOffline       = 10118
	codeDuplicateInProcess  = 10158
	codeTooManyRequests     = 10167
	codeCounterMissing      = 10169
	codeAtomicDisabled      = 10174
	codeAtomicMissingSeq    = 10175
	codeAtomicIncomplete    = 10176
	codeAtomicHeader        = 10177
	codeAtomicInvalidID     = 10179
	codeStreamOfflineReason = 10194
	codeAtomicTooLarge      = 10199
	codeAtomicInvalidCommit = 10200
	codeAtomicDuplicate     = 10201
	codeAtomicInflight      = 10210
)

// Texts of the server inside 10077, which has no codes of its own for them (server/store.go).
const (
	textMaxMsgsPerSubject = "maximum messages per subject exceeded"
	textMaxMsgs           = "maximum messages exceeded"
	textMaxBytes          = "maximum bytes exceeded"
	textTooLarge          = "message too large"
)

// scope says what a refusal is about, and so who is to be tried again.
type scope int

const (
	scopeEvent  scope = iota // this message: others of the stream may pass
	scopeStream              // whatever is sent to the stream next meets the same
	scopeBatch               // the message was refused for the batch around it
)

// refusal is what an answer of the server means.
type refusal struct {
	class sdk.Class
	code  string
	scope scope
	hint  string
	slow  bool // the stream is there and holds us back: slow rather than down

	// Of a batch: what was wrong with it.
	disabled bool // the stream takes none
	dup      bool // it has an id that the stream knows
	small    bool // it has more messages than the server allows

	err error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// sdk is the refusal as the host wants it.
func (r *refusal) sdk() *sdk.Error {
	return &sdk.Error{Class: r.class, Code: r.code, Hint: r.hint, Err: r.err}
}

// refuse says what an error in a confirmation means. Every branch has its reason; what is not known is TRANSIENT, never
// dropped.
func refuse(e *jetstream.APIError) *refusal {
	r := &refusal{class: sdk.ClassTransient, scope: scopeEvent, err: fmt.Errorf("server refuses (%d): %s", e.ErrorCode, e.Description)}
	switch e.ErrorCode {
	case codeMessageTooLarge:
		// The stream's max_msg_size. Normally found beforehand; the limit may have been lowered since.
		r.class, r.code, r.hint = sdk.ClassPermanent, "message_too_large", "raise max_msg_size of the stream"
	case codeHeaderTooLarge:
		// A header block has at most 64 KiB, on every server.
		r.class, r.code = sdk.ClassPermanent, "headers_too_large"
	case codeStoreFailed:
		r.storeFailed(e.Description)
	case codeWrongStream:
		// Nats-Expected-Stream: another stream captures the subject.
		r.class, r.code, r.hint = sdk.ClassConfig, "wrong_stream", "another stream captures the subject: change stream, or the streams' subjects"
	case codeSealed:
		// A sealed stream takes nothing, until a person makes another.
		r.class, r.code, r.hint = sdk.ClassConfig, "stream_sealed", "a sealed stream takes no messages: publish to another"
	case codeCounterMissing:
		// A stream with allow_msg_counter takes counters only.
		r.class, r.code, r.hint = sdk.ClassConfig, "counter_stream", "the stream holds counters: publish to another"
	case codeAccountResources:
		// The account's quota: room comes back by retention, or a person makes it.
		r.code, r.scope, r.hint = "account_full", scopeStream, "raise the account's JetStream limits, or delete messages"
	case codeInsufficient, codeMemoryExceeded, codeStorageExceeded:
		// The server's disk or memory.
		r.code, r.scope, r.hint = "server_full", scopeStream, "the server is out of JetStream storage or memory"
	case codeTooManyRequests, codeAtomicInflight:
		// The stream's queue is full, or it has too many batches open: it will have room in a moment.
		r.code, r.scope, r.slow = "throttled", scopeStream, true
	case codeDuplicateInProcess:
		// The same id is on its way through the cluster, from before a change of leader.
		r.code, r.scope, r.slow = "duplicate_in_process", scopeStream, true
	case codeNotEnabled, codeNotEnabledAccount, codeNoAccount, codeClusterIncomplete, codeClusterNotActive,
		codeClusterNotAssigned, codeClusterNotAvailable, codeClusterNotLeader, codeStreamOffline, codeStreamOfflineReason,
		codeSequenceMismatch:
		// A server that starts, a cluster without a leader, a stream that moves: these pass.
		r.code, r.scope = "unavailable", scopeStream
	case codeAtomicDisabled:
		r.code, r.scope, r.disabled = "batches_disabled", scopeBatch, true
	case codeAtomicDuplicate:
		// One id of the batch is in the duplicate window (or twice in the batch): nothing was stored.
		r.code, r.scope, r.dup = "batch_duplicate", scopeBatch, true
	case codeAtomicTooLarge:
		// The server's max_batch_size is lower than ours.
		r.code, r.scope, r.small = "batch_too_large", scopeBatch, true
	case codeAtomicHeader:
		// The first servers with batches took no Nats-Msg-Id in them. Without it a repeat could not be told.
		r.code, r.scope, r.disabled = "batches_without_ids", scopeBatch, true
	case codeAtomicIncomplete, codeAtomicMissingSeq, codeAtomicInvalidID, codeAtomicInvalidCommit:
		// A message of the batch was dropped on the way: too large, denied, captured by another stream.
		r.code, r.scope = "batch_incomplete", scopeBatch
	default:
		r.code = "refused"
		if e.Code == 429 || e.Code >= 500 {
			// An outage that we have no name for.
			r.code, r.scope = "unavailable", scopeStream
		}
	}
	return r
}

// storeFailed reads 10077, which is a full stream, a message that is too large for the file store, or a disk error.
func (r *refusal) storeFailed(description string) {
	switch {
	case strings.Contains(description, textMaxMsgsPerSubject):
		// discard_new_per_subject: only this subject is full.
		r.code, r.hint = "subject_full", "raise max_msgs_per_subject of the stream, or delete messages"
	case strings.Contains(description, textMaxMsgs), strings.Contains(description, textMaxBytes):
		r.code, r.scope, r.slow, r.hint = "stream_full", scopeStream, true, "raise max_msgs or max_bytes of the stream, or delete messages"
	case strings.Contains(description, textTooLarge):
		r.class, r.code = sdk.ClassPermanent, "message_too_large"
	default:
		r.code, r.scope = "store_failed", scopeStream
	}
}

// Refusals that are no answer of JetStream.
func noResponders(subject string) *refusal {
	return &refusal{
		class: sdk.ClassTransient, code: "no_stream", scope: scopeStream,
		hint: "create a stream that captures the subject; after a failure of a server this passes",
		err:  fmt.Errorf("no stream answers on subject %q: %w", subject, nats.ErrNoResponders),
	}
}

func denied(subject string) *refusal {
	return &refusal{
		class: sdk.ClassConfig, code: "publish_denied",
		hint: "grant the user permission to publish to the subject",
		err:  fmt.Errorf("the user may not publish to %q: %w", subject, nats.ErrPermissionViolation),
	}
}

func ackTimeout(after fmt.Stringer) *refusal {
	return &refusal{
		class: sdk.ClassTransient, code: "ack_timeout",
		err: fmt.Errorf("no confirmation after %v, while others came: %w", after, nats.ErrTimeout),
	}
}

func invalidAck(what string) *refusal {
	// Somebody who is no stream answers on the subject, or an answer was damaged: an unknown outcome.
	return &refusal{
		class: sdk.ClassTransient, code: "invalid_ack", hint: "a service that is no stream may listen on the subject",
		err: fmt.Errorf("the answer is no confirmation of JetStream: %s", what),
	}
}

// publishRefusal says what an error of nats.go's Publish means; nil: the connection is not usable, nothing about the
// message.
func publishRefusal(err error) *refusal {
	r := &refusal{class: sdk.ClassPermanent, err: fmt.Errorf("publish: %w", err)}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		r.code, r.hint = "message_too_large", "raise max_payload of the server"
	case errors.Is(err, nats.ErrBadSubject):
		r.code = "subject_invalid"
	case errors.Is(err, nats.ErrBadHeaderMsg):
		r.code = "header_invalid"
	case errors.Is(err, nats.ErrHeadersNotSupported):
		r.class, r.code, r.hint = sdk.ClassConfig, "headers_unsupported", "the server is older than 2.2, or has no_header_support"
	default:
		return nil
	}
	return r
}

// connectError says what an error of dialling means. The network is TRANSIENT; who we are and how TLS is spoken is for a
// person to change.
func connectError(err error, c Config) *sdk.Error {
	wrap := fmt.Errorf("connect: %w", err)
	config := func(code, hint string) *sdk.Error { return sdk.Config(wrap).WithCode(code).WithHint(hint) }
	switch {
	case isAuthError(err):
		if c.Auth == nil {
			return config("auth_failed", "the server demands credentials: set auth"+certHint(c))
		}
		return config("auth_failed", "check "+c.Auth.kind())
	case errors.Is(err, nats.ErrNkeysNotSupported):
		return config("auth_failed", "the server has no nkeys: set another kind of auth")
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrConnectionNotTLS):
		return config("tls_not_offered", "the server speaks no TLS on this port: remove tls, or change servers")
	case errors.Is(err, nats.ErrSecureConnRequired):
		return config("tls_required", "the server demands TLS: set tls")
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return config("tls_unknown_ca", "set tls.ca to the authority of the server's certificate")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return config("tls_server_name", "set tls.server_name to a name in the server's certificate")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return config("tls_certificate", "the server's certificate is not valid")
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return config("tls_not_offered", "the server speaks no TLS on this port: remove tls, or change servers")
	}
	// An alert from the other side: almost always our certificate, missing or of another authority. With TLS 1.3 it comes
	// after the handshake, and may be overtaken by the cut of the connection.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" || errors.Is(err, nats.ErrTLS) {
		return config("tls_refused", "the server refuses our TLS: set tls.cert and tls.key to a certificate that it trusts")
	}
	return sdk.Transient(wrap).WithCode("unreachable").WithHint("check servers, and that one of them runs")
}

func certHint(c Config) string {
	if c.TLS == nil || c.TLS.Cert != "" {
		return ""
	}
	return ", or tls.cert and tls.key"
}

// isAuthError reports whether the server refuses who we are.
func isAuthError(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// deniedSubject finds the subject in a violation of publish permissions. It stands in the text only (server/client.go):
// Permissions Violation for Publish to "orders.x".
func deniedSubject(err error) (string, bool) {
	const mark = `Permissions Violation for Publish to "`
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), mark)
	if !ok {
		return "", false
	}
	subject, _, ok := strings.Cut(rest, `"`)
	return subject, ok
}

// subscriptionDenied reports whether the server refused a subscription.
func subscriptionDenied(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "Permissions Violation for Subscription to ")
}

// apiMissing reports whether an error of the JetStream API says for certain that the stream does not exist.
func apiMissing(err error) bool {
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError() != nil {
		return e.APIError().ErrorCode == codeStreamNotFound
	}
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// apiUnanswered reports whether a request of the JetStream API was not answered: no permission (which shows as silence),
// no JetStream, no network.
func apiUnanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}
