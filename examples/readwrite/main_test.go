package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func setUp(t *testing.T) (*guard.Guard, *redis.Client) {
	g, err := guard.New(memstore.New(nil), guard.Options{Wait: 20 * time.Second})
	require.NoError(t, err)
	rows := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	_, err = handler(g, rows).Handle(t.Context(), Document{"7", "0", "0"})
	require.NoError(t, err)
	return g, rows
}

func TestEachReadIsOfOneWrite(t *testing.T) {
	h := handler(setUp(t))
	var runs sync.WaitGroup
	for i := range 40 {
		runs.Go(func() {
			d := Document{ID: "7"}
			if i%10 == 0 {
				d.Title, d.Body = fmt.Sprint(i), fmt.Sprint(i)
			}
			got, err := h.Handle(t.Context(), d)
			assert.NoError(t, err)
			assert.Equal(t, got.Title, got.Body)
		})
	}
	runs.Wait()
}

// meeting keeps each reader until another one is there.
type meeting struct {
	redis.Cmdable
	readers sync.WaitGroup
}

func (m *meeting) Get(ctx context.Context, key string) *redis.StringCmd {
	if key == "7:title" {
		m.readers.Done()
		m.readers.Wait()
	}
	return m.Cmdable.Get(ctx, key)
}

func TestTwoReadersAtOnce(t *testing.T) {
	g, rows := setUp(t)
	m := &meeting{Cmdable: rows}
	m.readers.Add(2)
	h := handler(g, m)
	var runs sync.WaitGroup
	for range 2 {
		runs.Go(func() {
			_, err := h.Handle(t.Context(), Document{ID: "7"})
			assert.NoError(t, err)
		})
	}
	runs.Wait()
}
