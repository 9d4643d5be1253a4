// Package langenv names the environment in which tests find other languages. It stands apart from langtest so that programs
// can set it without linking the testing package.
package langenv

// Variables of the environment.
const (
	Python = "RELEVO_TEST_PYTHON"       // an interpreter that has the packages of examples/sink-python
	Node   = "RELEVO_TEST_NODE_MODULES" // a node_modules with the packages of examples/sink-node; node is in the path
)
