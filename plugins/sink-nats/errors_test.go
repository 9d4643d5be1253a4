package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// jetstreamext's numbers of batch errors have drifted from the server's; ours are held against the server that is built
// in.
func TestCodesAreTheServers(t *testing.T) {
	t.Parallel()
	for code, want := range map[server.ErrorIdentifier]int{
		server.JSAccountResourcesExceededErr: codeAccountResources, server.JSClusterIncompleteErr: codeClusterIncomplete,
		server.JSClusterNotActiveErr: codeClusterNotActive, server.JSClusterNotAssignedErr: codeClusterNotAssigned,
		server.JSClusterNotAvailErr: codeClusterNotAvailable, server.JSClusterNotLeaderErr: codeClusterNotLeader,
		server.JSInsufficientResourcesErr: codeInsufficient, server.JSMemoryResourcesExceededErr: codeMemoryExceeded,
		server.JSNoAccountErr: codeNoAccount, server.JSNotEnabledForAccountErr: codeNotEnabledAccount,
		server.JSStorageResourcesExceededErr: codeStorageExceeded, server.JSStreamMessageExceedsMaximumErr: codeMessageTooLarge,
		server.JSStreamNotFoundErr: codeStreamNotFound, server.JSStreamNotMatchErr: codeWrongStream,
		server.JSStreamSequenceNotMatchErr: codeSequenceMismatch, server.JSNotEnabledErr: codeNotEnabled,
		server.JSStreamStoreFailedF: codeStoreFailed, server.JSStreamHeaderExceedsMaximumErr: codeHeaderTooLarge,
		server.JSStreamSealedErr: codeSealed, server.JSStreamOfflineErr: codeStreamOffline,
		server.JSStreamDuplicateMessageConflict: codeDuplicateInProcess, server.JSStreamTooManyRequests: codeTooManyRequests,
		server.JSMessageIncrMissingErr: codeCounterMissing, server.JSAtomicPublishDisabledErr: codeAtomicDisabled,
		server.JSAtomicPublishMissingSeqErr: codeAtomicMissingSeq, server.JSAtomicPublishIncompleteBatchErr: codeAtomicIncomplete,
		server.JSAtomicPublishUnsupportedHeaderBatchErr: codeAtomicHeader, server.JSAtomicPublishInvalidBatchIDErr: codeAtomicInvalidID,
		server.JSStreamOfflineReasonErrF: codeStreamOfflineReason, server.JSAtomicPublishTooLargeBatchErrF: codeAtomicTooLarge,
		server.JSAtomicPublishInvalidBatchCommitErr: codeAtomicInvalidCommit, server.JSAtomicPublishContainsDuplicateMessageErr: codeAtomicDuplicate,
		server.JSAtomicPublishTooManyInflight: codeAtomicInflight,
	} {
		require.Equal(t, want, int(code))
		require.NotNil(t, server.ApiErrors[code])
	}
	for text, err := range map[string]error{
		textMaxMsgs: server.ErrMaxMsgs, textMaxBytes: server.ErrMaxBytes,
		textMaxMsgsPerSubject: server.ErrMaxMsgsPerSubject, textTooLarge: server.ErrMsgTooLarge,
	} {
		require.EqualError(t, err, text)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	full := func(err error) *server.ApiError { return server.NewJSStreamStoreFailedError(err) }
	of := func(id server.ErrorIdentifier) *server.ApiError { return server.ApiErrors[id] }
	for _, c := range []struct {
		err   *server.ApiError
		class sdk.Class
		code  string
		scope scope
	}{
		{of(server.JSStreamMessageExceedsMaximumErr), sdk.ClassPermanent, "message_too_large", scopeEvent},
		{of(server.JSStreamHeaderExceedsMaximumErr), sdk.ClassPermanent, "headers_too_large", scopeEvent},
		{full(server.ErrMsgTooLarge), sdk.ClassPermanent, "message_too_large", scopeEvent},
		{full(server.ErrMaxMsgs), sdk.ClassTransient, "stream_full", scopeStream},
		{full(server.ErrMaxBytes), sdk.ClassTransient, "stream_full", scopeStream},
		{full(server.ErrMaxMsgsPerSubject), sdk.ClassTransient, "subject_full", scopeEvent},
		{full(io.ErrShortWrite), sdk.ClassTransient, "store_failed", scopeStream},
		{of(server.JSStreamNotMatchErr), sdk.ClassConfig, "wrong_stream", scopeEvent},
		{of(server.JSStreamSealedErr), sdk.ClassConfig, "stream_sealed", scopeEvent},
		{of(server.JSMessageIncrMissingErr), sdk.ClassConfig, "counter_stream", scopeEvent},
		{of(server.JSNotEnabledErr), sdk.ClassTransient, "unavailable", scopeStream},
		{of(server.JSNotEnabledForAccountErr), sdk.ClassTransient, "unavailable", scopeStream},
		{of(server.JSClusterNotAvailErr), sdk.ClassTransient, "unavailable", scopeStream},
		{of(server.JSClusterNotLeaderErr), sdk.ClassTransient, "unavailable", scopeStream},
		{of(server.JSInsufficientResourcesErr), sdk.ClassTransient, "server_full", scopeStream},
		{of(server.JSAccountResourcesExceededErr), sdk.ClassTransient, "account_full", scopeStream},
		{of(server.JSStreamTooManyRequests), sdk.ClassTransient, "throttled", scopeStream},
		{of(server.JSAtomicPublishTooManyInflight), sdk.ClassTransient, "throttled", scopeStream},
		{of(server.JSStreamDuplicateMessageConflict), sdk.ClassTransient, "duplicate_in_process", scopeStream},
		{of(server.JSAtomicPublishContainsDuplicateMessageErr), sdk.ClassTransient, "batch_duplicate", scopeBatch},
		{of(server.JSAtomicPublishIncompleteBatchErr), sdk.ClassTransient, "batch_incomplete", scopeBatch},
		{of(server.JSAtomicPublishDisabledErr), sdk.ClassTransient, "batches_disabled", scopeBatch},
		{&server.ApiError{Code: 503, ErrCode: 19999, Description: "new"}, sdk.ClassTransient, "unavailable", scopeStream},
		{&server.ApiError{Code: 400, ErrCode: 19999, Description: "new"}, sdk.ClassTransient, "refused", scopeEvent},
	} {
		r := refuse(&jetstream.APIError{Code: c.err.Code, ErrorCode: jetstream.ErrorCode(c.err.ErrCode), Description: c.err.Description})
		require.Equal(t, c.class, r.class, c.err.Description)
		require.Equal(t, c.code, r.code)
		require.Equal(t, c.scope, r.scope, c.err.Description)
		require.Contains(t, r.Error(), c.err.Description)
	}
	// No error of the server is worse than TRANSIENT unless it is named above.
	for id, e := range server.ApiErrors {
		r := refuse(&jetstream.APIError{Code: e.Code, ErrorCode: jetstream.ErrorCode(id), Description: e.Description})
		require.NotEmpty(t, r.code)
		switch id {
		case server.JSStreamMessageExceedsMaximumErr, server.JSStreamHeaderExceedsMaximumErr:
		case server.JSStreamNotMatchErr, server.JSStreamSealedErr, server.JSMessageIncrMissingErr:
		default:
			require.Equal(t, sdk.ClassTransient, r.class, "%d %s", id, e.Description)
		}
	}
}

func TestPublishErrors(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]string{
		nats.ErrMaxPayload: "message_too_large", nats.ErrBadSubject: "subject_invalid", nats.ErrBadHeaderMsg: "header_invalid",
	} {
		r := publishRefusal(fmt.Errorf("wrapped: %w", err))
		require.Equal(t, code, r.code)
		require.Equal(t, sdk.ClassPermanent, r.class)
	}
	for _, err := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, io.ErrClosedPipe, errors.New("anything")} {
		require.Nil(t, publishRefusal(err), "the connection: nothing about the message")
	}
}

func TestConnectErrorsOfTheNetworkAreTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nats.ErrNoServers, nats.ErrTimeout, nats.ErrMaxConnectionsExceeded, io.EOF, context.DeadlineExceeded} {
		require.Equal(t, sdk.ClassTransient, connectError(err, Config{}).Class)
	}
}

func TestDeniedSubject(t *testing.T) {
	t.Parallel()
	s, ok := deniedSubject(fmt.Errorf(`%w: Permissions Violation for Publish to "Orders.X"`, nats.ErrPermissionViolation))
	require.True(t, ok)
	require.Equal(t, "Orders.X", s)
	_, ok = deniedSubject(fmt.Errorf(`%w: Permissions Violation for Subscription to "a"`, nats.ErrPermissionViolation))
	require.False(t, ok)
	_, ok = deniedSubject(errors.New(`Permissions Violation for Publish to "x"`))
	require.False(t, ok)
}
