// Package pgenv names the environment in which tests find their servers. It stands apart from pgtest so that programs can
// set it without linking the testing package.
package pgenv

// Variables of the environment.
const (
	Server  = "RELEVO_TEST_POSTGRES"    // the DSN of a superuser
	Require = "RELEVO_REQUIRE_SERVICES" // not empty: a missing server is a failure
)
