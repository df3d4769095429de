// Reading the messages of the queue of settlements:
//
//	{"account": "7", "id": "s-1", "amount": 500}
//
// A settlement is made as a withdrawal with its id, so a message that comes
// again withdraws nothing twice, as long as its account remembers it, see package accounts. A bad body never gets
// better, an unknown account and an id that was used with another amount hardly
// ever; a balance that is too low may. All of them are failures of the message:
// SQS delivers it again until maxReceiveCount, and then it is in the dead-letter
// queue. A settlement that was not made is never dropped.

package main

import "github.com/lambdalock/lambdalock/functions/internal/accounts"

// Parse reads the body of a message.
func parse(body string) (accounts.Withdrawal, error) {
	w, err := accounts.Parse(body, "account", "id", "amount")
	if err != nil {
		return w, err
	}
	return w, w.Validate()
}
