// Package datastore keeps locks in Google Cloud Datastore (Firestore in Datastore mode),
// through its REST API. It is a module of its own.
//
// # URL
//
//	datastore://PROJECT/DATABASE?kind=Lock
//
//	PROJECT   the project's id
//	DATABASE  the database's id; without it the database "(default)"
//	kind      the kind of the locks' entities, "Lock" by default; all users of a resource
//	          need the same project, database and kind
//
// Every other parameter is an error. There is one entity for each key, with the key as its
// name. The store makes it at the first use of the key, and never deletes it. A kind that
// no other program uses is best: an entity of another program is an error that matches
// lockstore.ErrCorrupt, and stays as it is.
//
// # Credentials
//
// The credentials are Google's Application Default Credentials, with the scope
// https://www.googleapis.com/auth/datastore:
//
//   - The file that GOOGLE_APPLICATION_CREDENTIALS names. In Lambda this is a file of the
//     type external_account for workload identity federation with AWS: it has no secret,
//     and the function's own AWS credentials prove who it is. They are read from AWS_REGION,
//     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
//   - Without that variable: the file of gcloud auth application-default login, or the
//     metadata server of a machine in Google's cloud.
//
// The role roles/datastore.user allows what the store needs: datastore.entities.get,
// create and update.
//
// DATASTORE_EMULATOR_HOST=127.0.0.1:8081 names an emulator on this machine. Then the store
// sends no credentials and uses no TLS. It has to be the Firestore emulator with
// --database-mode=datastore-mode: the older Datastore emulator has no times.
//
// # Requests and cost
//
// Package casstore says how many requests each call sends. Each request is
// one entity read or one entity write, and Google charges for both. A process also fetches a
// token, about once an hour. The store does not list its keys.
//
// # Clock
//
// Only Google's clock decides which lease has ended: each write is stamped by the service,
// in microseconds.
//
//	a lease may be trusted for    TTL - 250 ms, from before the request
//	others may take the key over  if stamp of their own write >= stamp of the last grant or
//	                              renewal + TTL + 500 ms
//
// The 750 ms between the two are for hosts of the service whose clocks differ.
//
// # Consistency
//
// Reads by key are strongly consistent. Each write names the version of the entity that it
// replaces, and the service refuses it if the entity has another one.
//
// Never delete an entity by hand while its key is held: another owner could be granted the
// key at once.
//
// # Outcomes
//
// An error matches lockstore.ErrUnavailable if the request was not sent, or if the answer
// is PERMISSION_DENIED, UNAUTHENTICATED or RESOURCE_EXHAUSTED. An error matches
// lockstore.ErrCorrupt if the answer is INVALID_ARGUMENT, or to a read NOT_FOUND or FAILED_PRECONDITION: nothing was
// written, and a repeat does not help. After every other failure of a write the outcome is unknown: repeat the same
// call to learn it.
//
// # Limits
//
//   - Tested: with the Firestore emulator of gcloud 528, with a fake of the REST API that can
//     also break the network and set the clock, and with a token server of our own.
//   - Never tested: with Google's service, its credentials, quotas and regions, and with a
//     database other than (default) in it.
//   - Google advises against more than one write a second to the same entity for a longer
//     time. A key with more traffic may get errors and delays.
//   - A database in Firestore's native mode has no Datastore API.
package datastore
