package bring

import (
	"context"
	"os"
	"path/filepath"

	"github.com/relevo-io/relevo/internal/langtest/langenv"
)

// Node installs the packages of examples/sink-node.
func Node(ctx context.Context, say Say) (*Service, error) {
	modules := func(dir string) string { return filepath.Join(dir, "node_modules") }
	return packages{
		language: "node", variable: langenv.Node, value: modules,
		lists:  []string{"examples/sink-node/package.json", "examples/sink-node/package-lock.json"},
		debian: []string{"nodejs", "npm"},
		install: func(ctx context.Context, lists []string, dir string) error {
			for _, list := range lists {
				text, err := os.ReadFile(list)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, filepath.Base(list)), text, 0o644); err != nil {
					return err
				}
			}
			return run(ctx, nil, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		},
		probe: func(ctx context.Context, dir string) error {
			return run(ctx, []string{"NODE_PATH=" + modules(dir)}, "/", "node", "-e",
				"require('@grpc/grpc-js'), require('@grpc/proto-loader'), require('grpc-health-check')")
		},
	}.bring(ctx, say), nil
}
