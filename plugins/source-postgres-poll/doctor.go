package main

import (
	"context"

	"github.com/relevo-io/relevo/sdk"
)

func check(ctx context.Context, c config, r sdk.CheckRequest) ([]sdk.Finding, error) { return nil, nil }
