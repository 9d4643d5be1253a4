package bring

import (
	"context"
	"path/filepath"

	"github.com/relevo-io/relevo/internal/langtest/langenv"
)

// Python makes a virtual environment with the packages of examples/sink-python.
func Python(ctx context.Context, say Say) (*Service, error) {
	interpreter := func(dir string) string { return filepath.Join(dir, "bin", "python3") }
	return packages{
		language: "python", variable: langenv.Python, value: interpreter,
		lists:  []string{"examples/sink-python/requirements.txt"},
		debian: []string{"python3", "python3-venv"},
		install: func(ctx context.Context, lists []string, dir string) error {
			if err := run(ctx, nil, dir, "python3", "-m", "venv", dir); err != nil {
				return err
			}
			return run(ctx, nil, dir, interpreter(dir), "-m", "pip", "install", "--quiet", "-r", lists[0])
		},
		probe: func(ctx context.Context, dir string) error {
			return run(ctx, nil, "/", interpreter(dir), "-c", "import grpc, grpc_health, grpc_tools, urllib3")
		},
	}.bring(ctx, say), nil
}
