// Package clienttest tests the programs of clients/ on a lock service: each as a real
// process that guards a job of jobs/, with a proxy between the program and the
// service that can lose answers. The service is the one of make serve; the Lambda function
// has the same package behind a gateway.
package clienttest
