package main

import (
	"context"
	"encoding/json"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// plugin serves what every plugin serves.
type plugin struct {
	pluginv1.UnimplementedPluginServiceServer
	d *pluginv1.DescribeResponse
}

// describer is one without Check.
type describer struct {
	pluginv1.UnimplementedPluginServiceServer
	d *pluginv1.DescribeResponse
}

func (p describer) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return p.d, nil
}

func (p *plugin) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return p.d, nil
}

// Check looks whether the file can be written to, without writing to it.
func (p *plugin) Check(_ context.Context, q *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	var c struct{ Target, File string }
	if err := json.Unmarshal(q.GetConfig(), &c); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	f := &pluginv1.Finding{Severity: pluginv1.Severity_SEVERITY_OK, Code: "file", Message: "can be used"}
	if err := reachable(c.Target + c.File); err != nil {
		if bug == "check-fails-with-its-target" {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		f = &pluginv1.Finding{
			Severity: pluginv1.Severity_SEVERITY_ERROR, Code: "file_unusable", Path: "/target", Message: err.Error(),
			Hint: "name a file in a directory that exists",
		}
	}
	switch bug {
	case "check-sees-nothing":
		f.Severity = pluginv1.Severity_SEVERITY_OK
	case "check-cries-wolf":
		f.Severity = pluginv1.Severity_SEVERITY_ERROR
	case "check-without-severity":
		f.Severity = pluginv1.Severity_SEVERITY_UNSPECIFIED
	case "check-without-code":
		f.Code = "File unusable!"
	case "check-without-message":
		f.Message = ""
	case "check-points-nowhere":
		f.Path = "target"
	case "check-publishes":
		if err := appendTo(c.Target, "relevo doctor was here\n"); err != nil {
			return nil, err
		}
	case "check-takes-rows":
		rs, err := rows(c.File)
		if err != nil {
			return nil, err
		}
		for _, w := range rs {
			if err := appendTo(c.File+".done", w.id+"\n"); err != nil {
				return nil, err
			}
		}
	}
	return &pluginv1.CheckResponse{Findings: []*pluginv1.Finding{f}}, nil
}

// reachable says why a file can't be used that may not exist yet.
func reachable(file string) error {
	if file == "" {
		return nil
	}
	_, err := os.Stat(file)
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// awayFault is the answer to Open when the file can't be used; nil: there is none.
func awayFault(err error) *pluginv1.Fault {
	switch bug {
	case "exits-when-unreachable":
		exit(err)
	case "unreachable-is-permanent":
		return &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_PERMANENT, Code: "file_unusable", Message: err.Error()}
	case "takes-the-unreachable":
		return nil
	}
	return &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, Code: "file_unusable", Message: err.Error()}
}
