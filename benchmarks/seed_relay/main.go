// The relay as the seeds of this project describe it: a ticker, a batch of fifty rows under one transaction, one
// write and one update for each event, one commit. It is kept as they describe it, with the default Writer of
// kafka-go, so that its figures are theirs. It is measured beside ours and is no part of the product.
//
// Its settings come from the environment: SEED_DSN, SEED_BROKER, SEED_TOPIC.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

const (
	batchSize = 50
	interval  = 500 * time.Millisecond

	lockBatch = `
SELECT id, aggregate_id, topic, payload FROM outbox_event
WHERE dispatched_at IS NULL
ORDER BY created_at LIMIT $1
FOR UPDATE SKIP LOCKED`
	markDispatched = `UPDATE outbox_event SET dispatched_at = now() WHERE id = $1`
)

type event struct {
	id          string
	aggregateID string
	topic       string
	payload     []byte
}

type outboxRelay struct {
	pool     *pgxpool.Pool
	writer   *kafka.Writer
	interval time.Duration
}

// run moves a batch at each tick until ctx is cancelled. A batch that has begun is never torn.
func (r *outboxRelay) run(ctx context.Context, group *sync.WaitGroup) {
	defer group.Done()
	ticker := time.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := r.moveBatch(); err != nil {
				slog.Warn("a batch failed", "error", err)
			}
		}
	}
}

// moveBatch works on a context of its own: a stop must not tear a transaction.
func (r *outboxRelay) moveBatch() error {
	ctx := context.Background()
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(ctx)

	events, err := lock(ctx, tx)
	if err != nil {
		return fmt.Errorf("lock a batch: %w", err)
	}
	if len(events) == 0 {
		return nil
	}
	for _, one := range events {
		message := kafka.Message{Key: []byte(one.aggregateID), Value: one.payload}
		if err := r.writer.WriteMessages(ctx, message); err != nil {
			return fmt.Errorf("publish %s: %w", one.id, err)
		}
		if _, err := tx.Exec(ctx, markDispatched, one.id); err != nil {
			return fmt.Errorf("mark %s: %w", one.id, err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func lock(ctx context.Context, tx pgx.Tx) ([]event, error) {
	rows, err := tx.Query(ctx, lockBatch, batchSize)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (event, error) {
		var one event
		err := row.Scan(&one.id, &one.aggregateID, &one.topic, &one.payload)
		return one, err
	})
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv("SEED_DSN"))
	if err != nil {
		slog.Error("no pool", "error", err)
		os.Exit(1)
	}
	relay := &outboxRelay{
		pool: pool,
		// As the seeds write it, nothing more: the defaults of the library are part of what is measured.
		writer:   &kafka.Writer{Addr: kafka.TCP(os.Getenv("SEED_BROKER")), Topic: os.Getenv("SEED_TOPIC")},
		interval: interval,
	}
	var group sync.WaitGroup
	group.Add(1)
	go relay.run(ctx, &group)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	slog.Info("received a signal", "signal", (<-signals).String())

	cancel()
	group.Wait()
	if err := relay.writer.Close(); err != nil {
		slog.Error("close the writer", "error", err)
	}
	pool.Close()
	slog.Info("stopped")
}
