//go:build !failpoint

package failpoint

// Hit does nothing: failpoints are not compiled in.
func Hit(string) {}
