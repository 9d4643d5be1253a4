// Package e2e tests the whole chain with real processes: a service that writes to PostgreSQL, `relevo run` with its
// plugins, a JetStream server, and a consumer that is not ours.
//
// Every test ends with the same question: what was committed, and what did the consumer see? Nothing may be lost, nothing
// invented, and the first deliveries of each key must come in its order. Repeats are counted: the streams forget ids after
// 100 ms, so that JetStream does not hide them.
//
//	build_test.go    the executables, with failpoints
//	system_test.go   an outbox, a stream, a pipeline file
//	host_test.go     `relevo run` as a child process
//	load_test.go     the service; consumer_test.go the consumer and the verdict
//
// The other files are tests, one file for each kind of fault.
package e2e
