package sdk

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// checker makes the answer to Check.
func checker[C any](spec Spec[C]) func(context.Context, *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	return func(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
		c, err := DecodeConfig(r.GetConfig(), spec.Defaults)
		if err != nil {
			var resp pluginv1.CheckResponse
			for _, e := range flatten(err) {
				f := &pluginv1.Finding{Severity: pluginv1.Severity_SEVERITY_ERROR, Code: codeConfigInvalid, Message: text(e.Error())}
				if ce, ok := errors.AsType[*ConfigError](e); ok {
					f.Path, f.Message = text(ce.Path), text(ce.Message)
				}
				resp.Findings = append(resp.Findings, f)
			}
			return &resp, nil
		}
		if spec.Check == nil {
			return &pluginv1.CheckResponse{}, nil
		}
		cr := CheckRequest{Instance: instanceOf(r.GetInstance()), ConstantDestination: r.GetConstantDestination()}
		if p := r.GetPosition(); len(p) > 0 {
			cr.Position = p
		}
		findings, err := spec.Check(ctx, c, cr)
		if err != nil {
			return nil, checkError(err)
		}
		resp := &pluginv1.CheckResponse{Findings: make([]*pluginv1.Finding, len(findings))}
		for i, f := range findings {
			resp.Findings[i] = &pluginv1.Finding{
				Severity: pluginv1.Severity(f.Severity), //nolint:gosec // one of three
				Code:     text(f.Code),
				Path:     text(f.Path),
				Message:  text(f.Message),
				Hint:     text(f.Hint),
				Sql:      strings.ToValidUTF8(f.SQL, "\uFFFD"),
			}
		}
		return resp, nil
	}
}

// checkError says in gRPC's words why a check could not be made.
func checkError(err error) error {
	switch e := ErrorOf(err); {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case e.Class == ClassConfig:
		return status.Error(codes.FailedPrecondition, text(e.Error()))
	case e.Class == ClassPermanent:
		return status.Error(codes.Unknown, text(e.Error()))
	default:
		return status.Error(codes.Unavailable, text(e.Error()))
	}
}
