package main

import (
	"context"
	"fmt"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// keptFindings say what the reading of kept rows will begin with.
func keptFindings(ctx context.Context, s *session, l *outbox.Layout, c config, stored []byte) ([]sdk.Finding, error) {
	if l.Tx == nil || l.Order == nil {
		return nil, nil // said by keptProblems
	}
	v, err := identify(ctx, s, l.Table)
	if err != nil {
		return nil, err
	}
	if stored != nil {
		p, gap := v.judge(stored)
		if gap == nil {
			return []sdk.Finding{{
				Severity: sdk.OK, Code: "position", Message: fmt.Sprintf("what had ended at %s is published; the reading goes on there", p.old),
			}}, nil
		}
		if c.AcceptGap != gap.Token() {
			e := gap.Config()
			return []sdk.Finding{{Severity: sdk.Problem, Code: e.Code, Message: e.Error(), Hint: e.Hint}}, nil
		}
	}
	if c.backlog() == backlogSkip {
		return []sdk.Finding{{
			Severity: sdk.Warning, Code: "backlog_skipped", Path: "/backlog",
			Message: fmt.Sprintf("there is no position: rows that are in %s when the pipeline starts will not be published", l.Table.Name),
			Hint:    "write backlog: publish to publish them",
		}}, nil
	}
	var rows bool
	if err := s.conn.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s)", l.Table.Name)).Scan(&rows); err != nil {
		return nil, fmt.Errorf("look for rows: %w", err)
	}
	if !rows {
		return nil, nil
	}
	return []sdk.Finding{{
		Severity: sdk.Warning, Code: "backlog_published", Path: "/backlog",
		Message: fmt.Sprintf("there is no position: every row that is in %s WILL be published", l.Table.Name),
		Hint:    "write backlog: skip to begin with what commits from then on",
	}}, nil
}
