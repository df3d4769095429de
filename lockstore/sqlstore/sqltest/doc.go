// Package sqltest has the tests of package sqlstore with real servers and drivers. It is a module of its own, so that sqlstore's names no
// driver.
package sqltest
