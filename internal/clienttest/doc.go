// Package clienttest tests the programs of clients/ on a lock service: each as a real
// process that guards a job of jobs/, with a proxy between the program and the
// service that can lose answers. The service is the one of make serve, and the Lambda
// function behind a gateway. On the function go test runs a part, and make sam-test runs all.
package clienttest
