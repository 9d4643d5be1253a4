package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/pgtest"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
	"github.com/relevo-io/relevo/sdk"
)

// What a person must change is CONFIG, what passes by itself is TRANSIENT; nothing of a source is ever PERMANENT.
func TestClasses(t *testing.T) {
	t.Parallel()
	state := func(code string) error {
		return fmt.Errorf("read the outbox: %w", &pgconn.PgError{Code: code, Message: "m"})
	}
	for _, c := range []struct {
		err   error
		class sdk.Class
		code  string
	}{
		{state("28P01"), sdk.ClassConfig, "login_refused"},
		{state("28000"), sdk.ClassConfig, "login_refused"},
		{state("3D000"), sdk.ClassConfig, "database_missing"},
		{state("42501"), sdk.ClassConfig, "privilege_missing"},
		{state("42P01"), sdk.ClassConfig, "table_missing"},
		{state("42703"), sdk.ClassConfig, "column_missing"},
		{state("42883"), sdk.ClassConfig, "sql_refused"},
		{state("22023"), sdk.ClassConfig, "setting_refused"},
		{state("42P05"), sdk.ClassConfig, "pooler_statements"},
		{state("40001"), sdk.ClassConfig, "isolation_changed"},
		{state("25006"), sdk.ClassTransient, "read_only_server"},
		{state("0A000"), sdk.ClassTransient, "table_changed"},
		{state("53300"), sdk.ClassTransient, "too_many_connections"},
		{state("53100"), sdk.ClassTransient, "server_out_of_resources"},
		{state("57P01"), sdk.ClassTransient, "server_shutdown"},
		{state("57P03"), sdk.ClassTransient, "server_shutdown"},
		{state("57P05"), sdk.ClassTransient, "lock_lost"},
		{state("08006"), sdk.ClassTransient, "connection_lost"},
		{state("XX000"), sdk.ClassTransient, "sql_xx000"},
		{errPooled, sdk.ClassConfig, "pooler_transaction_mode"},
		{errUnlockedElsewhere, sdk.ClassConfig, "pooler_transaction_mode"},
		{errStandbyServer, sdk.ClassTransient, "read_only_server"},
		{context.DeadlineExceeded, sdk.ClassTransient, "canceled"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, sdk.ClassTransient, "connection_lost"},
	} {
		e := classify(c.err)
		require.Equal(t, c.class, e.Class, c.code)
		require.Equal(t, c.code, e.Code, "%v", c.err)
	}
	require.Equal(t, "lock_lost", sdk.ErrorOf(lost(errors.New("EOF"), "lock_lost")).Code)
	require.Equal(t, "login_refused", sdk.ErrorOf(lost(state("28P01"), "lock_lost")).Code)
	for code, want := range map[string]bool{"40P01": true, "55P03": true, "57014": true, "57P01": false, "42501": false} {
		require.Equal(t, want, again(state(code)), code)
	}
	require.False(t, again(errors.New("EOF")))
}

// I9: no part of a DSN that cannot be read is shown, and the password is in no message.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://user:hunter2@host:port/db", "postgres://user:hun%ter2@host/db", "host=h password='hunter2", "hunter2",
		"postgres://user:hunter2@host/db?sslmode=sometimes", "postgres://user@host/db?password=hunter2&sslmode=sometimes",
	} {
		c := defaultConfig()
		c.DSN = sdk.Secret(dsn)
		err := c.Validate()
		require.ErrorContains(t, err, "/dsn", dsn)
		require.NotContains(t, err.Error(), "hunter2")
	}
	c := defaultConfig()
	c.DSN = sdk.Secret("postgres://u:hunter2@h/db?sslmode=verify-full&sslrootcert=" + filepath.Join(t.TempDir(), "ca.pem"))
	err := c.Validate()
	require.ErrorContains(t, err, "ca.pem", "which file is missing is said")
	require.NotContains(t, err.Error(), "hunter2")
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t, pgtest.Options{HBA: []string{"host all secretive 127.0.0.1/32 scram-sha-256"}})
	d := useDB(t, pg.DSN(), seqDDL, `CREATE ROLE secretive LOGIN PASSWORD 'p@ss/w:rd'`, `GRANT SELECT, DELETE ON outbox TO secretive`)
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(t, err)
	dsn := strings.Replace(d.dsn, cc.User+"@", "secretive@", 1)
	f := startRelay(t, dsn, relayOptions{config: map[string]any{"password": "hunter2"}}).awaitFault()
	require.Equal(t, "login_refused", f.GetCode())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_CONFIG, f.GetClass())
	require.NotContains(t, f.String(), "hunter2")
	r := startRelay(t, dsn, relayOptions{config: map[string]any{"password": "p@ss/w:rd"}})
	r.awaitOpened()
	r.drain()
}
