// Package cosmosstore keeps locks in a container of Azure Cosmos DB for NoSQL. It is a
// module of its own.
//
// # URL
//
//	cosmos://ACCOUNT/DATABASE/CONTAINER?endpoint=https://…
//
//	ACCOUNT    the account's name; the store talks to https://ACCOUNT.documents.azure.com
//	DATABASE   the database's id
//	CONTAINER  the container's id
//	endpoint   another address of the account: of another cloud, or of an emulator
//
// Every other parameter is an error. An endpoint without TLS has to be on this machine.
//
// The environment variable AZURE_COSMOS_KEY has the account's key, the primary or the
// secondary one. For an endpoint on this machine the default is the key of Microsoft's
// emulator, which is not secret. Tokens of Microsoft Entra ID are not supported.
//
// # Container
//
// The container has the partition key /id, no time to live, and no other program's items.
// The store never creates it.
//
// There is one item for each key. Its id is made of the SHA-256 of the key, because an id
// may have at most 255 characters, and some characters are not allowed in it. The item's field
// "key" has the key itself. The store never deletes an item.
//
// # Requests and cost
//
// Package casstore says how many requests each call sends. The first call of a process may send one more, to learn the service's time.
// The store does not list its keys.
//
// A read of an item of less than 1 KB costs 1 request unit (2 with strong consistency and with bounded
// staleness). A write costs several. The store never queries, so exclude all paths from the
// container's index, and a write costs less.
//
// All requests go to the account's global endpoint, which leads to the region that takes
// writes. The store sends each request once.
//
// # Clock
//
// Only the service's clock decides which lease has ended: each item has the time of its last
// write (_ts), in whole seconds. But the
// service refuses requests of a client whose clock is wrong by more than 15 minutes.
//
//	a lease may be trusted for    TTL - 250 ms, from before the request
//	others may take the key over  if _ts of their own write >= _ts of the last grant or renewal
//	                              + TTL + 2 s
//
// A stamp is up to 1 s earlier than its write. So others wait for TTL + 1 s to TTL + 3 s after
// the last grant or renewal. 1 s of that and the 250 ms are for hosts of the service whose
// clocks differ.
//
// # Consistency
//
// Each write names the ETag of the item that it replaces, and the service refuses it if the
// item has another one. So at most one owner has a lease, with every consistency level. But
// the account must have a single write region: with several, two regions can grant the same
// lock.
//
// Reads are up to date with strong consistency, and with bounded staleness in the write
// region. With session consistency (the default of new accounts) and weaker levels a read can
// be old. Then Inspect may be wrong, Revoke, Renew and Release may answer lockstore.ErrLost for a lease
// that is still held, and an event may count as covered by a run that began before it was sent: then no
// run does its work. Check reports several write regions, and a weaker level.
//
// A failover to another region that loses writes can lose a lease that was granted just before.
// Then only fences protect the resource.
//
// Never delete an item by hand: another owner could be granted the key at once. If that
// happens in the same second as the last grant, even the fence could be the same.
//
// # Outcomes
//
// An error matches lockstore.ErrUnavailable if the request was not sent, or if the answer is
// 401, 403 or 429. An error matches lockstore.ErrCorrupt if the answer is 400, or if the database
// or container is not there: nothing was written, and a repeat does not help. After every other
// failure of a write the outcome is unknown: repeat the same call to learn it.
//
// # Limits
//
//   - Tested: with @vercel/cosmosdb-server 1.0.1, which is not Microsoft's. That server checks
//     neither keys nor consistency, and has no request units and no regions. The answers that
//     only the service gives came from a fake.
//   - Never tested: with the service and with Microsoft's emulator.
package cosmosstore
