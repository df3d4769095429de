// Package storms sends many events for one key to real functions that coalesce. The work of a function reads how many
// events have come, takes a while, and writes that number down. So if each event that was answered has a run that began after it,
// the last number is that of all events. Environments are killed and frozen meanwhile, and the source sends
// again what was not answered, as SQS does.
package storms
